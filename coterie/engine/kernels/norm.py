"""BatchNorm of k models at once on a GPU, with a ReLU after it: each row's samples are normalised by themselves.

Images with channels last are lines x (k, n, C). Statistics are taken in one pass over them and everything else is done
in another; the gradient is as much again.
"""

import torch
from torch import Tensor


@torch.library.custom_op("coterie::row_norm", mutates_args=())
def row_norm(x: Tensor, w: Tensor, bias: Tensor, eps: float, top: float | None) -> tuple[Tensor, Tensor, Tensor]:
    """Lines with scale w and shift (k, C), cut off below 0 and above `top` if that is given; mean and variance."""
    from coterie.engine.kernels import triton_norm

    return triton_norm.normalized(x.contiguous(), w.contiguous(), bias.contiguous(), eps, top)


@row_norm.register_fake
def _(x: Tensor, w: Tensor, bias: Tensor, eps: float, top: float | None) -> tuple[Tensor, Tensor, Tensor]:
    statistics = [torch.empty(len(x), x.shape[2], dtype=torch.float32, device=x.device) for _ in range(2)]
    return torch.empty_like(x, memory_format=torch.contiguous_format), statistics[0], statistics[1]


@torch.library.custom_op("coterie::row_norm_back", mutates_args=())
def row_norm_back(
    g: Tensor, x: Tensor, mean: Tensor, variance: Tensor, w: Tensor, bias: Tensor, eps: float, top: float | None
) -> tuple[Tensor, Tensor]:
    """The gradients with respect to x, and to scale and shift (k, 2, C), from that of what was normalised."""
    from coterie.engine.kernels import triton_norm

    g, x, w, bias = (t.contiguous() for t in (g, x, w, bias))
    return triton_norm.gradient(g, x, mean, variance, w, bias, eps, top)


@row_norm_back.register_fake
def _(
    g: Tensor, x: Tensor, mean: Tensor, variance: Tensor, w: Tensor, bias: Tensor, eps: float, top: float | None
) -> tuple[Tensor, Tensor]:
    sums = torch.empty(len(x), 2, x.shape[2], dtype=torch.float32, device=x.device)
    return torch.empty_like(x, memory_format=torch.contiguous_format), sums


def _remember(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    x, w, bias, *ctx.how = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, *output[1:], w, bias)


def _backward(ctx, g: Tensor, *unused: Tensor):  # type: ignore[no-untyped-def]
    w = ctx.saved_tensors[3]
    images, sums = row_norm_back(g, *ctx.saved_tensors, *ctx.how)
    return images, sums[:, 0].to(w.dtype), sums[:, 1].to(w.dtype), None, None


row_norm.register_autograd(_backward, setup_context=_remember)
