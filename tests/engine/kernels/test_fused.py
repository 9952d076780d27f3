"""Layers put together: fewer passes, the same numbers (which `examine` holds against the module for every model)."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.engine.kernels import row_layers
from coterie.engine.kernels.lowered import Lowered, lower
from coterie.engine.layout import Layout


def rewritten(module: nn.Module, head: str | None = None) -> Lowered:
    made = lower(module.double(), Layout(module).names, head)
    assert made is not None
    return made


def called(made: Lowered, training: bool = True) -> list[object]:
    graph = (made.train if training else made.evaluate).graph
    layers = dict(made.train.named_modules())
    return [
        type(layers[str(node.target)]) if node.op == "call_module" else node.target
        for node in graph.nodes
        if node.op == "call_module" or getattr(node.target, "__module__", "") == row_layers.__name__
    ]


def equal(made: Lowered, module: nn.Module, x: Tensor) -> None:
    """Two rows with the module's own weights give what it gives, and so do their gradients."""
    layout = Layout(module)
    row = layout.flatten(dict(module.named_parameters()) | dict(module.named_buffers()))
    tensors = {name: t.requires_grad_() for name, t in layout.named(row.expand(2, -1).clone()).items()}
    leaves = [tensors[block.name] for block in layout.parameters]
    out, _ = made(tensors, x, torch.zeros(2, dtype=torch.int64), training=True)
    found = torch.autograd.grad(out.square().sum(), leaves)
    for i in range(2):
        module.train()
        y = module(x[i])
        torch.testing.assert_close(out[i], y)
        expected = torch.autograd.grad(y.square().sum(), list(module.parameters()))
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours[i], theirs)


@pytest.mark.parametrize("pool", [nn.MaxPool2d(2), nn.MaxPool2d(3, 2, padding=1), nn.MaxPool2d(2, ceil_mode=True)])
@pytest.mark.parametrize("bias", [True, False])
def test_pooling_goes_before_bias_and_relu(pool: nn.MaxPool2d, bias: bool) -> None:
    module = nn.Sequential(nn.Conv2d(2, 3, 3, bias=bias), nn.ReLU(), pool, nn.Flatten(), nn.LazyLinear(2))
    module(torch.randn(1, 2, 9, 9))
    made = rewritten(module)
    order = [row_layers.conv, row_layers.max_pool, *[row_layers.shifted] * bias, nn.ReLU]
    assert called(made)[: len(order)] == called(made, training=False)[: len(order)] == order
    equal(made, module, torch.randn(2, 4, 2, 9, 9, dtype=torch.float64))


def test_relu_is_a_part_of_batch_norm_before_it() -> None:
    module = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU6(), nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2),
                           nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.LazyLinear(2))  # fmt: skip
    module(torch.randn(2, 2, 9, 9))
    made = rewritten(module)
    assert nn.ReLU not in called(made) and nn.ReLU6 not in called(made)
    equal(made, module, 3 * torch.randn(2, 4, 2, 9, 9, dtype=torch.float64))


class Seen(nn.Module):
    """What comes before ReLU and before pooling is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.out = nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.Linear(27, 2)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x))
        z = F.relu(y)
        y: Tensor = self.out(self.pool(torch.relu(z + y)).flatten(1))
        return y


def test_what_others_see_stays_as_it_is() -> None:
    module = Seen()
    made = rewritten(module)
    equal(made, module, torch.randn(2, 4, 2, 6, 6, dtype=torch.float64))


def test_features_are_found_where_layers_were_put_together() -> None:
    body = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU())
    module = nn.Sequential(body, nn.Linear(3, 2)).double()
    made, x = rewritten(module, "1"), torch.randn(1, 5, 4, dtype=torch.float64)
    row = {name: t.detach()[None] for name, t in [*module.named_parameters(), *module.named_buffers()]}
    *_, features = made.with_features(row, x, torch.zeros(1, dtype=torch.int64), training=True)
    module.train()
    torch.testing.assert_close(features[0], body(x[0]))


@pytest.mark.parametrize("cut", range(1, 4), ids=["convolution", "its bias and ReLU", "BatchNorm"])
def test_a_head_of_several_layers_is_given_what_it_was_given(cut: int) -> None:
    """What would be put together lies on both sides of where the head begins."""
    conv, norm = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)
    layers = [conv, nn.ReLU(), nn.MaxPool2d(2)] if cut < 3 else [conv, nn.ReLU(), norm, nn.ReLU()]
    body = nn.Sequential(*layers[:cut])
    rest = nn.Sequential(*layers[cut:], nn.Flatten(), nn.LazyLinear(2))
    module = nn.Sequential(body, rest)
    module(torch.randn(2, 2, 6, 6))
    module.double().train()
    made, x = rewritten(module, "1"), torch.randn(1, 5, 2, 6, 6, dtype=torch.float64)
    row = {name: t.detach()[None] for name, t in [*module.named_parameters(), *module.named_buffers()]}
    out, _, features = made.with_features(row, x, torch.zeros(1, dtype=torch.int64), training=True)
    module.train()
    torch.testing.assert_close(features[0], body(x[0]))
    torch.testing.assert_close(out[0], module(x[0]))
