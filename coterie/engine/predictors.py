"""The kinds of predictors by the name in a model's file, so that a file and a checkpoint can be read back."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from coterie.engine.trees import Trees
from coterie.errors import BadInput
from coterie.registry import Registry
from coterie.wire import Build, Deployable, Form, Network, Predictor, Record, rows, under, weighted_sum

KINDS: Registry[type[Deployable]] = Registry(
    "predictor",
    "coterie.predictors",
    {
        "model": "coterie.wire:Predictor",
        "ensemble": "coterie.engine.predictors:Ensemble",
        "distilled": "coterie.engine.predictors:Distilled",
        "neighbours": "coterie.engine.neighbours:Neighbours",
        "incumbent": "coterie.engine.predictors:Incumbent",
    },
    lambda thing: isinstance(thing, type) and issubclass(thing, Deployable),
    "a class made from coterie.wire.Deployable",
)
LEAST = 1e-15  # probability, whose log is still a number


class Unreadable(BadInput):
    """A predictor that was written otherwise."""


def kind_of(form: Form) -> type[Deployable]:
    """The kind of predictor that a form names."""
    name = form[0] if isinstance(form, list) and form else form
    if not isinstance(name, str) or name not in KINDS:
        raise Unreadable(f"unknown kind of predictor {str(name)[:40]!r}; install the package that brings it")
    return KINDS[name]


def restored(form: Form, tensors: Mapping[str, Tensor]) -> Deployable:
    """A predictor from its form and the tensors of its record."""
    return kind_of(form).restore(form, tensors)


def read(form: Form, tensors: dict[str, Tensor], build: Build, classes: int) -> nn.Module:
    """One silo's module from its form and what was written of it."""
    return kind_of(form).read(form, tensors, build, classes)


class Ensemble(Deployable):
    """Candidates of any kinds: each silo mixes their predictions, brought to comparable confidence before."""

    kind: ClassVar[str] = "ensemble"

    temperatures: Tensor = rows("what each candidate's log-probabilities are divided by", "c")
    weights: Tensor = rows("the candidates' shares of the prediction", "c")
    others: Tensor | None = rows("the shares for each validation sample, found without it", "c", "n", default=None)
    candidates: Record

    @classmethod
    def of(
        cls, candidates: Sequence[Deployable], temperatures: Tensor, weights: Tensor, others: Tensor | None = None
    ) -> "Ensemble":
        """These candidates, with temperatures (k, c), weights (k, c) and those of validation samples (k, c, n)."""
        inner = _several(len(candidates))(**{f"c{i}": each for i, each in enumerate(candidates)})
        return cls(temperatures=temperatures, weights=weights, others=others, candidates=inner)

    @property
    def parts(self) -> list[Deployable]:
        """The candidates."""
        return list(vars(self.candidates).values())

    @property
    def form(self) -> Form:
        return [self.kind, *(part.form for part in self.parts)]

    @property
    def networks(self) -> int:
        return max(part.networks for part in self.parts)  # one candidate after the other

    def held_out(self, samples: slice) -> "Ensemble":
        return self if self.others is None else self.replace(weights=self.others[..., samples])

    def predict(self, model: Network, x: Tensor, beside: Tensor | None = None) -> Tensor:
        mixed: Tensor | None = None
        for c, part in enumerate(self.parts):
            out = part.predict(model, x, beside)
            out = out if mixed is None else out.reshape(mixed.shape)
            wide = (-1, *[1] * (out.ndim - 1))
            if model.classes:
                out = tempered(out, self.temperatures[:, c].reshape(wide), 2)
            share = self.weights[:, c]  # (k,), or (k, b) of held-out samples
            share = share.reshape(*share.shape, *[1] * (out.ndim - share.ndim))
            out = torch.where(share == 0, 0, share * out)  # a candidate that diverged has no share, and 0 · NaN is NaN
            mixed = out if mixed is None else mixed + out
        assert mixed is not None  # there is at least one candidate
        return mixed

    def module(self, model: Network, row: int) -> nn.Module:
        parts = [part.module(model, row) for part in self.parts]
        return Ensembled(parts, self.temperatures[row].cpu(), self.weights[row].cpu(), model.classes)

    @classmethod
    def read(cls, form: Form, tensors: dict[str, Tensor], build: Build, classes: int) -> nn.Module:
        parts = [read(inner, under(f"candidate{c}.", tensors), build, classes) for c, inner in enumerate(form[1:])]
        temperatures, weights = (tensors.get(name, torch.empty(0)) for name in ("temperatures", "weights"))
        if not parts or not len(parts) == temperatures.numel() == weights.numel():
            raise Unreadable("its temperatures and weights are not those of its candidates; take a whole file")
        return Ensembled(parts, temperatures.flatten(), weights.flatten(), classes)

    @classmethod
    def restore(cls, form: Form, tensors: Mapping[str, Tensor]) -> "Ensemble":
        parts = [restored(inner, under(f"candidates.c{c}.", tensors)) for c, inner in enumerate(form[1:])]
        return cls.of(parts, tensors["temperatures"], tensors["weights"], tensors.get("others"))


