"""How a module may run over rows: in any way that gives what the module itself gives in plain PyTorch.

A copy of the module is called with two rows of different weights on different samples, one after the other. Its
outputs, its gradients and the buffers it leaves are what the rewritten module (`lowered`) or the module under `vmap`
must equal, in float64, where equal means equal; where neither does, rows are called one at a time. What is found
depends on what the module does, not on whose samples it is shown or how fast it is.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from coterie.engine.called import Called
from coterie.engine.head import Head, find_head
from coterie.engine.kernels.lowered import Lowered, lower
from coterie.engine.layout import Layout, cast
from coterie.engine.reference import REAL, SAMPLES, Reference, Seen, gradients, same, slopes
from coterie.errors import BadInput, first_line
from coterie.models.copied import copied

Way = Lowered | Called
MANY = 16  # times as many samples, as in a large batch


@dataclass(frozen=True)
class Found:
    """What is known of a module; at first that its rows go one by one, which is always right."""

    draws: bool  # dropout's masks
    changes_input: bool
    unused: tuple[str, ...]  # parameters that take no part, which PyTorch's optimisers leave alone
    output: tuple[int, ...]  # its shape for a sample
    head: Head | None
    lowered: Lowered | None = None  # the rewritten module, where it gives the same
    vmapped: bool = False  # otherwise: whether `vmap` gives the same
    couples_samples: bool = True  # in training what fills a batch changes the rest, unless `lowered` gets a mask
    couples_evaluation: bool = True  # the same in evaluation
    head_alone: bool = False  # under `vmap`: whether the head alone trains, on features that never change, and ends it

    def as_table(self) -> dict[str, Any]:
        """The same as JSON can hold it: of the rewritten module, that there is one."""
        return asdict(replace(self, lowered=None)) | {"lowered": self.lowered is not None}


def recalled(table: Mapping[str, Any], module: nn.Module, layout: Layout) -> Found:
    """What was found of an equal module before; it is rewritten again, and not compared."""
    head = None if table["head"] is None else Head(table["head"]["name"], tuple(table["head"]["features"]))
    found = Found(**{**table, "unused": tuple(table["unused"]), "output": tuple(table["output"]), "head": head})
    if not found.lowered:
        return replace(found, lowered=None)
    own = cast(copied(module), torch.device("cpu"), torch.float64)  # as it was when it was examined
    lowered = lower(own, layout.names, None if head is None else head.name)
    if lowered is None:
        raise ValueError("the module is another: it cannot be rewritten")
    return replace(found, lowered=lowered)


def examine(
    module: nn.Module,
    layout: Layout,
    row: Tensor,
    x: Tensor,
    device: torch.device,
    dtype: torch.dtype,
    head: str | None = None,
) -> Found:
    """What is known of a module once it was called with weights like a row's (d,) on a few samples like x (n, ...)."""
    tries = [(torch.device("cpu"), torch.float64, 1e-6)]
    if (device, dtype) != tries[0][:2]:
        tries.append((device, dtype, 1e-3))  # a module may know one type or one device alone
    for kind in tries:
        try:
            found = _Examination(module, layout, row, x, *kind).found(head)
            if kind != tries[-1]:
                _Examination(module, layout, row, x, *tries[-1]).try_once()
            return found
        except BadInput:
            raise
        except Exception as error:  # a user's module may raise anything
            reason = first_line(error)
    if "torch.utils.checkpoint" in reason:
        raise BadInput(
            "the model computes parts of itself again for their gradients (torch.utils.checkpoint), where it would not "
            "find a row's weights; switch that off, it only saves memory"
        )
    raise BadInput(f"the model cannot take samples of shape {tuple(x.shape[1:])}: {reason}")


