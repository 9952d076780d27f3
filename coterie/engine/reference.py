"""The module itself, called in plain PyTorch with the weights of one row: what is right, and what is refused."""

import itertools
import math
import random
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import CellType, FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.nn import functional as F
from torch.nn.parameter import is_lazy

from coterie.engine.kernels.dropout import KeyedDropout
from coterie.engine.layout import Layout
from coterie.errors import BadInput

# Samples of a row, and how many of them are real in a row whose batch is partial. Of two alone BatchNorm keeps little
# but which is larger, and fifty layers of it turn the last digit into the sixth.
SAMPLES, REAL = 4, 3
NAMED = 3  # parameters that a message names
NORM = nn.modules.batchnorm._NormBase
OF_MODULES = {*vars(nn.Module())}  # what PyTorch keeps in every module
MANY = 1_000_000  # batches, after which no schedule goes on
LISTED = 1000  # of a longer list or table only the length is looked at
FAR = 1e3  # times as large as they are: weights that no bound leaves alone
TRIES = 3  # another thread of the process may draw meanwhile: the heartbeat of Flower does


@dataclass(frozen=True)
class Seen:
    """What calls of one row or of several left."""

    out: Tensor  # (n, ...) of all samples, one row's after the other's
    moved: Mapping[str, Tensor]  # (k, ...) the buffers
    grads: Mapping[str, Tensor | None]  # (k, ...) of every parameter

    def first(self, samples: int) -> "Seen":
        """With the outputs of the first samples alone."""
        return Seen(self.out[:samples], self.moved, self.grads)

    def outputs(self) -> "Seen":
        """The outputs alone."""
        return Seen(self.out, {}, {})

    def forward(self) -> "Seen":
        """Without the gradients."""
        return Seen(self.out, self.moved, {})

    def beside(self, other: "Seen") -> "Seen":
        """Together with another row's."""

        def both(name: str) -> Tensor | None:
            mine, its = self.grads[name], other.grads[name]
            return None if mine is None or its is None else torch.cat([mine, its])

        moved = {name: torch.cat([t, other.moved[name]]) for name, t in self.moved.items()}
        return Seen(torch.cat([self.out, other.out]), moved, {name: both(name) for name in self.grads})


