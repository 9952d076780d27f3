"""How well the true components of the Synthetic mixture do, voting with each silo's true weights.

    python bench/truth.py [--seeds 0,1,2]

No model can be expected to do better: the labels are drawn, and this knows what they were drawn from.
"""

import argparse
from collections.abc import Sequence

import numpy as np

from coterie.data.silo import Silo
from coterie.data.synthetic import Synthetic, Truth, generate, sigmoid
from coterie.keys import generator


def truth_accuracy(truth: Truth, silos: Sequence[Silo], part: str = "test") -> list[float]:
    """The accuracy in each silo of the true components voting with the silo's true weights."""
    accuracies = []
    for silo, weights in zip(silos, truth.pi, strict=True):
        data = getattr(silo, part)
        score = data.x @ truth.theta.T
        votes = (sigmoid(score) if truth.drawn else score > 0) @ weights  # (n,)
        accuracies.append(float(((votes > 0.5) == data.y).mean()))
    return accuracies


def main() -> None:
    """Mean over silos and bottom decile of the test accuracies, in percent, of every seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    for seed in map(int, parser.parse_args().seeds.split(",")):
        silos, truth = generate(Synthetic(), generator(seed, "split", "synthetic"))
        accuracies = 100 * np.array(truth_accuracy(truth, silos))
        print(f"seed {seed}: mean {accuracies.mean():.2f}, bottom decile {np.quantile(accuracies, 0.1):.2f}")


if __name__ == "__main__":
    main()
