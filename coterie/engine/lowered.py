"""A module as operations on all rows at once, without a transformation in between.

The module is traced once. What it does to a sample without weights it can do to all samples of all rows as one large
batch; only layers with weights need to know where one row's samples end. That leaves plain batched products, which run
near the hardware's limit and which a compiler can fuse. A module with anything not listed here is not lowered, and runs
under `vmap` instead (`rows.Model` compares the two before it trusts this one).
"""

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from coterie.engine.conv import row_conv

# Layers that treat every sample alike and know no weights.
SAMPLEWISE: tuple[type[nn.Module], ...] = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Hardtanh, nn.Hardswish,
    nn.Softplus, nn.Identity, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Flatten,
)  # fmt: skip
FUNCTIONS: set[Callable[..., Any]] = {
    operator.add, operator.iadd, operator.mul, torch.add, torch.mul, torch.relu, torch.tanh, torch.sigmoid,
    torch.flatten, F.relu, F.gelu, F.silu, F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d, operator.getitem,
}  # fmt: skip
METHODS = {"relu", "tanh", "sigmoid", "flatten", "view", "reshape", "size", "contiguous"}


class Rows:
    """What a layer with weights needs to know: its row's weights, and how many rows there are."""

    def __init__(self, tensors: Mapping[str, Tensor], k: int, training: bool) -> None:
        self.tensors, self.k, self.training = tensors, k, training
        self.moved: dict[str, Tensor] = {}  # buffers that training changed


Layer = Callable[[Any, str, Tensor, Rows], Tensor]


def _linear(layer: nn.Linear, name: str, x: Tensor, rows: Rows) -> Tensor:
    w = rows.tensors[f"{name}.weight"]
    samples = x.reshape(rows.k, -1, layer.in_features)
    if layer.bias is None:
        y = torch.bmm(samples, w.transpose(1, 2))
    else:
        y = torch.baddbmm(rows.tensors[f"{name}.bias"][:, None], samples, w.transpose(1, 2))
    return y.reshape(*x.shape[:-1], layer.out_features)


def _conv(layer: nn.Conv2d, name: str, x: Tensor, rows: Rows) -> Tensor:
    w = rows.tensors[f"{name}.weight"]  # (k, N, C / groups, KH, KW)
    bias = rows.tensors.get(f"{name}.bias")
    padding = _padding(layer)
    if rows.k == 1:
        return F.conv2d(x, w[0], None if bias is None else bias[0], layer.stride, padding, layer.dilation, layer.groups)
    if not _plain(layer):
        # Rows become groups of one convolution over (b, k·C, H, W).
        images = x.reshape(rows.k, -1, *x.shape[1:]).transpose(0, 1).flatten(1, 2)
        flat = None if bias is None else bias.reshape(-1)
        y = F.conv2d(images, w.flatten(0, 1), flat, layer.stride, padding, layer.dilation, layer.groups * rows.k)
        return y.unflatten(1, (rows.k, -1)).transpose(0, 1).flatten(0, 1)
    pixels = x.permute(0, 2, 3, 1).contiguous()  # no copy where the layer before left channels last
    pixels = pixels.view(rows.k, -1, *pixels.shape[1:])
    filters = w.permute(0, 3, 4, 2, 1).reshape(rows.k, -1, layer.out_channels)
    y = row_conv(pixels, filters, layer.kernel_size[0], layer.stride[0], padding[0])
    if bias is not None:
        y = y + bias[:, None, None, None]
    return y.flatten(0, 1).permute(0, 3, 1, 2)


def _padding(layer: nn.Conv2d) -> tuple[int, int]:
    if layer.padding == "valid":
        return 0, 0
    if isinstance(layer.padding, str):
        return (layer.kernel_size[0] - 1) // 2, (layer.kernel_size[1] - 1) // 2
    return layer.padding  # type: ignore[return-value]


def _plain(layer: nn.Conv2d) -> bool:
    square = all(len(set(t)) == 1 for t in (layer.kernel_size, layer.stride, _padding(layer)))
    return square and layer.groups == 1 and layer.dilation == (1, 1)


def _batch_norm(layer: nn.BatchNorm2d, name: str, x: Tensor, rows: Rows) -> Tensor:
    # (k·b, C, ...) -> (k, b, C, ...); statistics of a row over its own samples and pixels, in float32 at least
    y = x.reshape(rows.k, -1, *x.shape[1:])
    over = [axis for axis in range(1, y.ndim) if axis != 2]
    shape = (rows.k, 1, -1, *[1] * (y.ndim - 3))
    wide = y.float() if y.dtype in (torch.bfloat16, torch.float16) else y
    if rows.training or not layer.track_running_stats:
        variance, mean = torch.var_mean(wide, over, correction=0)
        if layer.track_running_stats:
            count = wide.numel() // mean.numel()
            for key, value in (("running_mean", mean), ("running_var", variance * count / (count - 1))):
                old = rows.tensors[f"{name}.{key}"]
                rows.moved[f"{name}.{key}"] = torch.lerp(old, value.detach().to(old.dtype), layer.momentum or 0.0)
    else:
        mean, variance = (rows.tensors[f"{name}.{key}"].to(wide.dtype) for key in ("running_mean", "running_var"))
    scale = torch.rsqrt(variance + layer.eps)
    if layer.affine:
        scale = scale * rows.tensors[f"{name}.weight"]
    shift = -mean * scale
    if layer.affine:
        shift = shift + rows.tensors[f"{name}.bias"]
    return (wide * scale.view(shape) + shift.view(shape)).to(x.dtype).reshape(x.shape)


