"""A kernel is used only where it was held against PyTorch; what a GPU has to pass is tried here without one."""

import pytest
import torch
from torch import Tensor

from coterie.engine.kernels import row_layers, trusted

CPU = torch.device("cpu")


def squared(x: Tensor) -> Tensor:
    return x.square()


def without_gradient(x: Tensor) -> Tensor:
    return x.square() + (x - x.detach())


def failing(x: Tensor) -> Tensor:
    raise RuntimeError("no kernel image is available")


def nothing(x: Tensor) -> Tensor:
    return x * torch.nan


@pytest.mark.parametrize(
    "kernel, right", [(squared, True), (without_gradient, False), (failing, False), (nothing, False)]
)
def test_a_kernel_holds_if_outputs_and_gradients_are_pytorchs(kernel: trusted.Way, right: bool) -> None:
    assert trusted.holds((kernel, squared, ((3, 4),)), CPU, torch.float32) == right


@pytest.mark.parametrize("name", list(row_layers.CHECKS))
def test_rounding_alone_refuses_no_kernel(name: str) -> None:
    for kind in (torch.float32, torch.bfloat16):
        assert trusted.holds(row_layers.CHECKS[name], CPU, kind)


def test_no_kernel_is_used_on_a_cpu() -> None:
    trusted.hold(trusted.CHECKS, CPU, torch.float32)
    assert not any(trusted.right(name, torch.ones(1)) for name in row_layers.CHECKS)