class _Examination:
    """Two rows, of which the second has a partial batch."""

    def __init__(
        self, module: nn.Module, layout: Layout, row: Tensor, x: Tensor,
        device: torch.device, dtype: torch.dtype, tolerance: float,
    ) -> None:  # fmt: skip
        self.module, self.layout, self.device, self.dtype, self.tolerance = module, layout, device, dtype, tolerance
        self.x = _samples(x.to(device, dtype) if x.is_floating_point() else x.to(device))
        self.rows = _rows(row.to(device, dtype))
        self.reference = Reference(self._copy(), layout, self.rows)

    def try_once(self) -> None:
        """Call the module once as it will be trained: what it makes itself may be of one device or type alone."""
        self.reference(0, self.x[0], True)

    def found(self, given: str | None) -> Found:
        """What the module does, and which other way does the same."""
        call, (whole, filled), short = self.reference, self.x, self.x[1, :REAL]
        alone, first = call.repeated((1, short), (0, whole))
        self._check_copied(short)
        call.check_bounds(1, short)
        call.check_counts(1, short)
        call.check_single(1, short)
        unused = call.unused((first[True], alone[True]), 1, short)
        head = find_head(call, self.x, given, self.tolerance)
        found = Found(call.watch.drawn[True], call.changes_input, unused, tuple(alone[False].out.shape[1:]), head)
        lowered = self._rewritten(first, alone, None if head is None else head.name)
        couples = {training: self._couples(training) for training in (False, True)}
        if lowered is not None and all(lowered.takes_padding[mode] or not couples[mode] for mode in couples):
            takes_padding = lowered.takes_padding
            return replace(
                found, lowered=lowered, couples_samples=takes_padding[True], couples_evaluation=takes_padding[False]
            )
        full = {training: call(1, filled, training) for training in (True, False)}
        expected = _joined(first, full)
        vmapped = self._called(vmapped=True)
        if not (self._vmap_can() and self._equals(vmapped, expected) and self._single(vmapped, first)):
            # Such a module may look at its samples and do anything: nothing may fill a batch.
            self._check_one_by_one(expected)
            return found
        couples = {mode: couples[mode] or not self._same(full[mode].first(REAL), alone[mode]) for mode in full}
        couples = {mode: couples[mode] or self._counts(full[mode], mode) for mode in full}
        trained = couples[True] or call.watch.by_frequency
        head_alone = not (trained or couples[False] or found.draws) and self._head_alone(head)
        return replace(
            found, vmapped=True, couples_samples=trained, couples_evaluation=couples[False], head_alone=head_alone
        )

    def _check_copied(self, x: Tensor) -> None:
        """Refuse a module with a function that keeps a weight: every copy of the module computes with that one."""
        others = self.reference.watch.others
        if others:
            another = Reference(self._copy(), self.layout, self.rows)
            another(1, x, True, slope=False)
            if kept := [others[key] for key in others.keys() & another.watch.others.keys()]:
                raise BadInput(
                    f"a function of the model (a lambda, or a forward that was replaced) keeps a weight of shape "
                    f"{tuple(kept[0].shape)}, which copies of the model do not replace; let it reach its weights by "
                    "attributes of the model, or register a hook instead"
                )

    def _head_alone(self, head: Head | None) -> bool:
        """Whether nothing but the head trains, it is given the same in training, and its output is the module's."""
        names = [block.name for block in (*self.layout.parameters, *self.layout.buffers)]
        if head is None or not all(name.startswith(f"{head.name}.") for name in names):
            return False
        layer, given = self.reference.module.get_submodule(head.name), list[Seen]()
        for row, training in ((0, True), (0, False), (1, False)):
            seen: list[Tensor] = []
            with layer.register_forward_pre_hook(lambda _, features, seen=seen: seen.append(features[0].clone())):
                whole = self.reference(row, self.x[0], training, slope=False)
            with torch.no_grad():
                if not self._same(Seen(layer(seen[0].clone()), {}, {}), whole.outputs()):
                    return False
            given.append(Seen(seen[0].detach(), {}, {}))
        return all(self._same(given[0], each) for each in given[1:])

    def _rewritten(self, first: dict[bool, Seen], alone: dict[bool, Seen], head: str | None) -> Lowered | None:
        """The rewritten module, where it does the same; of a batch that is filled, with the real samples."""
        lowered = None if self.reference.own_backward else lower(self._copy(), self.layout.names, head)
        if lowered is None or not self._equals(lowered, _joined(first, alone), mask=True):
            return None
        return lowered if self._single(lowered, first) else None

    def _couples(self, training: bool) -> bool:
        """Whether samples of a batch meet, be it in the largest number among them alone."""
        every = self.x.flatten(0, 1)
        low, high = (bound.expand_as(self.x[0]) for bound in (every.amin(0), every.amax(0)))
        # Whatever one batch has in common, the lowest and the highest samples have not; where a module cannot take
        # them, two batches as they are must do.
        for one, other in ((low, high), (self.x[0], self.x[1])):
            found = self.reference.couples(one, other, training, self.tolerance)
            if found is not None:
                return found
        return False

    def _counts(self, few: Seen, training: bool) -> bool:
        """Whether a sample's output goes by how many are beside it, be it in a large batch alone."""
        many = self.x[1].repeat(MANY, *[1] * (self.x.ndim - 2))
        return not self._same(self.reference(1, many, training, slope=False).first(SAMPLES).outputs(), few.outputs())

    def _called(self, vmapped: bool) -> Called:
        buffers = [column.name for column in self.layout.buffers]
        return Called(self._copy(), buffers, self.reference.watch.drawn[True], vmapped)

    def _check_one_by_one(self, expected: dict[bool, Seen]) -> None:
        called = self._called(vmapped=False)
        for training, seen in expected.items():
            if not same(self._over_rows(called, training), seen, self.tolerance):
                raise BadInput(
                    "the model does something else with a row's weights in place of its own; let it reach its "
                    "parameters by the attributes under which they are registered, and keep nothing of other calls"
                )

    def _vmap_can(self) -> bool:
        """It trains an Embedding's padding, hands a hook all rows' gradients at once, and has no recurrent layers."""
        watch, layers = self.reference.watch, list(self.module.modules())
        hooks = watch.hooks or any(layer._backward_hooks or layer._backward_pre_hooks for layer in layers)
        return not (watch.padding or hooks or any(isinstance(layer, nn.RNNBase) for layer in layers))

    def _equals(self, way: Way, expected: dict[bool, Seen], mask: bool = False) -> bool:
        """Whether all rows at once are what is expected, in training and in evaluation."""
        try:
            return all(self._same(self._over_rows(way, training, mask), seen) for training, seen in expected.items())
        except Exception:  # whatever fails in this way does not in another
            return False

    def _single(self, way: Way, first: dict[bool, Seen]) -> bool:
        """Whether the first row by itself trains as it does in company, when nobody says which samples are real."""
        row, keys = self.layout.named(self.rows[:1]), torch.zeros(1, dtype=torch.int64, device=self.device)
        try:
            with torch.no_grad():
                out, moved = way(row, self.x[:1].clone(), keys, training=True)
            return self._same(Seen(out[0], row | moved, {}), first[True].forward())
        except Exception:  # of what the module keeps of its last call
            return False

    def _over_rows(self, way: Way, training: bool, mask: bool = False) -> Seen:
        parts = (self.layout.parameters, self.layout.buffers)
        weights, buffers = (self.layout.views(self.rows, part) for part in parts)
        weights = {name: t.detach().requires_grad_(training) for name, t in weights.items()}
        keys = torch.arange(2, device=self.device)
        real = keys[:, None] * torch.arange(SAMPLES, device=self.device) < REAL  # all of the first row
        with torch.set_grad_enabled(training):
            filled = real.to(self.dtype) if mask else None
            out, moved = way(weights | buffers, self.x.clone(), keys, training, filled)
            grads = gradients(out, weights, slopes(out.shape[2:], out)) if training else {}
        return Seen(out.detach()[real] if mask else out.detach().flatten(0, 1), buffers | moved, grads)

    def _same(self, ours: Seen, theirs: Seen) -> bool:
        """Whether the two are equal; of what is no number nobody knows."""
        known = not any(t.isnan().any() for t in (theirs.out, *theirs.grads.values()) if t is not None)
        return known and same(ours, theirs, self.tolerance)

    def _copy(self) -> nn.Module:
        try:
            return cast(copied(self.module), self.device, self.dtype)
        except Exception as error:
            reason = first_line(error)
            raise BadInput(f"the model cannot be copied (copy.deepcopy: {reason}); give every silo's its own") from None


