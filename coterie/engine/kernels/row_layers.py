"""Layers of k models at once: samples of all rows are one batch (k·b, ...); a row's weights meet its own samples."""

import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.engine.kernels.conv import TRITON, convolved
from coterie.engine.kernels.depthwise import row_depthwise
from coterie.errors import BadInput

LONELY = (
    "BatchNorm cannot learn from a batch of one sample, which the last one of an epoch is in some silo; take another "
    "[train] batch_size, or whole_batches = true"
)


def of_all(t: Tensor, k: int) -> Tensor:
    """What all k rows have in common as each row's: (k, ...)."""
    return t.expand(k, *t.shape)


def of_each(t: Tensor, k: int, x: Tensor) -> Tensor:
    """A row's parameter t (k, ...) for each of its samples x (k, b, ...): (k·b, ...)."""
    return t[:, None].expand(k, x.shape[1], *t.shape[1:]).flatten(0, 1)


def linear(x: Tensor, k: int, w: Tensor, bias: Tensor | None) -> Tensor:
    """x (k·b, ..., in), w (k, out, in)."""
    # w on the left: its gradient then comes in w's own order of memory.
    turned = x.reshape(k, -1, w.shape[2]).transpose(1, 2)
    y = torch.bmm(w, turned) if bias is None else torch.baddbmm(bias[:, :, None], w, turned)
    return y.transpose(1, 2).reshape(*x.shape[:-1], w.shape[1])


def conv(x: Tensor, k: int, w: Tensor, bias: Tensor | None, stride: int, padding: int) -> Tensor:
    """x (k·b, C, H, W), w (k, N, C, K, K): a convolution with square filters, as one matrix product per row."""
    if k == 1:
        return F.conv2d(_channels_last(x), w[0], None if bias is None else bias[0], stride, padding)
    pixels = x.permute(0, 2, 3, 1).contiguous()  # no copy where the layer before left channels last
    y = convolved(pixels.view(k, -1, *pixels.shape[1:]), w, stride, padding)
    if bias is not None:
        y = y + bias[:, None, None, None]
    return y.flatten(0, 1).permute(0, 3, 1, 2)


def _channels_last(x: Tensor) -> Tensor:
    """Images in the order of memory in which a CPU pools ten times faster; of one channel this has to be stated."""
    if x.shape[1] > 1:
        return x.contiguous(memory_format=torch.channels_last)
    return x.reshape(len(x), *x.shape[2:], 1).permute(0, 3, 1, 2)


def grouped_conv(
    x: Tensor,
    k: int,
    w: Tensor,
    bias: Tensor | None,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
) -> Tensor:
    """Any other convolution: rows become groups of one over (b, k·C, H, W)."""
    images = x.reshape(k, -1, *x.shape[1:]).transpose(0, 1).flatten(1, 2)
    flat = None if bias is None else bias.reshape(-1)
    y = F.conv2d(images, w.flatten(0, 1), flat, stride, padding, dilation, groups * k)
    return y.reshape(len(y), k, -1, *y.shape[2:]).transpose(0, 1).flatten(0, 1)


def depthwise(x: Tensor, k: int, w: Tensor, bias: Tensor | None, stride: int, padding: int) -> Tensor:
    """Every channel of x (k·b, C, H, W) with a filter of its own, w (k, C, 1, K, K)."""
    if not (x.is_cuda and TRITON):
        return grouped_conv(x, k, w, bias, (stride, stride), (padding, padding), (1, 1), x.shape[1])
    pixels = x.permute(0, 2, 3, 1).contiguous()
    filters = w[:, :, 0].permute(0, 2, 3, 1).flatten(1, 2)
    y: Tensor = row_depthwise(pixels.view(k, -1, *pixels.shape[1:]), filters, w.shape[3], stride, padding)
    if bias is not None:
        y = y + bias[:, None, None, None]
    return y.flatten(0, 1).permute(0, 3, 1, 2)


def normalized(
    x: Tensor, k: int, mean: Tensor, variance: Tensor, w: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """x (k·b, C, ...) with each row's mean and variance (k, C) taken out and its scale and shift put in."""
    shape = (k, 1, -1, *[1] * (x.ndim - 2))
    scale = torch.rsqrt(variance + eps)
    scale = scale if w is None else scale * w
    shift = -mean * scale
    shift = shift if bias is None else shift + bias
    y = x.reshape(k, -1, *x.shape[1:]) * scale.view(shape) + shift.view(shape)
    return y.to(x.dtype).reshape(x.shape)


def batch_norm(
    x: Tensor, k: int, w: Tensor | None, bias: Tensor | None, eps: float, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """x normalised by each row's own samples and pixels, and what BatchNorm remembers of them.

    That is their mean and unbiased variance (k, C), in float32 at least. Only samples with a 1 in `mask` (k, b) count.
    """
    y = x.reshape(k, -1, *x.shape[1:])
    wide = y.float() if y.dtype == torch.bfloat16 else y
    axes = [axis for axis in range(1, y.ndim) if axis != 2]
    if mask is None:
        count = x.numel() // (k * x.shape[1])
        if count == 1:
            raise BadInput(LONELY)
        variance, mean = torch.var_mean(wide, axes, correction=0)
        return normalized(x, k, mean, variance, w, bias, eps), mean, variance * (count / (count - 1))
    shape = (k, -1, *[1] * (y.ndim - 2))
    each = mask.to(wide.dtype).view(shape)
    counts = each.sum(1).flatten(1) * (x.numel() // (len(x) * x.shape[1]))
    mean = (wide * each).sum(axes) / counts
    apart = wide - mean.view(k, 1, -1, *shape[3:])
    variance = (apart.square() * each).sum(axes) / counts
    return normalized(x, k, mean, variance, w, bias, eps), mean, variance * (counts / (counts - 1))


def after_batch(old: Tensor, new: Tensor, momentum: float) -> Tensor:
    """A running statistic (k, C) after a batch."""
    return torch.lerp(old, new.detach().to(old.dtype), momentum)


def group_norm(x: Tensor, k: int, w: Tensor | None, bias: Tensor | None, groups: int, eps: float) -> Tensor:
    """Each sample normalised by itself, then its row's scale and shift."""
    y = F.group_norm(x, groups, eps=eps)
    if w is None or bias is None:
        return y
    shape = (k, 1, -1, *[1] * (x.ndim - 2))
    return (y.reshape(k, -1, *x.shape[1:]) * w.view(shape) + bias.view(shape)).reshape(x.shape)


def layer_norm(x: Tensor, k: int, w: Tensor | None, bias: Tensor | None, shape: tuple[int, ...], eps: float) -> Tensor:
    """Each sample normalised by itself, then its row's scale and shift."""
    y = F.layer_norm(x, shape, eps=eps)
    if w is None:
        return y
    y = y.reshape(k, -1, *shape) * w[:, None]
    return (y if bias is None else y + bias[:, None]).reshape(x.shape)


def embedding(x: Tensor, k: int, w: Tensor, padding: int | None) -> Tensor:
    """Each row's own vectors for its samples' tokens; that of the padding is never trained."""
    first = torch.arange(k, device=x.device) * w.shape[1]
    places = x.reshape(k, -1) + first[:, None]
    y = F.embedding(places, w.reshape(-1, w.shape[2])).reshape(*x.shape, w.shape[2])
    return y if padding is None else torch.where((x == padding)[..., None], y.detach(), y)
