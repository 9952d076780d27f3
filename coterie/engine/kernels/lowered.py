"""A module rewritten as operations on all rows at once, without a transformation in between.

The module is traced once. What it does to a sample without weights it can do to all samples of all rows as one large
batch; only layers with weights need to know where one row's samples end (`row_layers`). That leaves plain batched
products, which run near the hardware's limit and which a compiler can fuse. A module with anything not listed here is
not rewritten; one that is, is held against the module itself before it is trusted (`examine`).
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from coterie.engine.kernels import row_layers
from coterie.engine.kernels.dropout import row_dropout
from coterie.engine.kernels.fused import fuse
from coterie.engine.kernels.prefix import Rewritten

# What treats every sample alike and knows no weights, or those that are frozen.
SAMPLEWISE: tuple[type[nn.Module], ...] = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Hardtanh, nn.Hardswish,
    nn.Softplus, nn.Identity, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Flatten,
)  # fmt: skip
FUNCTIONS: set[Any] = {
    operator.add, operator.iadd, operator.mul, torch.add, torch.mul, torch.relu, torch.tanh, torch.sigmoid,
    torch.flatten, F.relu, F.gelu, F.silu, F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d, operator.getitem,
    torch.stack, torch.zeros_like, F.linear, F.conv2d,
    F.scaled_dot_product_attention,
}  # fmt: skip
METHODS = {
    "relu", "tanh", "sigmoid", "flatten", "view", "reshape", "size", "contiguous", "chunk", "transpose", "unflatten",
}  # fmt: skip
# Operations. A longer program, as a recurrent layer step by step or the fifty convolutions of MobileNet, is run as it
# is: compiling it would take minutes, and again for every number of rows.
LONGEST = 500
# What is worth compiling of such a program by itself: one for all its layers, and all numbers of rows.
PIECES = (row_layers.normalized,)
BATCH_NORMS = (nn.modules.batchnorm._BatchNorm,)
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)  # the first drops numbers, the others channels


class Unknown(Exception):
    """Something that cannot be rewritten."""


class Tracer(fx.Tracer):
    """Notes what the head of a module is given."""

    def __init__(self, head: nn.Module | None) -> None:
        super().__init__()
        self.head = head
        self.features: fx.Node | None = None

    def call_module(self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Every call of a layer passes here."""
        if m is self.head:
            self.features = args[0].node
        return super().call_module(m, forward, args, kwargs)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """An LSTM layer is one thing for all its steps, unless something was put into it."""
        plain = hasattr(m, "LSTM_WEIGHTS") and all(type(part) is nn.Linear for part in m.children())
        own_head = any(part is self.head for part in m.children())
        return (plain and not own_head) or super().is_leaf_module(m, module_qualified_name)