def _draw() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _rows(row: Tensor) -> Tensor:
    """Two rows (2, d) near a given one, none of their weights zero: a zero would hide what comes before it."""
    noise = 0.4 * torch.rand(2, len(row), generator=_draw(), dtype=torch.float64).to(row) - 0.2
    return torch.where(row == 0, noise.abs(), row * (1 + noise))  # a variance of zero stays one


def _samples(x: Tensor) -> Tensor:
    """Samples (2, SAMPLES, ...) like those of x (n, ...): every number lies between two that its place holds."""
    draw, count = _draw(), 2 * SAMPLES
    one, other = (x[torch.randint(len(x), (count,), generator=draw).to(x.device)] for _ in range(2))
    share = torch.rand(one.shape, generator=draw, dtype=torch.float64).to(x.device)
    if not x.is_floating_point():
        made = torch.where(share < 0.5, one, other)
    elif len(x) == 1:
        made = one - 0.1 * share.to(x.dtype) * one  # there is no other
    else:
        made = torch.lerp(one, other, share.to(x.dtype))
    return made.view(2, SAMPLES, *x.shape[1:])


def _joined(one: dict[bool, Seen], other: dict[bool, Seen]) -> dict[bool, Seen]:
    """Two rows' as one."""
    return {training: seen.beside(other[training]) for training, seen in one.items()}
