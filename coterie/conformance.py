"""One suite for every method. Run `check_method(YourMethod())` on your own: it finds what libraries could not notice.

A dead proximal term, a control variate that is never stored, a mixture that starts afresh each round: each makes one of
these checks fail. What they cannot know is whether a method is the one its paper describes; that takes an oracle.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from coterie.codec import decode, encode, encode_up
from coterie.data.silo import Part, Silo
from coterie.engine.exchange import Replies
from coterie.engine.method import Cohort, Method, local_round
from coterie.engine.rounds import run_rounds
from coterie.engine.rows import Model
from coterie.engine.simulate import Simulator
from coterie.engine.training import Training
from coterie.keys import generator
from coterie.methods.wrappers.candidates import Candidates
from coterie.wire import Deployable, Record, every_field, stack

SIZES = (13, 8, 21, 5)  # ragged on purpose: in batches of 8 partial ones and a full one, two of as many steps
CLASSES, FEATURES = 3, 5


def small_silos(seed: int = 0, sizes: Sequence[int] = SIZES, prefix: str = "silo") -> list[Silo]:
    """A tiny federation whose silos disagree about the labels."""
    silos = []
    for i, n in enumerate(sizes):
        draw = generator(seed, "conformance", prefix, i)
        rule = draw.normal(size=(FEATURES, CLASSES))

        def part(count: int, draw: np.random.Generator = draw, rule: np.ndarray = rule) -> Part:
            x = draw.normal(size=(count, FEATURES))
            return Part(x.astype(np.float32), (x @ rule).argmax(1))

        silos.append(Silo(f"{prefix}-{i}", part(n), part(4), part(6)))
    return silos


def small_mlp() -> nn.Module:
    """A model of two layers, enough to have more than one named view."""
    return nn.Sequential(nn.Linear(FEATURES, 4), nn.Tanh(), nn.Linear(4, CLASSES))


def small_linear() -> nn.Module:
    """A linear model, for methods that refuse any other."""
    return nn.Linear(FEATURES, CLASSES)


class Wired(Simulator):
    """A simulator in which everything crosses a wire: silo by silo, encoded and decoded on each side."""

    @torch.no_grad()
    def train(self, cohort: Cohort, down: Any) -> Replies:
        ups = []
        axes = self.method.axes(cohort.roster, self.model)
        for place, silo in enumerate(cohort.ids.tolist()):
            arrived = decode(self.method.down, encode(down.one(place)), self.model.dtype, rows=1, **axes)
            ids = torch.tensor([silo])
            task, private = self.task(ids, cohort.round), self._private.take(ids)
            up, kept = local_round(self.method, task, arrived, private)
            self._private = self._private.put(ids, kept)
            ups.append(decode(self.method.up, encode_up(up), self.model.dtype, rows=1, **axes))
        return Replies(cohort, stack(ups))


@dataclass(frozen=True)
class Ground:
    """The federation that a method is checked on."""

    method: Method
    build: Callable[[], nn.Module] = small_mlp
    silos: Sequence[Silo] = ()
    training: Training = Training(rounds=3, local_epochs=2, batch_size=8, lr=0.1)
    seed: int = 1

    def model(self) -> Model:
        """Rows of float64, so that differences of arithmetic order stay far below the tolerance."""
        return _model(self.build)

    def engine(self, rows: int | str = "all", kind: type[Simulator] = Simulator) -> Simulator:
        """The silos, before the first round."""
        return kind(self.method, self.silos or small_silos(), self.model(), self.training, self.seed, rows)


@lru_cache(maxsize=8)
def _model(build: Callable[[], nn.Module]) -> Model:
    """One for all engines: a model keeps nothing of its calls but how its module may run over rows."""
    return Model(build, CLASSES, dtype=torch.float64)


def ground_of(method: Method) -> Ground:
    """The small federation that suits a method: of the first small model that it does not refuse."""
    for build in (small_mlp, small_linear):
        ground = Ground(method, build)
        engine = ground.engine()
        reason = method.refusal(engine.roster, engine.model)
        if reason is None:
            return ground
    raise AssertionError(f"the method refuses every small model it could be checked on: {reason}")


def rounds(
    ground: Ground, engine: Simulator, server: Any, first: int, last: int, ids: Tensor | None = None
) -> tuple[Any, Any]:
    """Some rounds; the server after them and the last uploads."""
    up = None
    for r in range(first, last):
        cohort = Cohort(torch.arange(len(engine.roster)) if ids is None else ids, r, engine.roster, engine.model)
        down = ground.method.send(server, cohort)
        up = engine.train(cohort, down).up
        server = ground.method.receive(server, cohort, ground.method.unpacked(down, up))
    return server, up


def predictions(ground: Ground, engine: Simulator, server: Any, after: int = 3) -> Tensor:
    """What the silos' personal models say of the same few samples: (m, 7, C)."""
    everyone = Cohort.everyone(engine.roster, engine.model, after)
    predictor = engine.personal(everyone, ground.method.send(server, everyone))
    return engine.task(everyone.ids, after).predict(predictor, _probe(len(engine.roster)))