class Rewriter:
    """Writes the graph of a module anew, for rows."""

    def __init__(self, module: nn.Module, in_rows: set[str], training: bool, head: str | None) -> None:
        module.train(training)
        self.layers, self.training = dict(module.named_modules()), training
        self.names = _first_names(module)
        self.in_rows = in_rows
        self.graph = fx.Graph()
        names = ("tensors", "x", "k", "keys", "mask")
        self.tensors, x, self.k, self.keys, self.mask = (self.graph.placeholder(name) for name in names)
        self.drawn = 0
        self.moved: dict[str, fx.Node] = {}
        made: dict[fx.Node, fx.Node] = {}
        self.fixed = {x}  # what does not depend on a row but by its samples
        tracer = Tracer(None if head is None else module.get_submodule(head))
        for node in tracer.trace(module).nodes:
            alike = self.fixed.issuperset(made[n] for n in node.all_input_nodes)
            arguments = fx.map_arg((node.args, node.kwargs), lambda n: made[n])
            if node.op == "placeholder":
                if len(made):
                    raise Unknown
                made[node] = self.call(torch.flatten, x, 0, 1)
                tracer.features = node if head == "" else tracer.features
            elif node.op == "call_module" and self.frozen(node.target):
                made[node] = self.graph.call_module(node.target, *arguments)
            elif node.op == "call_module":
                made[node] = self.layer(node.target, *arguments[0], **arguments[1])
            elif node.op == "get_attr" and node.target in self.names:
                first = self.names[node.target]
                made[node] = self.each(first, x) if first in in_rows else self.graph.get_attr(first)
            elif node.op == "call_function" and (alike or node.target in FUNCTIONS):
                made[node] = self.graph.call_function(node.target, *arguments)
            elif node.op == "call_method" and (alike or node.target in METHODS):
                made[node] = self.graph.call_method(node.target, *arguments)
            elif node.op == "output" and isinstance(arguments[0][0], fx.Node):
                self.graph.output((arguments[0][0], self.moved))
                break
            else:
                raise Unknown
            if self.fixed.issuperset(made[node].all_input_nodes):
                self.fixed.add(made[node])
        features = None if tracer.features is None else made[tracer.features]
        replaced = fuse(self.graph, self.layers, self.fixed, features)
        features = None if features is None else replaced.get(features, features)
        program = fx.GraphModule(module, self.graph)
        self.rewritten = Rewritten(program, features, bool(self.mask.users), frozenset(self.fixed))

    def call(self, function: Callable[..., Any], *arguments: Any) -> fx.Node:
        """A node that calls a function."""
        return self.graph.call_function(function, arguments)

    def tensor(self, name: str) -> fx.Node:
        """A node that takes all rows' weights or buffers of that name: (k, ...)."""
        if name not in self.names:
            raise Unknown  # computed from others
        first = self.names[name]
        if first not in self.in_rows:
            return self.call(row_layers.of_all, self.graph.get_attr(first), self.k)
        return self.call(operator.getitem, self.tensors, first)

    def each(self, name: str, x: fx.Node) -> fx.Node:
        """A row's parameter for each of its samples, which is right where it is added to them, or multiplied."""
        return self.call(row_layers.of_each, self.tensor(name), self.k, x)

    def frozen(self, name: str) -> bool:
        """Whether a layer does the same for all rows: its weights are in none, and nothing is drawn."""
        inside, prefix = list(self.layers[name].modules()), f"{name}."
        own = [first for each, first in self.names.items() if each.startswith(prefix)]
        draws = self.training and any(isinstance(layer, DROPOUTS) and layer.p for layer in inside)
        by_batch = any(isinstance(m, BATCH_NORMS) and (m.training or not m.track_running_stats) for m in inside)
        return bool(own) and not draws and not by_batch and self.in_rows.isdisjoint(own)

    def layer(self, name: str, x: fx.Node) -> fx.Node:
        """A layer of the module, over rows."""
        layer = self.layers[name]
        w, bias = (
            self.tensor(f"{name}.{key}") if getattr(layer, key, None) is not None else None
            for key in ("weight", "bias")
        )
        match layer:
            case nn.Linear():
                return self.call(row_layers.linear, x, self.k, w, bias)
            case nn.Conv2d():
                return self.conv(layer, x, w, bias)
            case nn.BatchNorm1d() | nn.BatchNorm2d():
                return self.batch_norm(layer, name, x, w, bias)
            case nn.GroupNorm():
                return self.call(row_layers.group_norm, x, self.k, w, bias, layer.num_groups, layer.eps)
            case nn.LayerNorm():
                return self.call(row_layers.layer_norm, x, self.k, w, bias, layer.normalized_shape, layer.eps)
            case nn.Embedding() if not layer.scale_grad_by_freq:
                return self.call(row_layers.embedding, x, self.k, w, layer.padding_idx)
            case _ if isinstance(layer, DROPOUTS):
                return self.dropout(layer, x)
            case nn.Module(LSTM_WEIGHTS=tuple(weights)):
                return self.call(operator.getitem, self.lstm(x, name, [weights]), 0)
            case nn.LSTM() if layer.batch_first and not (layer.bidirectional or layer.proj_size or layer.dropout):
                return self.lstm(x, name, layer._all_weights)
            case _ if type(layer) in SAMPLEWISE:
                return self.graph.call_module(name, (x,))
        raise Unknown

    def conv(self, layer: nn.Conv2d, x: fx.Node, w: fx.Node | None, bias: fx.Node | None) -> fx.Node:
        """A convolution: as a matrix product where filters are square and plain, grouped otherwise."""
        same = layer.padding == "same"
        odd = all(size % 2 for size in layer.kernel_size) and layer.dilation == (1, 1)
        if layer.padding_mode != "zeros" or (same and not odd):
            raise Unknown
        padding = tuple((size - 1) // 2 for size in layer.kernel_size) if same else layer.padding
        padding = (0, 0) if padding == "valid" else padding
        square = all(len(set(t)) == 1 for t in (layer.kernel_size, layer.stride, padding))
        plain = square and layer.dilation == (1, 1)
        if plain and layer.groups == 1:
            return self.call(row_layers.conv, x, self.k, w, bias, layer.stride[0], padding[0])
        if plain and layer.groups == layer.in_channels == layer.out_channels:
            return self.call(row_layers.depthwise, x, self.k, w, bias, layer.stride[0], padding[0])
        how = (layer.stride, padding, layer.dilation, layer.groups)
        return self.call(row_layers.grouped_conv, x, self.k, w, bias, *how)

    def lstm(self, x: fx.Node, name: str, layers: Sequence[Sequence[str]]) -> fx.Node:
        """LSTM layers with tensors of these names."""
        return self.call(
            row_layers.lstm,
            x,
            self.k,
            [[self.tensor(f"{name}.{key}") for key in each] for each in layers],
            self.training,
        )

    def dropout(self, layer: nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d, x: fx.Node) -> fx.Node:
        """Masks keyed as `KeyedDropout` keys them: by the order of call."""
        if not self.training or layer.p == 0:
            return x
        self.drawn += 1
        return self.call(row_dropout, x, self.k, self.keys, self.drawn, layer.p, not isinstance(layer, nn.Dropout))

    def batch_norm(
        self, layer: nn.BatchNorm1d | nn.BatchNorm2d, name: str, x: fx.Node, w: fx.Node | None, bias: fx.Node | None
    ) -> fx.Node:
        """Normalisation by the batch, whose running statistics move; by these when not training."""
        tracks, running = layer.track_running_stats, [f"{name}.{key}" for key in ("running_mean", "running_var")]
        if tracks and not layer.training:
            return self.call(
                row_layers.normalized, x, self.k, *(self.tensor(key) for key in running), w, bias, layer.eps
            )
        found = self.call(row_layers.batch_norm, x, self.k, w, bias, layer.eps, self.mask, None)
        y, *statistics = (self.call(operator.getitem, found, i) for i in range(3))
        if tracks:
            for key, value in zip(running, statistics, strict=True):
                self.moved[key] = self.call(row_layers.after_batch, self.tensor(key), value, layer.momentum)
        return y


class Lowered:
    """A module rewritten for rows."""

    def __init__(self, evaluate: Rewritten, train: Rewritten) -> None:
        self.evaluate, self.train = evaluate.module, train.module
        self._both = {False: evaluate, True: train}
        self._with_features: dict[bool, fx.GraphModule] = {}  # made when they are asked for
        self.takes_padding = {training: each.takes_padding for training, each in self._both.items()}
        self.long = any(len(m.graph.nodes) > LONGEST for m in (self.evaluate, self.train))

    def functions(self) -> set[str]:
        """The names of all that it calls."""
        nodes = [*self.evaluate.graph.nodes, *self.train.graph.nodes]
        return {getattr(node.target, "__name__", "") for node in nodes}

    def split(self) -> "tuple[fx.GraphModule, Lowered] | None":
        """What is frozen before anything that trains, and the rest; None where training would do it otherwise."""
        evaluate, train = (each.split() for each in self._both.values())
        if evaluate is None or train is None or evaluate[0].code != train[0].code:
            return None
        return evaluate[0], Lowered(evaluate[1], train[1])

    def compile_pieces(self) -> None:
        """Compile what is called again and again instead of the whole."""
        compiled = {piece: torch.compile(piece, dynamic=True) for piece in PIECES}
        for module in (self.evaluate, self.train):
            for node in module.graph.nodes:
                node.target = compiled.get(node.target, node.target)
            module.recompile()

    def __call__(
        self, tensors: Mapping[str, Tensor], x: Tensor, keys: Tensor, training: bool, mask: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Outputs (k, b, ...) of rows with these tensors (k, ...) on x (k, b, ...), and the buffers training moved.

        `mask` (k, b) tells samples from what fills a batch; None: all are.
        """
        # By `forward`: called, a program that fails prints much, and where another will do nobody need read it.
        out, moved = (self.train if training else self.evaluate).forward(tensors, x, len(x), keys, mask)
        return _by_row(out, len(x)), moved

    def with_features(
        self, tensors: Mapping[str, Tensor], x: Tensor, keys: Tensor, training: bool, mask: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """The same, and what the head is given (k, b, ...)."""
        if training not in self._with_features:
            node = self._both[training].features
            assert node is not None
            self._with_features[training] = _with_value(self.train if training else self.evaluate, node)
        out, moved, features = self._with_features[training](tensors, x, len(x), keys, mask)
        return _by_row(out, len(x)), moved, _by_row(features, len(x))


def lower(module: nn.Module, in_rows: set[str], head: str | None = None) -> Lowered | None:
    """The module over rows, or None where something in it is not known here; it is traced, so give a copy.

    What is not `in_rows` is the module's own, for all of them.
    """
    if any(_hooks(layer) for layer in module.modules()):
        return None
    try:
        return Lowered(*(Rewriter(module, in_rows, training, head).rewritten for training in (False, True)))
    except Exception:  # a user's module may do anything while it is traced; whatever fails, another way will do
        return None


def _with_value(module: fx.GraphModule, node: fx.Node) -> fx.GraphModule:
    """The same program with the value of a node beside its outputs."""
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    out, moved = graph.graph_copy(module.graph, copies)  # type: ignore[misc]
    with graph.inserting_after(copies[node]):
        value = graph.call_function(torch.clone, (copies[node],))  # which nothing after it changes in place
    graph.output((out, moved, value))
    return fx.GraphModule(module, graph)


def _by_row(t: Tensor, k: int) -> Tensor:
    return t.reshape(k, -1, *t.shape[1:])


def _hooks(layer: nn.Module) -> bool:
    return any((layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks))


def _first_names(module: nn.Module) -> dict[str, str]:
    """Every name of a parameter or buffer, and the first of its names, by which a row has it (tied weights)."""
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    first: dict[int, str] = {}
    return {name: first.setdefault(id(tensor), name) for name, tensor in named}
