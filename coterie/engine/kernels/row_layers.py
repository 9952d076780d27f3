"""Layers of k models at once: samples of all rows are one batch (k·b, ...); a row's weights meet its own samples."""

import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.engine.kernels.conv import convolved, out_size
from coterie.engine.kernels.depthwise import row_depthwise
from coterie.engine.kernels.lstm import row_lstm
from coterie.engine.kernels.norm import row_norm
from coterie.engine.kernels.pool import pooled
from coterie.engine.kernels.trusted import CHECKS, right
from coterie.errors import BadInput

LARGEST_WINDOW = 8  # of those that are pooled by a kernel, which takes its places one by one and keeps one in a byte
UNFOLDED = 16  # filters for each pixel that they make, from where on a product with unfolded images is fastest on a CPU
LARGE = 200_000  # numbers of a row's unfolded images, from where on a CPU is faster row by row than with all unfolded
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
        return _one_row(x, w[0], None if bias is None else bias[0], stride, padding)
    places = out_size(x.shape[2], w.shape[3], stride, padding) * out_size(x.shape[3], w.shape[3], stride, padding)
    if not x.is_cuda and len(x) // k * places * w[0, 0].numel() >= LARGE:
        biases = [None] * k if bias is None else bias.unbind()
        each = zip(x.chunk(k), w.unbind(), biases, strict=True)
        return torch.cat([_one_row(images, own, shift, stride, padding) for images, own, shift in each])
    pixels = x.permute(0, 2, 3, 1).contiguous()  # no copy where the layer before left channels last
    y = convolved(pixels.view(k, -1, *pixels.shape[1:]), w, stride, padding).flatten(0, 1).permute(0, 3, 1, 2)
    return y if bias is None else shifted(y, k, bias)


def _one_row(x: Tensor, w: Tensor, bias: Tensor | None, stride: int, padding: int) -> Tensor:
    """The same with the filters of one row. On a CPU few pixels for many filters cost what moving the filters costs."""
    kernel, filters = w.shape[2], len(w)
    high, wide = (out_size(size, kernel, stride, padding) for size in x.shape[2:])
    pixels = len(x) * high * wide
    if x.is_cuda or pixels > filters:
        return F.conv2d(_channels_last(x), w, bias, stride, padding)
    if UNFOLDED * pixels > filters:
        return F.conv2d(x.contiguous(), w, bias, stride, padding)
    windows = F.unfold(x, kernel, 1, padding, stride).transpose(1, 2).flatten(0, 1)
    y = F.linear(windows, w.flatten(1), bias)
    return y.view(len(x), high, wide, filters).permute(0, 3, 1, 2)


def shifted(x: Tensor, k: int, bias: Tensor) -> Tensor:
    """x (k·b, C, H, W) with each row's bias (k, C) added."""
    return (x.view(k, -1, *x.shape[1:]) + bias[:, None, :, None, None]).flatten(0, 1)


def max_pool(
    x: Tensor, size: int | tuple[int, int], stride: int | tuple[int, int], padding: int, dilation: int, ceil: bool
) -> Tensor:
    """The largest pixel of each window of x (k·b, C, H, W)."""
    apart = isinstance(size, int) and size <= LARGEST_WINDOW and size == stride
    if apart and (padding, dilation, ceil) == (0, 1, False) and right("max_pool", x):
        y: Tensor = pooled(x.permute(0, 2, 3, 1), size)[0]
        return y.permute(0, 3, 1, 2)
    return F.max_pool2d(x, size, stride, padding, dilation, ceil)


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
    if not right("depthwise", x):
        return grouped_conv(x, k, w, bias, (stride, stride), (padding, padding), (1, 1), x.shape[1])
    pixels = x.permute(0, 2, 3, 1).contiguous()
    filters = w[:, :, 0].permute(0, 2, 3, 1).flatten(1, 2)
    y: Tensor = row_depthwise(pixels.view(k, -1, *pixels.shape[1:]), filters, w.shape[3], stride, padding)
    y = y.flatten(0, 1).permute(0, 3, 1, 2)
    return y if bias is None else shifted(y, k, bias)


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
    x: Tensor, k: int, w: Tensor | None, bias: Tensor | None, eps: float, mask: Tensor | None, top: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """x normalised by each row's own samples and pixels, and what BatchNorm remembers of them.

    That is their mean and unbiased variance (k, C), in float32 at least. Only samples with a 1 in `mask` (k, b) count.
    With a `top` it is cut off below 0 and above that, as ReLU and ReLU6 do.
    """
    if mask is None and w is not None and bias is not None and right("batch_norm", x):
        lines = x.movedim(1, -1)
        count = lines.numel() // (k * x.shape[1])
        if count == 1:
            raise BadInput(LONELY)
        y, mean, variance = row_norm(lines.reshape(k, count, -1), w, bias, eps, top)
        return y.view(lines.shape).movedim(-1, 1), mean, variance * (count / (count - 1))
    y, mean, variance = _by_batch(x, k, w, bias, eps, mask)
    return y if top is None else F.hardtanh(y, 0.0, top), mean, variance


def _by_batch(
    x: Tensor, k: int, w: Tensor | None, bias: Tensor | None, eps: float, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
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


def lstm(x: Tensor, k: int, weights: list[list[Tensor | None]], keep: bool) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """x (k·b, t, in) through layers of units, each with weights (k, 4h, in), (k, 4h, h) and maybe two biases (k, 4h).

    As `nn.LSTM` gives it: the states (k·b, t, h), and of every layer the last state and memory (layers, k·b, h). These
    memories have no gradient; unless it is to be asked for one, nothing is kept (`keep`).
    """
    last = []
    for by_input, by_state, *biases in weights:
        assert by_input is not None and by_state is not None
        driven = torch.bmm(x.reshape(k, -1, x.shape[2]), by_input.transpose(1, 2))
        if biases:
            driven = driven + sum(bias for bias in biases if bias is not None)[:, None]  # type: ignore[index]
        states, memories, _ = row_lstm(driven.view(k, -1, x.shape[1], driven.shape[2]), by_state, keep)
        x = states.flatten(0, 1)
        last.append((x[:, -1], memories[:, :, -1].flatten(0, 1).to(x.dtype)))
    state, memory = (torch.stack(part) for part in zip(*last, strict=True))
    return x, (state, memory)


def _lstm_states(driven: Tensor, w: Tensor) -> Tensor:
    states: Tensor = row_lstm(driven, w, True)[0]
    return states


# Of each kernel: how it is reached, what it must equal, and shapes of what both are given.
CHECKS |= {
    "batch_norm": (
        lambda x, w, bias: batch_norm(x, 2, w, bias, 1e-5, None, 6.0)[0],
        lambda x, w, bias: F.hardtanh(_by_batch(x, 2, w, bias, 1e-5, None)[0], 0.0, 6.0),
        ((2 * 20, 48, 9, 9), (2, 48), (2, 48)),
    ),
    "max_pool": (lambda x: max_pool(x, 2, 2, 0, 1, False), lambda x: F.max_pool2d(x, 2), ((6, 48, 9, 8),)),
    "depthwise": (
        lambda x, w: depthwise(x, 2, w, None, 1, 1),
        lambda x, w: grouped_conv(x, 2, w, None, (1, 1), (1, 1), (1, 1), 48),
        ((2 * 5, 48, 9, 9), (2, 48, 1, 3, 3)),
    ),
    "lstm": (_lstm_states, _lstm_states, ((2, 16, 5, 64), (2, 64, 16))),  # float64 runs without the kernel
}
