"""Kernels of a GPU are held against plain PyTorch on that GPU before they are used, once in a process.

No test machine has one. A kernel that fails there or gives other numbers is not used, and its layers run as they do
elsewhere.
"""

from collections.abc import Callable, Collection
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

TRITON = find_spec("triton") is not None
NEAR = {torch.bfloat16: 2e-2, torch.float16: 4e-3, torch.float32: 5e-3}  # relative: with tf32, too
Way = Callable[..., Tensor]  # of tensors, the first of which is a layer's input
Check = tuple[Way, Way, tuple[tuple[int, ...], ...]]  # the kernel's, PyTorch's, the shapes of what both are given

CHECKS: dict[str, Check] = {}  # by the name of the layer over rows that has a kernel
_right: dict[tuple[str, torch.dtype], bool] = {}


def right(name: str, x: Tensor) -> bool:
    """Whether a layer's kernel is there for a tensor and may be used."""
    return x.is_cuda and TRITON and _right.get((name, x.dtype), False)


def hold(layers: Collection[str], device: torch.device, dtype: torch.dtype) -> None:
    """Try some layers' kernels with one type of numbers, before anything is compiled or recorded that has them."""
    if device.type != "cuda" or not TRITON or dtype not in NEAR:
        return
    for name in CHECKS.keys() & set(layers):
        if (name, dtype) not in _right:
            _right[name, dtype] = True  # or the kernel would not be reached
            _right[name, dtype] = holds(CHECKS[name], device, dtype)


def holds(check: Check, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a kernel's outputs and gradients are those of PyTorch in float64, on tensors of random numbers."""
    draw = torch.Generator().manual_seed(0)
    try:
        with torch.enable_grad():
            given = [torch.randn(shape, generator=draw).to(device, dtype).requires_grad_() for shape in check[2]]
            exact: list[Any] = [t.detach().double().requires_grad_() for t in given]
            ours, theirs = check[0](*given), check[1](*exact)
            slope = torch.randn(theirs.shape, generator=draw).to(ours)
            found = (ours.detach(), *torch.autograd.grad(ours, given, slope))
            expected = (theirs.detach(), *torch.autograd.grad(theirs, exact, slope.double()))
        return all(
            float((one.double() - other).norm()) <= NEAR[dtype] * float(other.norm())
            for one, other in zip(found, expected, strict=True)
        )
    except Exception:  # a compiler, a driver or a kernel may raise anything
        return False