class Reference:
    """A copy of a module, called as people call it."""

    def __init__(self, module: nn.Module, layout: Layout, rows: Tensor) -> None:
        self.module, self.layout, self.rows = module, layout, rows
        trained = {block.name for block in layout.parameters}
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(name in trained)
        self.watch = Watch(rows.device, module)
        self.changes_input = False
        self.own_backward = False  # a gradient goes through an autograd.Function, of which no tracing sees the backward

    def __call__(self, row: int, x: Tensor, training: bool, slope: bool = True) -> Seen:
        """What a row does on its samples; in training with gradients, in the second row of its REAL samples."""
        module, x = self.module, x.clone()
        module.train(training)
        parameters, given = dict(module.named_parameters()), self.layout.named(self.rows[row])
        with torch.no_grad():
            for name, tensor in (parameters | dict(module.named_buffers())).items():
                if name in given:
                    tensor.copy_(given[name])
        versions = {name: (parameter._version, parameter.requires_grad) for name, parameter in parameters.items()}
        self.watch.start(row, training)
        with self.watch, torch.set_grad_enabled(training and slope):
            out = module(x)
        _check_output(out, len(x))
        for name, parameter in module.named_parameters():
            if parameter.requires_grad != versions[name][1]:
                raise BadInput(
                    f"the model changes requires_grad of its parameter '{name}' when it is called; freeze it once: in "
                    "its __init__, or [model] freeze"
                )
            changed = parameter is not parameters[name] or parameter._version != versions[name][0]
            if changed or not torch.equal(parameter, given.get(name, parameter)):
                raise BadInput(
                    f"the model changes its parameter '{name}' when it is called, which rows cannot; let it use a "
                    "changed copy (an Embedding: no max_norm)"
                )
        self.changes_input |= x._version > 0
        after = dict(module.named_buffers())
        moved = {column.name: after[column.name].detach().clone()[None] for column in self.layout.buffers}
        still = Seen(x[:0], {name: given[name][None] for name in moved}, {})
        if not training and not same(Seen(x[:0], moved, {}), still, 0.0):
            raise BadInput(
                "the model changes a buffer in evaluation, too, so a prediction would depend on those before it; let "
                "the model change it only `if self.training`"
            )
        asked = slopes(out.shape[1:], out)[row, : len(x)]
        trained = {name: p for name, p in parameters.items() if p.requires_grad}
        grads = gradients(out, trained, asked) if training and slope else {}
        self.own_backward |= _own_backward(out)
        return Seen(out.detach(), moved, {name: None if g is None else g[None] for name, g in grads.items()})

    def repeated(self, *calls: tuple[int, Tensor]) -> list[dict[bool, Seen]]:
        """What rows do on samples in evaluation and in training, of a module that does the same when asked again.

        Between the first of the calls and its repetition are all others, of which nothing may be left.
        """
        row, x = calls[0]
        for _ in range(TRIES):
            before = _random_states(x.device)
            first = {training: self(row, x, training) for training in (False, True)}
            others = [{training: self(*each, training) for training in (False, True)} for each in calls[1:]]
            again = {training: self(row, x, training, slope=False) for training in (False, True)}
            kept = _kept(self.module)
            self(row, x, True, slope=False)
            if _random_states(x.device) == before:
                break
        else:
            raise BadInput(
                "the model draws random numbers that cannot be keyed, so no run could be repeated; dropout inside an "
                "nn.LSTM or an attention layer does: set that to 0 and put nn.Dropout beside it"
            )
        if self.watch.drawn[False]:
            raise BadInput(
                "the model drops at random in evaluation, too, so its predictions could not be repeated; give "
                "F.dropout training=self.training, or take nn.Dropout"
            )
        if not all(same(first[training].forward(), again[training], 1e-9) for training in first):
            raise BadInput(
                "the model gives something else when it is called again with the same weights and samples; what it "
                "counts or remembers must be a buffer of floating-point numbers, and what it draws nn.Dropout's"
            )
        if changed := [name for name, value in _kept(self.module).items() if kept.get(name) != value]:
            raise BadInput(
                f"the model's {_listed(changed)} changes from call to call, and rows of several silos share it; hold "
                "what counts in a buffer of floating-point numbers; where it draws, take nn.Dropout"
            )
        return [first, *others]

    def couples(self, one: Tensor, other: Tensor, training: bool, tolerance: float) -> bool | None:
        """Whether the output of a sample depends on those beside it: every other of a batch is another one.

        None where the module cannot take such samples.
        """
        odd = torch.arange(len(one), device=one.device) % 2 == 1
        mixed = torch.where(odd.view(-1, *[1] * (one.ndim - 1)), other, one)
        try:
            outs = [self(1, x, training, slope=False).out for x in (one, other, mixed)]
        except (ValueError, RuntimeError, IndexError):
            return None
        if any(out.isnan().any() for out in outs):
            return None
        by_itself = torch.where(odd.view(-1, *[1] * (outs[0].ndim - 1)), outs[1], outs[0])
        return not same(Seen(outs[2], {}, {}), Seen(by_itself, {}, {}), tolerance)

    def check_counts(self, row: int, x: Tensor) -> None:
        """Refuse a module that goes by how many batches its BatchNorm has seen, which no row holds."""
        norms = [m for m in self.module.modules() if isinstance(m, NORM) and m.num_batches_tracked is not None]
        before = [self(row, x, training, slope=False) for training in (False, True) if norms]
        for norm in norms:
            assert norm.num_batches_tracked is not None
            norm.num_batches_tracked += MANY
        if not all(same(self(row, x, mode > 0, slope=False), seen, 1e-9) for mode, seen in enumerate(before)):
            raise BadInput(
                "the model goes by num_batches_tracked of its BatchNorm, which rows of several silos share; let it "
                "count in a buffer of floating-point numbers"
            )

    def check_single(self, row: int, x: Tensor) -> None:
        """Refuse a module that takes a batch of one sample for something else, as a prediction often is."""
        try:
            self(row, x[:1], False)
        except BadInput:
            raise
        except Exception:  # what needs several to normalise by
            return

    def check_bounds(self, row: int, x: Tensor) -> None:
        """Refuse a module that keeps its weights within bounds: it changes those that are far out."""
        rows, trained = self.rows, self.layout.trained
        signs = 1 - 2 * (torch.arange(trained, device=rows.device) % 2)
        try:
            self.rows = torch.cat([FAR * signs * rows[:, :trained], rows[:, trained:]], 1)
            self(row, x, True, slope=False)
        except BadInput:
            raise
        except Exception:  # what fails with such weights says nothing about others
            return
        finally:
            self.rows = rows

    def unused(self, seen: Sequence[Seen], row: int, x: Tensor) -> tuple[str, ...]:
        """The parameters that get no gradient because they take no part; those that do take part are refused."""
        without = [{name for name, g in each.grads.items() if g is None} for each in seen]
        never, ever = set.intersection(*without), set.union(*without)
        if never != ever:
            raise not_always(ever - never)
        names = tuple(name for name in seen[0].grads if name in never)
        if len(names) == len(seen[0].grads):
            raise BadInput(
                f"{_listed(names)} of the model shall train, and no output depends on it; train another part"
            )
        if blocked := [name for name in names if self._matters(name, row, x)]:
            raise BadInput(
                f"{_listed(blocked)} of the model gets no gradient though the output depends on it (torch.no_grad, "
                "detach); freeze it: requires_grad_(False), or [model] freeze"
            )
        return names

    def _matters(self, name: str, row: int, x: Tensor) -> bool:
        """Whether other values of a parameter would train to another output."""
        rows, before = self.rows, self(row, x, True, slope=False)
        try:
            self.rows = rows.clone()
            self.layout.named(self.rows[row])[name].mul_(0.5)
            return not same(self(row, x, True, slope=False), before, 1e-9)
        finally:
            self.rows = rows


