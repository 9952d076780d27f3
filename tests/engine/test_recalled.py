"""What an examination found is read back as it was: the same way over rows, the same numbers to the last bit."""

import json

import pytest
import torch
from torch import Tensor, nn

from coterie.engine.examine import recalled
from coterie.engine.rows import Model


class Odd(nn.Module):
    """A layer that looks at its samples, so rows go one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.idle = nn.Linear(5, 3), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out if float(x.sum()) > 1e9 else out.tanh()


class Recurrent(nn.Module):
    """A layer that no rewriting knows."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.out = nn.GRU(5, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.out(self.gru(x[:, None])[0][:, 0])
        return made


BUILDS = {
    "linear": lambda: nn.Linear(5, 3),
    "norm and dropout": lambda: nn.Sequential(
        nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Dropout(0.3), nn.ReLU(inplace=True), nn.Linear(4, 3)
    ),
    "one by one": Odd,
    "recurrent": Recurrent,
}


@pytest.mark.parametrize("name", BUILDS)
def test_what_was_found_is_read_back(name: str) -> None:
    examined, other = (Model(BUILDS[name], 3) for _ in range(2))
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(2, 6, 5, generator=draw)
    examined.probe(x[0])
    assert examined.found is not None
    other.know(recalled(json.loads(json.dumps(examined.found.as_table())), other.module, other.layout))
    assert other.way == examined.way
    rows = torch.stack([examined.start(0), examined.start(1)])
    keys = torch.arange(2)
    for training in (True, False):
        for ours, theirs in zip(
            examined.forward(rows, x, training, keys), other.forward(rows, x, training, keys), strict=True
        ):
            assert (ours is None and theirs is None) or torch.equal(ours, theirs)
    for attribute in ("draws", "couples_samples", "couples_evaluation", "output", "_head", "_changes_input"):
        assert getattr(other, attribute) == getattr(examined, attribute), attribute
    assert (other.still is None) == (examined.still is None)
    assert other.still is None or torch.equal(other.still, examined.still)
