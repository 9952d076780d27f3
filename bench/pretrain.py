"""Train one model on a whole data set in plain PyTorch, and write its weights for studies to start from.

    PYTHONPATH=. python3 bench/pretrain.py cifar100 --model '{"name": "resnet18", "width": 32}' --epochs 30 \\
        --out resnet18-cifar100.safetensors
    PYTHONPATH=. python3 bench/pretrain.py shakespeare --model '{"name": "transformer"}' --out out.safetensors

Of a set with owners (speaking roles), those with so many samples that a study makes silos of them are left out: what
silos are tested on has trained nothing.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from coterie.codec import save_tensors
from coterie.data import catalog
from coterie.data.silo import Pool
from coterie.models import build

HELD_OUT = 0.1  # of the samples: how good it is


def without_silos(pool: Pool, least: int) -> Pool:
    """What owners said who have too little to be silos; of a set without owners, all."""
    if pool.owner is None:
        return pool
    _, which, counts = np.unique(pool.owner, return_inverse=True, return_counts=True)
    return pool.take(np.flatnonzero(counts[which] < least))


def pretrain(
    pool: Pool, table: Mapping[str, Any], epochs: int, lr: float, batch: int, device: str, flip: bool, seed: int = 0
) -> tuple[nn.Module, float]:
    """The model after so many epochs of Adam with a cosine's rate, and its accuracy on samples that it has not seen."""
    torch.manual_seed(seed)
    module = build(table, pool.x.shape[1:], pool.classes)[0]().to(device)
    order = torch.randperm(len(pool.y))
    held = max(1, int(HELD_OUT * len(order)))
    x, y = torch.from_numpy(pool.x), torch.from_numpy(pool.y)
    test, train = order[:held], order[held:]
    steps = epochs * -(-len(train) // batch)
    optimizer = torch.optim.AdamW(module.parameters(), lr, weight_decay=5e-4)
    rates = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, steps)
    for _ in range(epochs):
        module.train()
        for index in train[torch.randperm(len(train))].split(batch):
            samples = x[index].to(device)
            samples = samples.flip(-1) if flip and torch.rand(()) < 0.5 else samples
            optimizer.zero_grad()
            F.cross_entropy(module(samples), y[index].to(device)).backward()
            optimizer.step()
            rates.step()
    return module.eval(), accuracy(module, x[test], y[test], batch, device)


@torch.no_grad()
def accuracy(module: nn.Module, x: torch.Tensor, y: torch.Tensor, batch: int, device: str) -> float:
    """The share of samples whose class has the highest score."""
    module.eval()
    parts = zip(x.split(batch), y.split(batch), strict=True)
    hits = [module(part.to(device)).argmax(1).cpu() == labels for part, labels in parts]
    return float(torch.cat(hits).float().mean())


def main() -> None:
    """Train and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--model", type=json.loads, required=True)
    parser.add_argument("--options", type=json.loads, default={}, help="of the data, as [data] has them")
    parser.add_argument("--least", type=int, default=1000, help="samples of an owner whom a study makes a silo")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--no-flip", action="store_true", help="of pictures: no mirror images")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    pool = without_silos(catalog.read(given.data, given.options), given.least)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    flip = pool.x.ndim == 4 and not given.no_flip
    module, score = pretrain(pool, given.model, given.epochs, given.lr, given.batch, device, flip)
    tensors = {name: t.detach().cpu().contiguous().clone() for name, t in module.state_dict().items()}
    about = {"data": given.data, "model": json.dumps(given.model), "epochs": str(given.epochs)}
    about["accuracy"] = f"{score:.4f}"
    save_tensors(tensors, given.out, about)
    print(f"{len(pool)} samples, {given.epochs} epochs: accuracy {score:.1%} on held-out ones; wrote {given.out}")


if __name__ == "__main__":
    main()
