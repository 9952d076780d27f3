"""Max-pooling of windows that do not overlap, on a GPU, of images with channels last (n, H, W, C).

Which pixel of a window was the largest is kept as one byte, so that the way back reads what is pooled alone.
"""

import torch
from torch import Tensor


@torch.library.custom_op("coterie::pooled", mutates_args=())
def pooled(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The largest of each window (n, H // size, W // size, C), and its place there."""
    from coterie.engine.kernels import triton_pool

    return triton_pool.pooled(x.contiguous(), size)


@pooled.register_fake
def _(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    shape = (x.shape[0], x.shape[1] // size, x.shape[2] // size, x.shape[3])
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.int8)


@torch.library.custom_op("coterie::pooled_back", mutates_args=())
def pooled_back(g: Tensor, places: Tensor, height: int, width: int, size: int) -> Tensor:
    """The gradient with respect to the images."""
    from coterie.engine.kernels import triton_pool

    return triton_pool.gradient(g.contiguous(), places, height, width, size)


@pooled_back.register_fake
def _(g: Tensor, places: Tensor, height: int, width: int, size: int) -> Tensor:
    return g.new_empty(g.shape[0], height, width, g.shape[3])


def _remember(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    ctx.how = (*inputs[0].shape[1:3], inputs[1])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[1])


def _backward(ctx, g: Tensor, unused: Tensor):  # type: ignore[no-untyped-def]
    return pooled_back(g, *ctx.saved_tensors, *ctx.how), None


pooled.register_autograd(_backward, setup_context=_remember)
