"""Depthwise convolutions of k models at once on a GPU: each row's own images, each channel with its own filter.

Libraries take rows for channels, and for that want images and outputs turned in memory; here they stay as the layers
beside leave them: images (k, b, H, W, C), filters (k, K·K, C), outputs (k, b, OH, OW, C).
"""

import torch
from torch import Tensor

from coterie.engine.kernels.conv import out_size


@torch.library.custom_op("coterie::row_depthwise", mutates_args=())
def row_depthwise(x: Tensor, w: Tensor, size: int, stride: int, padding: int) -> Tensor:
    """The convolution."""
    from coterie.engine.kernels import triton_depthwise

    k, b, height, width, channels = x.shape
    shape = (k, b, out_size(height, size, stride, padding), out_size(width, size, stride, padding), channels)
    return triton_depthwise.filtered(x.contiguous(), w.contiguous(), shape, size, stride, padding, transposed=False)


@row_depthwise.register_fake
def _(x: Tensor, w: Tensor, size: int, stride: int, padding: int) -> Tensor:
    k, b, height, width, channels = x.shape
    return x.new_empty(k, b, out_size(height, size, stride, padding), out_size(width, size, stride, padding), channels)


@torch.library.custom_op("coterie::row_depthwise_images", mutates_args=())
def row_depthwise_images(g: Tensor, w: Tensor, shape: list[int], size: int, stride: int, padding: int) -> Tensor:
    """The gradient with respect to the images, from that of the outputs."""
    from coterie.engine.kernels import triton_depthwise

    return triton_depthwise.filtered(
        g.contiguous(), w.contiguous(), tuple(shape), size, stride, padding, transposed=True
    )


@row_depthwise_images.register_fake
def _(g: Tensor, w: Tensor, shape: list[int], size: int, stride: int, padding: int) -> Tensor:
    return g.new_empty(shape)


@torch.library.custom_op("coterie::row_depthwise_filters", mutates_args=())
def row_depthwise_filters(x: Tensor, g: Tensor, size: int, stride: int, padding: int) -> Tensor:
    """The gradient with respect to the filters."""
    from coterie.engine.kernels import triton_depthwise

    return triton_depthwise.filter_gradient(x.contiguous(), g.contiguous(), size, stride, padding)


@row_depthwise_filters.register_fake
def _(x: Tensor, g: Tensor, size: int, stride: int, padding: int) -> Tensor:
    return x.new_empty(len(x), size * size, x.shape[-1])


def _remember(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    x, w, *ctx.how = inputs
    ctx.save_for_backward(x, w)


def _backward(ctx, g: Tensor):  # type: ignore[no-untyped-def]
    x, w = ctx.saved_tensors
    images = row_depthwise_images(g, w, list(x.shape), *ctx.how) if ctx.needs_input_grad[0] else None
    filters = row_depthwise_filters(x, g, *ctx.how) if ctx.needs_input_grad[1] else None
    return images, filters, None, None, None


row_depthwise.register_autograd(_backward, setup_context=_remember)