def trained(ground: Ground, engine: Simulator, last: int = 3) -> tuple[Any, Tensor]:
    """The server after all rounds, and the predictions."""
    server, _ = rounds(ground, engine, ground.method.open(engine.roster, engine.model), 0, last)
    return server, predictions(ground, engine, server, last - 1)


def baseline(ground: Ground) -> Tensor:
    """The predictions of all rows trained at once, without a break: what most checks hold their own against."""
    return course(ground).predicted


def resumed(ground: Ground, done: int) -> tuple[Simulator, Any]:
    """The silos and the server of that training as they were stored after so many rounds."""
    engine, (server, private) = ground.engine(), course(ground).stored[done - 1]
    template = ground.method.open(engine.roster, engine.model)
    engine._private = engine._private.with_tensors(safetensors.torch.load(private))
    return engine, template.with_tensors(safetensors.torch.load(server))


@dataclass(frozen=True)
class Course:
    """One training of all rows, which the checks share."""

    stored: Sequence[tuple[bytes, bytes]]  # after each round: the server, what silos keep
    predicted: Tensor  # (m, 7, C) at the end


def course(ground: Ground) -> Course:
    """The training that checks share, done once for each method on the silos of the suite."""
    return _course(ground) if ground.silos else _known_course(ground)


def _course(ground: Ground) -> Course:
    engine, stored = ground.engine(), []
    server = ground.method.open(engine.roster, engine.model)
    for r in range(3):
        server, _ = rounds(ground, engine, server, r, r + 1)
        stored.append((encode(server), encode(engine._private)))
    return Course(stored, predictions(ground, engine, server, 2))


_known_course = lru_cache(maxsize=64)(_course)


def check_rows_do_not_matter(ground: Ground) -> None:
    """k rows at once = one at a time = through the wire and back."""
    whole = baseline(ground)
    for what, engine in (
        ("one row at a time", ground.engine(rows=1)),
        ("three rows at a time", ground.engine(rows=3)),
        ("through the wire", ground.engine(kind=Wired)),
    ):
        _, other = trained(ground, engine)
        _same(other, whole, f"training {what} gives other models than training all rows at once")


def check_relabelling(ground: Ground) -> None:
    """Silos in another order give the same models in that order."""
    order = [2, 0, 3, 1]
    silos = list(ground.silos or small_silos())
    before = baseline(ground)
    moved = replace(ground, silos=[silos[i] for i in order])
    _, after = trained(moved, moved.engine())
    _same(after, before[order], "listing the silos in another order changes their models")


def check_same_bits(ground: Ground) -> None:
    """The same seed gives the same bits; another seed does not."""
    first = baseline(ground)
    _, second = trained(ground, ground.engine())
    assert torch.equal(first, second), "two runs with the same seed differ"
    other = replace(ground, seed=ground.seed + 1)
    _, third = trained(other, other.engine(), last=1)
    begun = predictions(ground, *resumed(ground, 1), 0)
    assert not torch.equal(begun, third), "another seed changes nothing: draws are not keyed by the seed"


def check_resumed(ground: Ground) -> None:
    """Stopped after any round, stored and resumed = uninterrupted."""
    whole = baseline(ground)
    for stop in (1, 2):
        engine, server = resumed(ground, stop)
        server, _ = rounds(ground, engine, server, stop, 3)
        assert torch.equal(predictions(ground, engine, server, 2), whole), (
            f"resuming after round {stop} changes the result"
        )