def _group_norm(layer: nn.GroupNorm, name: str, x: Tensor, rows: Rows) -> Tensor:
    y = F.group_norm(x, layer.num_groups, eps=layer.eps)
    if not layer.affine:
        return y
    shape = (rows.k, 1, -1, *[1] * (x.ndim - 2))
    w, b = (rows.tensors[f"{name}.{key}"].view(shape) for key in ("weight", "bias"))
    return (y.reshape(rows.k, -1, *x.shape[1:]) * w + b).reshape(x.shape)


def _layer_norm(layer: nn.LayerNorm, name: str, x: Tensor, rows: Rows) -> Tensor:
    y = F.layer_norm(x, layer.normalized_shape, eps=layer.eps)
    inner = len(layer.normalized_shape)
    y = y.reshape(rows.k, -1, *x.shape[x.ndim - inner :])
    if layer.elementwise_affine:
        y = y * rows.tensors[f"{name}.weight"][:, None]
        if layer.bias is not None:
            y = y + rows.tensors[f"{name}.bias"][:, None]
    return y.reshape(x.shape)


def _embedding(layer: nn.Embedding, name: str, x: Tensor, rows: Rows) -> Tensor:
    table = rows.tensors[f"{name}.weight"].reshape(-1, layer.embedding_dim)  # (k·V, E)
    first = torch.arange(rows.k, device=x.device) * layer.num_embeddings
    places = x.reshape(rows.k, -1) + first[:, None]
    return F.embedding(places, table).reshape(*x.shape, layer.embedding_dim)


LAYERS: dict[type[nn.Module], Layer] = {
    nn.Linear: _linear,
    nn.Conv2d: _conv,
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.GroupNorm: _group_norm,
    nn.LayerNorm: _layer_norm,
    nn.Embedding: _embedding,
}


class Lowered:
    """A traced module, ready for rows."""

    def __init__(self, graph: fx.Graph, layers: Mapping[str, nn.Module]) -> None:
        self.nodes, self.layers = list(graph.nodes), layers

    def __call__(self, tensors: Mapping[str, Tensor], x: Tensor, training: bool) -> tuple[Tensor, dict[str, Tensor]]:
        """Outputs (k, b, ...) of rows with these tensors (k, ...) on x (k, b, ...), and the buffers training changed."""
        rows = Rows(tensors, len(x), training)
        values: dict[str, Any] = {}

        def of(argument: Any) -> Any:
            return fx.map_arg(argument, lambda node: values[node.name])

        for node in self.nodes:
            if node.op == "placeholder":
                values[node.name] = x.flatten(0, 1)
            elif node.op == "call_module":
                layer, (given,) = self.layers[node.target], of(node.args)
                known = LAYERS.get(type(layer))
                values[node.name] = known(layer, node.target, given, rows) if known else layer(given)
            elif node.op == "call_function":
                values[node.name] = node.target(*of(node.args), **of(node.kwargs))
            elif node.op == "call_method":
                itself, *others = of(node.args)
                values[node.name] = getattr(itself, node.target)(*others, **of(node.kwargs))
            else:
                out = of(node.args[0])
        return out.unflatten(0, (rows.k, -1)), rows.moved


def lower(module: nn.Module) -> Lowered | None:
    """The module over rows, or None where something in it is not known here."""
    try:
        graph = fx.Tracer().trace(module)
    except Exception:  # a user's module may do anything while it is traced; whatever fails, `vmap` will do
        return None
    layers = dict(module.named_modules())
    return Lowered(graph, layers) if all(_known(node, layers) for node in graph.nodes) else None


def _known(node: fx.Node, layers: Mapping[str, nn.Module]) -> bool:
    if node.op == "call_function":
        return node.target in FUNCTIONS
    if node.op == "call_method":
        return node.target in METHODS
    if node.op != "call_module":
        return node.op in ("placeholder", "output")
    layer = layers[str(node.target)]
    if layer._forward_hooks or layer._forward_pre_hooks or len(node.args) != 1 or node.kwargs:
        return False
    if isinstance(layer, nn.Conv2d) and (layer.padding_mode != "zeros" or not _symmetric(layer)):
        return False
    if isinstance(layer, nn.Embedding) and (layer.padding_idx is not None or layer.max_norm is not None):
        return False
    return type(layer) in LAYERS or type(layer) in SAMPLEWISE


def _symmetric(layer: nn.Conv2d) -> bool:
    """`padding="same"` pads both sides alike only for odd kernels without dilation."""
    return layer.padding != "same" or (layer.dilation == (1, 1) and all(size % 2 for size in layer.kernel_size))
