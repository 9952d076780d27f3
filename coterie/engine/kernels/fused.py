"""Layers of a rewritten module put together, so that fewer passes go over all samples.

A ReLU after BatchNorm becomes a part of it. Max-pooling goes before the ReLU and the bias of a convolution, which
changes nothing but that these see a quarter of the pixels.
"""

import operator
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from coterie.engine.kernels import row_layers

BIAS = 3  # the place of a convolution's
TOP = 6  # the place of BatchNorm's


def fuse(
    graph: fx.Graph, layers: Mapping[str, nn.Module], untouched: Collection[fx.Node], seen: fx.Node | None
) -> dict[fx.Node, fx.Node]:
    """Change a program of rows in place; what was taken out of it, and what has the same value now.

    `seen` is a node whose value is asked for besides.
    """
    replaced: dict[fx.Node, Any] = {}
    for node in list(graph.nodes):
        if node in untouched or not _follows(node):
            continue
        layer = layers[str(node.target)] if node.op == "call_module" else None
        if (top := _top(node, layer)) is not None and (norm := _normalised(node.args[0], seen)) is not None:
            norm.update_arg(TOP, top)
            replaced[node] = node.args[0]
        elif type(layer) is nn.MaxPool2d and not layer.return_indices:
            replaced[node] = _pooled(graph, node, layer, layers, seen)
        else:
            continue
        node.replace_all_uses_with(replaced[node])
        graph.erase_node(node)
    return replaced


def _follows(node: fx.Node) -> bool:
    """Whether a node has its input where one is looked for."""
    return bool(node.args) and isinstance(node.args[0], fx.Node)


def _top(node: fx.Node, layer: nn.Module | None) -> float | None:
    """Where a node cuts off what is above, if it is a ReLU: nowhere, or at 6."""
    if type(layer) is nn.ReLU6:
        return 6.0
    plain = type(layer) is nn.ReLU or (node.op, node.target) == ("call_method", "relu")
    return torch.inf if plain or (node.op == "call_function" and node.target in (torch.relu, F.relu)) else None


def _passed_on(node: fx.Node, seen: fx.Node | None) -> bool:
    """Whether one other node alone takes its value."""
    return len(node.users) == 1 and node is not seen


def _normalised(node: Any, seen: fx.Node | None) -> fx.Node | None:
    """The BatchNorm whose output a node is, if nothing else sees it."""
    if node.target is not operator.getitem or not _passed_on(node, seen):
        return None
    norm: Any = node.args[0]
    ours = norm.target is row_layers.batch_norm and node.args[1] == 0 and norm.args[TOP] is None
    return norm if ours else None


def _pooled(
    graph: fx.Graph, pool: fx.Node, layer: nn.MaxPool2d, layers: Mapping[str, nn.Module], seen: fx.Node | None
) -> Any:
    """The same value by pooling first."""
    given: Any = pool.args[0]
    cut = _follows(given) and _top(given, layers.get(str(given.target))) is not None
    relu = given if cut and _passed_on(given, seen) else None
    conv = given.args[0] if relu is not None else given
    with graph.inserting_before(pool):
        if conv.target is not row_layers.conv or not _passed_on(conv, seen):
            return _max_pool(graph, given, layer)
        y, bias = _max_pool(graph, conv, layer), conv.args[BIAS]
        if bias is not None:
            conv.update_arg(BIAS, None)
            y = graph.call_function(row_layers.shifted, (y, conv.args[1], bias))
    if relu is None:
        return y
    relu.args = (y,)
    y.append(relu)
    return relu


def _max_pool(graph: fx.Graph, x: fx.Node, layer: nn.MaxPool2d) -> fx.Node:
    how = (layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.ceil_mode)
    return graph.call_function(row_layers.max_pool, (x, *how))