def check_inputs_untouched(ground: Ground) -> None:
    """No function changes what it is given."""
    engine = ground.engine()
    method, server = ground.method, ground.method.open(engine.roster, engine.model)
    for r in range(2):
        cohort = Cohort.everyone(engine.roster, engine.model, r)
        task = engine.task(torch.tensor([2, 0, 1, 3]), r)
        with _unchanged(server, f"send, round {r}"):
            down = method.send(server, cohort)
        mine, private = down.take(task.silos), engine._private.take(task.silos)
        with _unchanged(mine, "begin: down"), _unchanged(private, "begin: private"):
            state = method.begin(task, mine, private)
            with _unchanged(state, "step"):
                state = task.run(method.step, state, "train", dpsgd=method.dpsgd(task))
            up, kept = method.end(task, state, mine, private)
        with _unchanged(mine, "personal: down"), _unchanged(kept, "personal: private"):
            method.personal(task, mine, kept)
        back = torch.argsort(task.silos)
        up = up.take(back)
        with _unchanged(up, "unpacked: up"), _unchanged(down, "unpacked: down"):
            unpacked = method.unpacked(down, up)
        with _unchanged(server, "receive: server"), _unchanged(unpacked, "receive: up"):
            new = method.receive(server, cohort, unpacked)
        server, engine._private = new, kept.take(back)


def check_absent_untouched(ground: Ground) -> None:
    """Silos that do not take part keep their private state, bit for bit; a round with no replies is survived."""
    engine, server = resumed(ground, 1)
    before = engine._private
    rounds(ground, engine, server, 1, 2, ids=torch.tensor([0, 2]))
    for name, value in before.take(torch.tensor([1, 3])).tensors().items():
        kept = engine._private.take(torch.tensor([1, 3])).tensors()[name]
        assert torch.equal(kept, value), f"private field '{name}' of an absent silo changed"
    for what, training in (
        ("without any reply", replace(ground.training, drop=1.0, measure_every=ground.training.rounds)),
        ("with one reply of two", replace(ground.training, participation=0.5, drop=0.5, rounds=5, measure_every=5)),
    ):
        engine = replace(ground, training=training).engine()
        outcome = run_rounds(ground.method, engine, engine.roster, engine.model, training)
        assert np.isfinite(outcome.results[-1]["value"]).all(), f"rounds {what} end in NaN"


def check_every_field_matters(ground: Ground) -> None:
    """Every field of Down and Private changes some output when it changes: this finds a dead term."""
    engine, server = resumed(ground, 2)
    method = ground.method
    cohort = Cohort.everyone(engine.roster, engine.model, 2)
    task = engine.task(torch.tensor([2, 0, 1, 3]), 2)
    down, private = method.send(server, cohort).take(task.silos), engine._private.take(task.silos)

    def outputs(down: Any, private: Any) -> list[Tensor]:
        up, kept = local_round(method, task, down, private)
        models = [method.personal(task, down, private), method.cloud(task, down, private)]
        predicted = [task.predict(model, _probe(task.k)) for model in models if model is not None]
        return [*up.tensors().values(), *kept.tensors().values(), *predicted]

    plain = outputs(down, private)
    for what, record in (("Down", down), ("Private", private)):
        for name, value in record.tensors().items():
            changed = record.with_tensors(record.tensors() | {name: _perturbed(value)})
            made = outputs(changed, private) if what == "Down" else outputs(down, changed)
            # A silo that only keeps what it kept, changed, shows nothing of its use.
            differs = [
                not torch.equal(a, b) and not torch.equal(a, _perturbed(value))
                for a, b in zip(made, plain, strict=True)
            ]
            assert any(differs), f"changing {what}.{name} changes nothing that leaves, stays or predicts: a dead term"


def check_state_moves(ground: Ground) -> None:
    """After training, what silos keep and what their models predict differ from the start: this finds lost state."""
    engine = ground.engine()
    start = ground.method.open(engine.roster, engine.model)
    private, before = engine._private, predictions(ground, engine, start, 0)
    engine, server = resumed(ground, 2)
    after = predictions(ground, engine, server, 1)
    assert not torch.allclose(before, after), "two rounds of training leave the personal predictions as they were"
    # What is fixed is a hyper-parameter of the silo and may stay as it is.
    fixed = {name for name, about in every_field(private).items() if about.fixed}
    for name, value in private.tensors().items():
        if name not in fixed:
            moved = engine._private.tensors()[name]
            assert not torch.equal(moved, value), f"private field '{name}' never changes: its state is lost each round"


