"""What the tests' memory of examinations tells apart (tests/examined.py)."""

import examined
import pytest
import torch
from torch import Tensor, nn

from coterie.engine import rows
from coterie.engine.rows import Model

ONES = torch.ones(4, 5)
FIXED = nn.Linear(5, 3)


class Own(nn.Linear):
    """A layer whose `repr` need not describe it."""


def same(kind: type[nn.Linear] = nn.Linear) -> nn.Linear:
    """The same weights every time."""
    module = kind(5, 3)
    module.load_state_dict(FIXED.state_dict())
    return module


def hooked() -> nn.Module:
    module = same()
    module.register_forward_hook(lambda *_: None)
    return module


@pytest.mark.parametrize(
    ("pairs", "times"),
    [
        ([(same(), ONES), (same(), ONES)], 1),
        ([(same(), ONES), (same(), 0 * ONES)], 2),
        ([(same(), ONES), (nn.Linear(5, 3), ONES)], 2),
        ([(nn.Sequential(same(), nn.Dropout(p)), ONES) for p in (0.1, 0.2)], 2),
        ([(same(Own), ONES), (same(Own), ONES)], 2),
        ([(hooked(), ONES), (hooked(), ONES)], 2),
    ],
    ids=["equal", "samples", "weights", "options", "own layer", "hook"],
)
def test_only_equal_plain_models_are_examined_once(
    pairs: list[tuple[nn.Module, Tensor]], times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, examine = [], rows.examine
    monkeypatch.setattr(rows, "examine", lambda *given: calls.append(given) or examine(*given))
    examined.remember(monkeypatch)
    for module, samples in pairs:
        Model(module, 3).examine(samples)
    assert len(calls) == times
