"""The same work as people write it: a module, an optimiser and a DataLoader per client, one client after another."""

import copy
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from works import Work

from coterie.methods.fedamp import FedAMP


def sequential(work: Work, device: str) -> Callable[[], None]:
    """One round of local training of every client."""
    torch.manual_seed(0)
    start = work.factory()().to(device)
    clients = []
    for silo in work.data():
        data = TensorDataset(torch.from_numpy(silo.train.x).to(device), torch.from_numpy(silo.train.y).to(device))
        clients.append((copy.deepcopy(start), DataLoader(data, batch_size=work.batch, shuffle=True)))
    lr = work.training().lr
    pull = 1e-4 if isinstance(work.method, FedAMP) else 0.0

    def optimizer(module: nn.Module) -> torch.optim.Optimizer:
        if work.optimizer == "adam":
            return torch.optim.Adam(module.parameters(), lr=lr)
        return torch.optim.SGD(module.parameters(), lr=lr)

    def round() -> None:
        for module, loader in clients:
            module.load_state_dict(start.state_dict())
            centre = [p.detach().clone() for p in module.parameters()] if pull else []
            steps = optimizer(module)
            for x, y in (batch for _ in range(work.epochs) for batch in loader):
                steps.zero_grad()
                loss = F.cross_entropy(module(x), y)
                if pull:
                    near = zip(module.parameters(), centre, strict=True)
                    loss = loss + pull / 2 * sum((p - c).square().sum() for p, c in near)
                loss.backward()
                steps.step()

    return round
