"""On a GPU, where there is one: rows by kernels and compilers of its own are the rows of a CPU in float64."""

import pytest
import torch

from coterie.engine.rows import Model
from coterie.models import build

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
CIFAR = (3, 32, 32)
MODELS = {
    "cnn": ({"name": "cnn", "channels": [8, 16], "hidden": 32}, (1, 28, 28)),
    "unaligned channels": ({"name": "cnn-apple"}, CIFAR),
    "resnet18": ({"name": "resnet18", "width": 16}, CIFAR),
    "mobilenet_v2": ({"name": "mobilenet_v2", "dropout": 0.2, "width": 0.5}, CIFAR),
}


@pytest.mark.parametrize("precision, within", [("float32", 1e-3), ("bf16", 0.2)])
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_a_cpu(name: str, precision: str, within: float) -> None:
    table, shape = MODELS[name]
    made = build(table, shape, 10)[0]
    torch.manual_seed(0)
    x, y, share = torch.randn(3, 16, *shape), torch.randint(10, (3, 16)), torch.full((3, 16), 1 / 16)
    keys = torch.tensor([1, 2, 3])
    here = Model(made, 10, dtype=torch.float64)
    rows = here.starts(0, ["a", "b", "c"], common=False)
    there = Model(made, 10, "cuda", precision=precision)
    expected = here.gradient(rows, x.double(), y, share.double(), keys)
    found = there.gradient(rows.float().cuda(), x.cuda(), y.cuda(), share.cuda(), keys.cuda())
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            assert (ours.cpu().double() - theirs).norm() <= within * theirs.norm()