class Ensembled(nn.Module):
    """One silo's ensemble."""

    def __init__(self, parts: Sequence[nn.Module], temperatures: Tensor, weights: Tensor, classes: int) -> None:
        super().__init__()
        self.parts, self.classes = list(parts), classes
        self.used = [c for c, weight in enumerate(weights.tolist()) if weight]
        for c, part in enumerate(parts):
            self.add_module(f"candidate{c}", part)
        self.register_buffer("temperatures", temperatures)
        self.register_buffer("weights", weights)

    def forward(self, x: Tensor, beside: Tensor | None = None) -> Tensor:
        """(n, C, ...) probabilities, or (n, ...) numbers."""
        outputs = [self.parts[c](x, beside) for c in self.used]
        outputs = [out.reshape(outputs[0].shape) for out in outputs]
        if self.classes:
            every = self.get_buffer("temperatures")[self.used].unbind()
            outputs = [tempered(out, t, 1) for out, t in zip(outputs, every, strict=True)]
        return weighted_sum(self.get_buffer("weights")[self.used], outputs)


class Distilled(Deployable):
    """One network for each silo that has learned from a mixture; a file holds that network alone."""

    kind: ClassVar[str] = "distilled"

    shares: Tensor = rows("the candidates' shares of the mixture", "c")
    losses: Tensor = rows("mean loss on validation data: the mixture's, and the network's", "2")
    network: Predictor

    @property
    def networks(self) -> int:
        return self.network.networks

    def predict(self, model: Network, x: Tensor, beside: Tensor | None = None) -> Tensor:
        return self.network.predict(model, x)

    def module(self, model: Network, row: int) -> nn.Module:
        return self.network.module(model, row)

    def written(self, model: Network, row: int) -> dict[str, Tensor]:
        return self.network.written(model, row)

    @classmethod
    def read(cls, form: Form, tensors: dict[str, Tensor], build: Build, classes: int) -> nn.Module:
        return Predictor.read(Predictor.kind, tensors, build, classes)

    @classmethod
    def restore(cls, form: Form, tensors: Mapping[str, Tensor]) -> "Distilled":
        network = Predictor(**under("network.", tensors))
        return cls(network=network, shares=tensors["shares"], losses=tensors["losses"])


class Incumbent(Deployable):
    """The models that silos have of their own, of which nothing is here but what they give for each row."""

    kind: ClassVar[str] = "incumbent"

    @property
    def networks(self) -> int:
        return 1

    def predict(self, model: Network, x: Tensor, beside: Tensor | None = None) -> Tensor:
        if beside is None:
            return x.new_full((*x.shape[:2], max(model.classes, 1)), torch.nan, dtype=torch.get_default_dtype())
        return beside

    def module(self, model: Network, row: int) -> nn.Module:
        return Beside()

    @classmethod
    def read(cls, form: Form, tensors: dict[str, Tensor], build: Build, classes: int) -> nn.Module:
        try:
            return Beside(Trees(under("trees.", tensors), classes) if tensors else None)
        except (KeyError, IndexError, RuntimeError):
            raise Unreadable("its trees are not whole; take a whole file") from None


class Beside(nn.Module):
    """Gives what the silo's own model gave for the same rows; trees are asked themselves."""

    def __init__(self, trees: Trees | None = None) -> None:
        super().__init__()
        self.trees = trees

    def forward(self, x: Tensor, beside: Tensor | None = None) -> Tensor:
        """What it was handed, or what the trees give."""
        if self.trees is not None:
            given: Tensor = self.trees(x)
            return given
        if beside is None:
            raise BadInput("this model mixes in the silo's own, which is not in its file; give it as incumbent")
        return beside


def tempered(p: Tensor, temperature: Tensor | float, axis: int) -> Tensor:
    """Probabilities along an axis at a temperature: p^(1/T), scaled to sum to one."""
    return (p.clamp_min(LEAST).log() / temperature).softmax(axis)


@cache
def _several(count: int) -> Any:
    """A record of so many predictors, c0, c1, …"""
    inner = {"__annotations__": {f"c{i}": Deployable for i in range(count)}, "__module__": __name__}
    return type("Candidates", (Record,), {"__doc__": "The predictors of an ensemble.", **inner})
