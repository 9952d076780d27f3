"""How well the true components of the Synthetic mixture do, voting with each silo's true weights.

    python bench/truth.py [--seeds 0,1,2]

No model can be expected to do better: the labels are drawn, and this knows what they were drawn from.
"""

import argparse

import numpy as np

from coterie.data.synthetic import Synthetic, generate, truth_accuracy
from coterie.keys import generator


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