class Watch(KeyedDropout):
    """Keyed dropout that notes what else a module asks for."""

    def __init__(self, device: torch.device, module: nn.Module) -> None:
        super().__init__(torch.zeros((), dtype=torch.int64, device=device), active=True)
        self.own = {id(parameter) for parameter in module.parameters()}
        self.others = dict[int, Tensor]()  # weights that are none of the module's
        self.drawn = {False: False, True: False}  # masks: when evaluating, when training
        self.padding = self.by_frequency = self.hooks = False

    def start(self, key: int, training: bool) -> None:
        """Before a call."""
        self.key, self.calls, self.training = torch.full_like(self.key, key), 0, training

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in (F.embedding, F.embedding_bag) and args[1].requires_grad:
            self.padding |= kwargs.get("padding_idx") is not None
            self.by_frequency |= bool(kwargs.get("scale_grad_by_freq"))
        self.hooks |= function is Tensor.register_hook
        for given in (*args, *kwargs.values()):
            for each in given if isinstance(given, list | tuple) else (given,):
                if isinstance(each, nn.Parameter) and id(each) not in self.own:
                    self.others[id(each)] = each
        out = super().__torch_function__(function, types, args, kwargs)
        self.drawn[self.training] |= self.calls > 0
        return out


def not_always(names: Collection[str]) -> BadInput:
    """The refusal of a model of which parameters are in some batches' graphs only."""
    return BadInput(
        f"{_listed(sorted(names))} of the model gets a gradient from some batches only, which an optimiser over rows "
        "cannot skip; let every batch pass through all of the model"
    )


