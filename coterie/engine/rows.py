"""A model is a row: any `nn.Module` as a function of flat vectors, k of them evaluated at once."""

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.engine.called import BeforeHead, Called, HeadAlone
from coterie.engine.examine import Found, Way, examine
from coterie.engine.head import Head, check_name
from coterie.engine.kernels.lowered import Lowered, lower
from coterie.engine.kernels.shapes import Shapes
from coterie.engine.kernels.trusted import hold
from coterie.engine.layout import Columns, Layout, cast
from coterie.engine.reference import not_always, refuse_parts
from coterie.errors import BadInput
from coterie.keys import generator
from coterie.models.copied import copied
from coterie.models.parts import Blueprint, last_layer, named
from coterie.models.weights import checksum

SampleLosses = Callable[[Tensor, Tensor | None], Tensor]  # outputs (k, b, ...) and features (k, b, ...) to (k, b)
Program = Callable[..., tuple[Tensor, dict[str, Tensor]]]
APART = 0.01  # of a tensor's spread: how far starts of one pretrained model are from it, for equal ones never part
COMPARED = 8  # samples from which those are made on which a module is examined


class Model:
    """An `nn.Module` as a function of rows."""

    sliced = False  # whether a server sees some of its columns alone

    def __init__(
        self,
        build: Callable[[], nn.Module] | nn.Module | Blueprint,
        classes: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        precision: str = "float32",
        unit: float = 1.0,
        head: str | None = None,
        sample: tuple[int, ...] | None = None,
    ) -> None:
        """`build` makes the module (a class will do); `classes` is 0 for regression.

        Rows are always `dtype`; `precision` is that of the arithmetic on them: float32, tf32 or bf16. `unit` is what a
        target of 1 is in the unit that people measure in: targets are standardised, errors keep their unit. `head`
        names the layer that is the head, where the last layer with weights is not. `sample` is the shape of a sample,
        for who has none to show and must know the head: a server.
        """
        blueprint = build if isinstance(build, Blueprint) else Blueprint(build)
        if isinstance(blueprint.make, nn.Module):
            refuse_parts(blueprint.make)  # some of what is refused could not be copied
            blueprint = replace(blueprint, make=copied(blueprint.make))
        self._build = blueprint
        head = blueprint.parts.head if head is None else head
        made = self._built(0, "base")
        refuse_parts(made)
        if head is not None:
            check_name(made, head)
        self.classes, self.device, self.dtype, self.unit = classes, torch.device(device), dtype, unit
        self.layout = Layout(made)
        self.module = cast(made, self.device, dtype).requires_grad_(False)
        for layer in self.module.modules():
            if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
                layer.sparse = False  # the same numbers, and the columns of a row are all there
        self.half = precision == "bf16"
        self._shapes = Shapes()
        self._given_head, self._sample = head, sample
        # What `examine` finds out
        self.found: Found | None = None
        self._way: Way | None = None
        self._fused: Program | None = None
        self._changes_input = False
        self.draws = True  # masks of dropout
        self.couples_samples = False  # in training: nothing may fill a batch unless the model `takes_padding`
        self.couples_evaluation = False
        self.still: Tensor | None = None  # (d,) which columns no gradient ever reaches; None: all train
        self.output: tuple[int, ...] = ()  # its shape for a sample
        self._head: Head | None = None
        self.prefix: nn.Module | None = None  # what is frozen before anything that trains: samples (n, ...) in and out
        self.rest: Model | None = None  # the model of what that gives

    @property
    def width(self) -> int:
        """d, the length of a row."""
        return self.layout.width

    @property
    def way(self) -> str:
        """How rows are evaluated: rewritten as one, under vmap, or one by one."""
        if isinstance(self._way, Called):
            return "vmap" if self._way.vmapped else "one by one"
        return "rewritten" if self._way is not None else ""

    @property
    def head(self) -> str:
        """The name of the head: the given one, or the last layer with weights to run ("" where it is the module)."""
        return self._given_head if self._given_head is not None else self._known_head().name

    def columns(self, *patterns: str, empty: bool = False) -> Columns:
        """The columns of parameters and buffers by name, where `*` stands for anything and a layer for all in it.

        The words `head`, `body` (all but it) and `norm` (layers that normalise, by their type) name parts of any model.
        A pattern that names nothing is refused, unless the columns may be `empty`.
        """
        return self.layout.columns({name for p in patterns for name in self._trained(p, empty)})

    def _trained(self, pattern: str, empty: bool) -> set[str]:
        """The columns of a row that a pattern names."""
        found = self.layout.names & named(self.module, pattern, lambda: self.head, empty)
        if not found and not empty:
            raise BadInput(f"all that is named '{pattern}' in the model is frozen; name a part that trains")
        return found

    @property
    def frozen(self) -> dict[str, Tensor]:
        """What is in no row because it never changes, by name: one for all silos."""
        real = {n: t for n, t in self._own.items() if t.is_floating_point() and t.numel()}
        return {n: t for n, t in real.items() if n not in self.layout.names}

    @cached_property
    def base(self) -> dict[str, Tensor]:
        """What is frozen of a module's `state_dict`, where tied weights have all their names."""
        frozen = {id(t) for t in self.frozen.values()}
        return {name: t for name, t in self.module.state_dict(keep_vars=True).items() if id(t) in frozen}

    @cached_property
    def base_checksum(self) -> str:
        """The SHA-256 of that, by which parties know that they train on the same; "" where nothing is frozen."""
        return checksum(self.base)

    @property
    def features_shape(self) -> tuple[int, ...]:
        """The shape of what the head is given for a sample."""
        return self._known_head().features

    def _known_head(self) -> Head:
        if self._way is None and self._sample is not None:
            self._examine_made(self._sample)
        if self._way is None:
            raise BadInput("which layer is the model's head is known once it has seen samples; probe it with some")
        if self._head is None:
            raise BadInput(
                "the model's output is not that of one last layer with weights, so which one is its head is not known; "
                'name it: [model] head = "…"'
            )
        return self._head

    def _examine_made(self, shape: tuple[int, ...]) -> None:
        """Examine the module on samples made of numbers or, where it cannot take those, of tokens."""
        made = torch.from_numpy(generator(0, "samples").normal(size=(COMPARED, *shape))).to(self.device, self.dtype)
        try:
            self.examine(made)
        except BadInput:
            self.examine(torch.zeros_like(made, dtype=torch.int64))

    @property
    def takes_padding(self) -> bool:
        """Whether batches of several sizes may be taken in one call, though samples see each other."""
        return isinstance(self._way, Lowered)

    @property
    def thread_safe(self) -> bool:
        """Whether calls know nothing of each other, so that a CPU's threads may make several at once."""
        return isinstance(self._way, Lowered) and self.device.type == "cpu"

    def start(self, seed: int, *key: object) -> Tensor:
        """A row of initial weights, the same for the same key; without one, just those that the module is made with.

        Where these are not random (a given module, weights from a file), a key's lie a little apart from them.
        """
        module = self._built(seed, *key)
        tensors = dict(module.named_parameters()) | dict(module.named_buffers())
        real = {name: t.to(self.device, self.dtype) for name, t in tensors.items() if t.is_floating_point()}
        row = self.layout.flatten(real)
        if not key or not torch.equal(self.layout.weights(row), self.layout.weights(self.layout.flatten(self._own))):
            return row
        draw = generator(seed, "apart", *key)
        for block in self.layout.parameters:
            own = row[block.start : block.start + block.size]
            noise = torch.from_numpy(draw.standard_normal(block.size)).to(own)
            own += APART * own.std(correction=0) * noise
        return row

    def _built(self, seed: int, *key: object) -> nn.Module:
        """The module with what is random in it drawn by a key."""
        others = random.getstate(), np.random.get_state()
        drawn = int(generator(seed, "start", *key).integers(2**62))
        try:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(drawn)
                random.seed(drawn)
                np.random.seed(drawn % 2**32)
                return self._build()
        finally:
            random.setstate(others[0])
            np.random.set_state(others[1])

    @torch.no_grad()
    def _check_made_anew(self, x: Tensor) -> None:
        """Refuse a module that is another when it is made anew and given its state: no file would bring it back."""
        other, module = self._built(0, "anew"), self.module_of(self.start(0))
        if other is self.module:
            return
        try:
            cast(other, self.device, self.dtype).load_state_dict(module.state_dict())
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise BadInput(
                f"the model cannot be loaded from its own state_dict, so no file could hold it: {reason}"
            ) from None
        other.eval()
        x = x.to(self.device, self.dtype) if x.is_floating_point() else x.to(self.device)
        if not torch.allclose(other(x.clone()), module(x.clone()), 1e-3, 1e-3, equal_nan=True):
            raise BadInput(
                "the model predicts otherwise once it is made anew and given its state_dict, so no file could hold it; "
                "register what it draws when it is made (a tensor: register_buffer, persistent; layers: nn.ModuleList)"
            )

    @property
    def _own(self) -> dict[str, Tensor]:
        return dict(self.module.named_parameters()) | dict(self.module.named_buffers())

    def starts(self, seed: int, names: Sequence[str], common: bool) -> Tensor:
        """The silos' first models (k, d): one random model for all, or each its own."""
        if common:
            return self.start(seed).expand(len(names), -1).clone()
        return torch.stack([self.start(seed, name) for name in names])

    def examine(self, x: Tensor) -> None:
        """Find out, once, from a few samples how this module may run over rows, or refuse it."""
        if self._way is not None:
            return
        x = x[:COMPARED]
        found = examine(self.module, self.layout, self.start(0), x, self.device, self.dtype, self._given_head)
        self._check_made_anew(x)
        self.know(found)

    def know(self, found: Found) -> None:
        """Go by what was found out of this module, now or before."""
        self.found = found
        self._head = found.head
        if self._build.supposes_head:
            self._check_supposed_head(None if found.head is None else found.head.name)
        self.draws, self.output = found.draws, found.output
        self.couples_samples, self.couples_evaluation = found.couples_samples, found.couples_evaluation
        self.still = self.layout.places(found.unused).to(self.device) if found.unused else None
        self._changes_input = found.changes_input
        head = None if found.head is None else found.head.name
        if found.lowered is None:
            buffers = [column.name for column in self.layout.buffers]
            shared = self._shared(self.half and not buffers)
            self._way = Called(shared, buffers, found.draws, found.vmapped, head)
            if found.head_alone and head is not None and self.frozen:
                self.prefix = BeforeHead(self._shared(self.half and not buffers), head)
                self.rest = self._going_on(Called(HeadAlone(shared, head), buffers, found.draws, found.vmapped, head))
            return
        # What was examined is in float64, and so is what is frozen in it.
        lowered = lower(self._shared(self.half), self.layout.names, head) if self.frozen else found.lowered
        assert lowered is not None
        self._way = lowered
        hold(lowered.functions(), self.device, torch.bfloat16 if self.half else self.dtype)
        if (parts := lowered.split()) is not None:
            self.prefix, rest = parts
            self.rest = self._going_on(rest)
        # Fusing what lies between the matrix products pays on a GPU; on a CPU its compiler costs more than it saves.
        self._fused = _compiled(lowered) if self.device.type == "cuda" else None

    def _going_on(self, rest: Way) -> "Model":
        """The same model of what the frozen prefix gives for samples."""
        made = copy.copy(self)
        made._way, made._changes_input, made._shapes = rest, False, Shapes()
        made._fused = _compiled(rest) if isinstance(rest, Lowered) and self.device.type == "cuda" else None
        made.prefix = made.rest = None
        return made

    @torch.no_grad()
    def prefixed(self, x: Tensor) -> Tensor:
        """What the frozen prefix gives for samples (n, ...), of the type in which the rest computes."""
        assert self.prefix is not None
        x = x.to(self.device, torch.bfloat16 if self.half else self.dtype) if x.is_floating_point() else x
        out: Tensor = self.prefix(x.clone() if self._changes_input else x)
        return out

    def _check_supposed_head(self, found: str | None) -> None:
        """Refuse a module whose last layer with weights is not the last of them to run."""
        if (supposed := last_layer(self.module)) != found:
            which = "which one is the last to run is not known" if found is None else f"the last to run is '{found}'"
            raise BadInput(
                f"[model] freeze: the model's last layer is '{supposed}', but {which}; name the head: "
                '[model] head = "…"'
            )

    def _shared(self, half: bool) -> nn.Module:
        """A copy with the very tensors of the module: what it keeps of its last call, it is not to be copied with.

        In half precision it has its own.
        """
        if half:
            return cast(copied(self.module), self.device, torch.bfloat16)
        return copied(self.module, {id(t): t for t in self._own.values()})

    def probe(self, x: Tensor) -> None:
        """Call the module on a few samples, to refuse one that does not fit the data or that rows cannot repeat."""
        self.examine(x)
        if self.classes and (not self.output or self.output[0] < self.classes):
            raise BadInput(
                f"the model's output {self.output} does not fit {self.classes} classes; give it that many outputs"
            )

    def forward(
        self, rows: Tensor, x: Tensor, training: bool, keys: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Outputs (k, b, ...) of k rows on their own batches x (k, b, ...), and the buffers after them."""
        self.examine(x.flatten(0, 1))
        out, after, _ = self._call(self._weights(rows), rows, x, training, keys, None)
        return out, after

    def features(self, rows: Tensor, x: Tensor) -> Tensor:
        """What the head of each of k rows is given (k, b, ...) on its own batch of x (k, b, ...), in evaluation."""
        self.examine(x.flatten(0, 1))
        *_, features = self._call(self._weights(rows), rows, x, False, None, None, features=True)
        assert features is not None
        return features

    def gradient(
        self,
        rows: Tensor,
        x: Tensor,
        y: Tensor,
        share: Tensor,
        keys: Tensor | None = None,
        mask: Tensor | None = None,
        loss: SampleLosses | None = None,
        features: bool = False,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Gradients (k, d) and values (k,) of Σ_j share_j loss_j over each row's batch, and the buffers after it.

        `mask` (k, b) is 1 for a sample and 0 for what fills a batch, where the model has to know
        (only if it `takes_padding`).
        `loss` takes the place of `sample_losses` and is given the outputs and, if asked for, the features.
        """
        self.examine(x.flatten(0, 1))
        if loss is None and len(rows) > 1 and self.way == "one by one":
            # Of each row it is then known which parts of the module its batch took.
            own_keys = [None] * len(rows) if keys is None else torch.split(keys, 1)
            given = zip(*(torch.split(t, 1) for t in (rows, x, y, share)), own_keys, strict=True)
            all_grads, all_values, after = zip(*(self.gradient(*each) for each in given), strict=True)
            return torch.cat(all_grads), torch.cat(all_values), None if after[0] is None else torch.cat(after)
        # Each layer's weights are leaves of their own: no pass over whole rows is spent on putting them together.
        weights = {name: t.detach().requires_grad_() for name, t in self._weights(rows).items()}
        with torch.enable_grad():
            out, buffers, seen = self._call(weights, rows, x, True, keys, mask, features)
            losses = self.sample_losses(out, y) if loss is None else _of_every_sample(loss(out, seen), share.shape)
            values = (losses * share).sum(1)
            grads = torch.autograd.grad(values.sum(), list(weights.values()), allow_unused=True)
        if loss is None and isinstance(self._way, Called) and self.found is not None:
            unused = {name for name, g in zip(weights, grads, strict=True) if g is None}
            if sometimes := unused.symmetric_difference(self.found.unused):
                raise not_always(sometimes)
        flat = self.layout.joined(rows, self.layout.parameters, dict(zip(weights, grads, strict=True)), self.width)
        return flat, values.detach(), buffers

    def _weights(self, rows: Tensor) -> dict[str, Tensor]:
        # Called as it is, a module may want weights of the type of its buffers.
        half = self.half and (isinstance(self._way, Lowered) or not self.layout.buffers)
        return self.layout.views(rows.to(torch.bfloat16) if half else rows, self.layout.parameters)

    def _call(
        self,
        weights: dict[str, Tensor],
        rows: Tensor,
        x: Tensor,
        training: bool,
        keys: Tensor | None,
        mask: Tensor | None,
        features: bool = False,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Outputs, the columns of buffers after them where training may move any, and the features if asked for."""
        assert self._way is not None
        buffers = self.layout.views(rows.detach(), self.layout.buffers)
        keys = torch.zeros(len(x), dtype=torch.int64, device=x.device) if keys is None else keys
        x = x.to(next(iter(weights.values())).dtype) if x.is_floating_point() else x
        x = x.clone() if self._changes_input else x  # a batch may be asked for again
        seen: Tensor | None = None
        if features:
            self._known_head()
            out, moved, seen = self._way.with_features(weights | buffers, x, keys, training, mask)
        elif self._fused is not None and training and len(rows) > 1 and mask is None:
            out, moved = self._by_program(weights | buffers, x, keys, training)
        else:
            out, moved = self._way(weights | buffers, x, keys, training, mask)
        after = self.layout.joined(rows, self.layout.buffers, buffers | moved) if training and buffers else None
        return out.to(rows.dtype), after, None if seen is None else seen.to(rows.dtype)

    def _by_program(
        self, tensors: dict[str, Tensor], x: Tensor, keys: Tensor, training: bool
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The compiled module, with rows of zeros added where there is no program for just so many."""
        assert self._fused is not None and self._way is not None
        k, n = len(x), self._shapes.fitting(*x.shape[:2])
        if n is None:
            return self._way(tensors, x, keys, training)
        grown = tensors if n == k else {name: _grown(t, n) for name, t in tensors.items()}
        try:
            out, moved = self._fused(grown, _grown(x, n), _grown(keys, n), training)
        except torch._dynamo.exc.TorchDynamoException:  # a compiler that cannot is no reason to refuse a module
            self._fused = None
            return self._way(tensors, x, keys, training)
        return out[:k], {name: t[:k] for name, t in moved.items()}

    def sample_losses(self, out: Tensor, y: Tensor) -> Tensor:
        """The loss of every sample (k, b); a sample with several targets (a sequence) counts as their mean."""
        if not self.classes:
            return (out.reshape(y.shape) - y).square().reshape(*y.shape[:2], -1).mean(-1)
        if y.ndim == 2:
            # The classes before the samples, as the last layer leaves them: over a short last axis the CPU's softmax
            # goes one number at a time.
            return F.cross_entropy(out.transpose(1, 2), y, reduction="none")
        # (k, b, C, ...) against (k, b, ...)
        losses = F.cross_entropy(out.flatten(0, 1), y.flatten(0, 1), reduction="none")
        return losses.reshape(*y.shape[:2], -1).mean(-1)

    def module_of(self, row: Tensor) -> nn.Module:
        """A module of its own with the weights of one row."""
        module = copied(self.module)
        module.eval()  # which need not give the module
        tensors = dict(module.named_parameters()) | dict(module.named_buffers())
        for name, value in self.layout.named(row).items():
            tensors[name].copy_(value)
        return module


def _compiled(lowered: Lowered) -> Program | None:
    """The same as one program for each number of rows (a symbolic one would be slower, and slow to make)."""
    torch._dynamo.config.cache_size_limit = max(64, torch._dynamo.config.cache_size_limit)
    if lowered.long:
        lowered.compile_pieces()
        return None
    return torch.compile(lowered, dynamic=False)


def _of_every_sample(losses: Tensor, shape: torch.Size) -> Tensor:
    if losses.shape != shape:
        raise BadInput(
            f"a method's own loss gives the shape {tuple(losses.shape)}; let it give one number for every sample, "
            f"{tuple(shape)}"
        )
    return losses


def _grown(t: Tensor, rows: int) -> Tensor:
    return t if len(t) == rows else F.pad(t, (0, 0) * (t.ndim - 1) + (0, rows - len(t)))
