"""A copy of a module is whole: nothing in it reaches the module that it was copied from."""

from functools import partial

import pytest
import torch
from awkward import INPUTS, TRAINED, Net
from torch import nn

from coterie.data.own.schema import Schema
from coterie.models.copied import copied
from coterie.personal.adapter import merged
from coterie.personal.model import Deployed


class Functions(Net):
    """Functions in lists and dicts, partial ones, and one that calls itself."""

    def __init__(self) -> None:
        super().__init__()
        out = self.out

        def often(h, times):
            return out(h) if times == 0 else often(h, times - 1)

        self.functions = {"last": [partial(often, times=2)]}

    def forward(self, x):
        return self.functions["last"][0](torch.tanh(self.first(x)))


@pytest.mark.parametrize("build", [Functions, TRAINED["hook that keeps features"], TRAINED["old weight norm"]])
def test_a_copy_computes_with_its_own_weights(build) -> None:
    module, x = build(), torch.randn(3, INPUTS)
    before = module(x).detach()  # which leaves what was computed in it
    made = copied(module)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.zero_()
    assert not made(x).nan_to_num().any() and torch.equal(module(x), before)
    assert torch.equal(merged(Deployed(module, Schema(shape=(INPUTS,)), 0)).core(x), before)


def test_what_is_kept_is_not_copied() -> None:
    module = nn.Linear(2, 2)
    made = copied(module, {id(module.weight): module.weight})
    assert made.weight is module.weight and made.bias is not module.bias