def check_data_stay_home(ground: Ground) -> None:
    """Changing one silo's data changes no other silo's upload in that round."""
    silos = list(ground.silos or small_silos())
    others = replace(small_silos(seed=9, sizes=(len(silos[0].train),))[0], name=silos[0].name)
    ups = []
    for each in (ground, replace(ground, silos=[others, *silos[1:]])):
        engine = each.engine(rows=1)
        _, up = rounds(each, engine, each.method.open(engine.roster, engine.model), 0, 1)
        ups.append(up)
    for name, value in ups[0].tensors().items():
        assert torch.equal(value[1:], ups[1].tensors()[name][1:]), (
            f"upload '{name}' of a silo depends on another's data"
        )
        assert value.dtype.is_floating_point is False or torch.isfinite(value).all(), f"upload '{name}' is not finite"


def check_newcomers(ground: Ground) -> None:
    """Silos that arrive after training get a model, and the federation does not change by it."""
    _, server = resumed(ground, 2)
    newcomers = replace(ground, silos=small_silos(seed=3, sizes=(7, 10), prefix="newcomer")).engine()
    with _unchanged(server, "host: server"):
        down = newcomers.host(server, 2)
    everyone = Cohort.everyone(newcomers.roster, newcomers.model, 2)
    measures = newcomers.measure(everyone, down, ("test",))
    assert np.isfinite(measures.values["test", "loss"]).all(), "a newcomer's model is not finite"


def check_rates_by_row(ground: Ground) -> None:
    """A method that takes a learning rate for each row trains each row as with that rate alone."""
    if ground.method.lr_by_row:
        both = replace(ground, method=Candidates(ground.method, (1.0, 3.0)))
        _, found = trained(both, both.engine())
        _same(found, baseline(ground), "training with other rates beside it changes a model; set lr_by_row = False")


def check_validation_declared(ground: Ground) -> None:
    """A method that learns from validation data says so: they cannot prefer it then.

    What leaves a sample's own share out when it is judged, as an ensemble does, need not.
    """
    turned = [
        replace(silo, validation=Part(silo.validation.x, (silo.validation.y + 1) % CLASSES))
        for silo in ground.silos or small_silos()
    ]
    other = replace(ground, silos=turned)
    engine = other.engine()
    server, after = trained(other, engine)
    everyone = Cohort.everyone(engine.roster, engine.model, 2)
    predictor = engine.personal(everyone, ground.method.send(server, everyone))
    learns = not torch.equal(after, baseline(ground)) and type(predictor).held_out is Deployable.held_out
    assert learns == ground.method.learns_from_validation, (
        f"validation labels {'change' if learns else 'do not change'} its models; set learns_from_validation = {learns}"
    )


CHECKS: tuple[Callable[[Ground], None], ...] = (
    check_rows_do_not_matter,
    check_relabelling,
    check_same_bits,
    check_resumed,
    check_inputs_untouched,
    check_absent_untouched,
    check_every_field_matters,
    check_state_moves,
    check_data_stay_home,
    check_newcomers,
    check_rates_by_row,
    check_validation_declared,
)


def check_method(method: Method, build: Callable[[], nn.Module] | None = None) -> None:
    """Run every check on a method; an AssertionError says which one failed and why.

    `build` makes the model it is checked with, for samples of FEATURES numbers and CLASSES classes; without it, a small
    MLP, or a linear model where the method refuses the MLP.
    """
    ground = ground_of(method) if build is None else Ground(method, build)
    for check in CHECKS:
        check(ground)


@contextmanager
def _unchanged(record: Record, where: str) -> Iterator[None]:
    """Fails if a record's tensors change meanwhile."""
    before = {name: t.clone() for name, t in record.tensors().items()}
    yield
    for name, value in record.tensors().items():
        assert torch.equal(value, before[name]), f"{where}: field '{name}' was changed in place"


def _probe(k: int) -> Tensor:
    """The same few samples for each of k silos."""
    return torch.from_numpy(generator(5, "probe").normal(size=(7, FEATURES))).expand(k, -1, -1)


def _perturbed(value: Tensor) -> Tensor:
    if value.dtype.is_floating_point:
        noise = torch.from_numpy(generator(7, "perturb").normal(size=tuple(value.shape))).to(value.dtype)
        return value + 0.1 * (1 + value.abs().mean()) * noise
    if value.dtype == torch.bool:
        return ~value
    return value.roll(1, -1) if value.ndim and value.shape[-1] > 1 else value + 1


def _same(a: Tensor, b: Tensor, message: str) -> None:
    worst = float((a - b).abs().max())
    assert worst < 1e-9, f"{message} (largest difference {worst:.2g})"