def refuse_parts(module: nn.Module) -> None:
    """Refuse what can be seen not to be a row before the module is ever called."""
    if any(isinstance(layer, nn.DataParallel | nn.parallel.DistributedDataParallel) for layer in module.modules()):
        raise BadInput("the model is for several GPUs (DataParallel), which Coterie sees to itself; give its .module")
    if any(isinstance(layer, torch.jit.ScriptModule) for layer in module.modules()):
        raise BadInput("the model is one of TorchScript, whose weights rows cannot replace; give the nn.Module itself")
    named = dict(module.named_parameters())
    if not any(parameter.requires_grad for parameter in named.values()):
        raise BadInput("the model has no parameters to train; give an nn.Module with a layer that is not frozen")
    every = {id(parameter) for parameter in module.parameters()}
    if left := [name for name, parameter in named.items() if parameter.requires_grad and id(parameter) not in every]:
        raise BadInput(
            f"the model's own parameters() leaves out {_listed(left)}; freeze what shall not train: "
            "requires_grad_(False), or [model] freeze"
        )
    for name, parameter in named.items():
        if is_lazy(parameter):
            raise BadInput(
                f"the model's parameter '{name}' has no size yet; give its layer all sizes, or call the module once "
                "and give it as an object"
            )
        if parameter.is_complex():
            raise BadInput(f"the model's parameter '{name}' is complex; hold its real and imaginary part as two")
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            raise BadInput(
                f"the model's parameter '{name}' has a gradient hook, which its columns of a row have not; put it on "
                "the layer (register_full_backward_hook)"
            )
    if sparse := [name for name, b in module.named_buffers() if b.layout != torch.strided]:
        raise BadInput(f"the model's buffer {_listed(sparse)} is sparse, which no row can hold; make it dense")
    if one_memory := _one_memory(module):
        raise BadInput(
            "the model's '{}' and '{}' share their memory, which a copy of the model undoes; tie layers by one "
            "parameter (b.weight = a.weight), and compute in forward what goes by a weight".format(*one_memory)
        )
    norms = [m for m in module.modules() if isinstance(m, NORM) and m.track_running_stats]
    if any(norm.momentum is None for norm in norms):
        raise BadInput("BatchNorm with momentum=None averages over all steps, which rows cannot; give a momentum")


def _one_memory(module: nn.Module) -> tuple[str, str] | None:
    """A parameter that trains, and another parameter or a buffer that changes with it."""
    trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    trained = [(name, p) for name, p in trained if p.layout == torch.strided and p.numel() and not p.is_meta]
    memories = {p.untyped_storage().data_ptr() for _, p in trained}
    for name, other in (*module.named_parameters(), *module.named_buffers()):
        if other.layout == torch.strided and not other.is_meta and other.untyped_storage().data_ptr() in memories:
            for each, parameter in trained:
                if other is not parameter and _overlap(other, parameter):
                    return name, each
    return None


def _overlap(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of one memory have a number in common."""
    ends = [t.data_ptr() + t.element_size() * sum((n - 1) * s for n, s in _axes(t)) for t in (one, other)]
    apart = one.data_ptr() > ends[1] or other.data_ptr() > ends[0]
    return not apart and bool(torch.isin(_places(one), _places(other)).any())


def _places(t: Tensor) -> Tensor:
    """Where in memory its numbers lie."""
    places = torch.zeros((), dtype=torch.int64)
    for size, stride in _axes(t):
        places = places[..., None] + stride * torch.arange(size)
    return t.data_ptr() + t.element_size() * places.flatten()


def _axes(t: Tensor) -> Iterable[tuple[int, int]]:
    return zip(t.shape, t.stride(), strict=True)


def slopes(shape: torch.Size, like: Tensor) -> Tensor:
    """What the gradient is asked of: Σ slope · output, for outputs (2, SAMPLES, ...) of a shape."""
    draw = torch.Generator().manual_seed(0)
    made = torch.randn(2, SAMPLES, *shape, generator=draw, dtype=torch.float64).to(like)
    made[1, REAL:] = 0  # nothing is asked of what fills a batch
    return made


def gradients(out: Tensor, weights: Mapping[str, Tensor], slope: Tensor) -> dict[str, Tensor | None]:
    """Of Σ slope · out with respect to each of the weights; None where it does not depend on them."""
    if not out.requires_grad:
        return dict.fromkeys(weights)
    with torch.enable_grad():  # a silo examines where nothing is differentiated
        total = (slope * out).sum()  # which needs no slope of its own, for which PyTorch would import sympy
    found = torch.autograd.grad(total, list(weights.values()), allow_unused=True)
    return {name: g.to_dense() if g is not None and g.is_sparse else g for name, g in zip(weights, found, strict=True)}


def same(ours: Seen, theirs: Seen, tolerance: float) -> bool:
    """Whether the two are equal but for rounding; gradients, as far as it matters for the largest of them."""
    if ours.out.shape != theirs.out.shape or ours.grads.keys() != theirs.grads.keys():
        return False
    largest = max((_largest(g) for g in theirs.grads.values() if g is not None), default=0.0)
    grads = [(ours.grads[name], g, largest) for name, g in theirs.grads.items()]
    others = [(ours.out, theirs.out), *((ours.moved[name], t) for name, t in theirs.moved.items())]
    return all(
        _near(a, b, tolerance * scale + 1e-12) for a, b, scale in (*grads, *((*p, _largest(p[1])) for p in others))
    )


def _near(a: Tensor | None, b: Tensor | None, within: float) -> bool:
    """Whether two tensors are that near; none is as good as zeros."""
    if a is None or b is None:
        return all(t is None or _largest(t) <= within for t in (a, b))
    return torch.allclose(a, b, 0, within, equal_nan=True)


def _largest(t: Tensor) -> float:
    if not t.numel():
        return 0.0
    low, high = (float(bound) for bound in t.aminmax())
    return max(-low, high) if math.isfinite(high - low) else 0.0


def _check_output(out: Any, samples: int) -> None:
    if not isinstance(out, Tensor):
        raise BadInput(f"the model gives a {type(out).__name__}; let it give one tensor, the outputs of every sample")
    if out.ndim == 0 or len(out) != samples:
        raise BadInput(
            f"the model gives an output of shape {tuple(out.shape)} for {samples} sample{'s' * (samples > 1)}; its "
            "first axis must be the samples" + ", also where there is one: name the axis, squeeze(1)" * (samples == 1)
        )


def _own_backward(out: Tensor) -> bool:
    todo, seen = [out.grad_fn], set[Any]()
    while todo:
        node = todo.pop()
        if isinstance(node, BackwardCFunction):
            return True
        if node is not None and node not in seen:
            seen.add(node)
            todo += [before for before, _ in node.next_functions]
    return False


def _kept(module: nn.Module) -> dict[str, Any]:
    """What a module and its layers keep that is no column of a row: whatever counts, lists or draws."""
    found = dict[str, Any]()
    for name, part in module.named_modules():
        torchs = type(part).__module__.startswith("torch.")
        counts = ("num_batches_tracked",) if isinstance(part, NORM) else ()  # of which `check_counts` sees to it
        for key, value in {**({} if torchs else vars(type(part))), **vars(part), **part._buffers}.items():
            inner = key in OF_MODULES or (torchs and key.startswith("_"))
            if key not in counts and (not inner or key.endswith("_hooks")):
                found[f"{name}.{key}".lstrip(".")] = _value(value)
    return found


def _value(thing: Any, depth: int = 3) -> Any:
    """Something that can be compared with what stood in its place before; None of what is not looked at."""
    if isinstance(thing, Tensor | np.ndarray | np.generic):
        real = thing.dtype.is_floating_point if isinstance(thing, Tensor) else thing.dtype.kind in "fc"
        whole = math.prod(thing.shape) == 1 or not real  # a count, or an order; else maybe what a method looks at
        return str(thing.tolist()) if whole and not (isinstance(thing, Tensor) and thing.is_meta) else None
    if isinstance(thing, list | tuple | set | dict | deque) and depth:
        values = thing.values() if isinstance(thing, dict) else thing
        return len(thing), [_value(each, depth - 1) for each in values] if len(thing) <= LISTED else None
    if isinstance(thing, random.Random):
        return thing.getstate()
    if isinstance(thing, np.random.Generator):
        return str(thing.bit_generator.state)
    if isinstance(thing, torch.Generator):
        return thing.get_state().tolist()
    if isinstance(thing, int | float | str | itertools.count):
        return str(thing)
    if isinstance(thing, FunctionType):
        cells = [cell.cell_contents for cell in thing.__closure__ or () if cell != CellType()]  # which is an empty one
        return _value(cells, depth - 1) if depth else None
    if isinstance(thing, nn.Module | type) or type(thing).__module__.startswith("torch."):
        return None
    return _value(vars(thing), depth - 1) if depth and hasattr(thing, "__dict__") else None


def _random_states(device: torch.device) -> tuple[Any, ...]:
    """Of all generators that belong to nobody."""
    numbers = np.random.get_state(legacy=False)["state"]
    gpu = torch.cuda.get_rng_state(device).tolist() if device.type == "cuda" else None
    return torch.get_rng_state().tolist(), gpu, numbers["key"].tolist(), numbers["pos"], random.getstate()


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:NAMED])
    return f"{shown} and {len(names) - NAMED} more" if len(names) > NAMED else shown
