"""Uploads are judged before they count: what is no model is rejected, named, and leaves no trace."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from plain import make_engine, make_silos
from rogue import Rogue, Spoil, huge, not_a_number, stale
from torch import Tensor, nn

from coterie.conformance import ground_of
from coterie.engine.exchange import Engine
from coterie.engine.judge import alike, judged, verdicts
from coterie.engine.method import Cohort, Roster
from coterie.engine.rounds import Outcome, run_rounds
from coterie.engine.rows import Model
from coterie.engine.simulate import Simulator
from coterie.methods import METHODS, make
from coterie.methods.fedem import ComponentsUp
from coterie.methods.parts.averaging import GlobalDown, ModelUp
from coterie.methods.scaffold import ChangeUp, ControlledDown
from coterie.methods.wrappers.candidates import Candidates
from coterie.wire import Down, Up, described


def build() -> nn.Module:
    return nn.Linear(5, 3)


MODEL = Model(build, 3)


def engine_of(method: str, **options: object) -> Simulator:
    """Silos one by one, so that another's absence does not change the order of anyone's arithmetic."""
    return make_engine(build, method=make(method, options), rows=1, rounds=4)


def run(inner: Simulator, engine: Engine) -> Outcome:
    return run_rounds(inner.method, engine, inner.roster, inner.model, inner.training)


class Silent(Rogue):
    """An engine whose silo of that name is never there."""

    def train(self, cohort, down):
        here = torch.tensor([cohort.roster.names[i] != self.silo for i in cohort.ids.tolist()])
        return self.engine.train(replace(cohort, ids=cohort.ids[here]), down.take(here.nonzero()[:, 0]))


@pytest.mark.parametrize(("spoil", "reason"), [(not_a_number, "not finite"), (huge, "long; usual")])
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedamp", "apple", "fedem", "fedfomo", "fedavg-local"])
def test_a_rejected_silo_is_as_if_it_had_never_replied(method: str, spoil: Spoil, reason: str) -> None:
    engine, other = engine_of(method), engine_of(method)
    outcome, absent = run(engine, Rogue(engine, "south", spoil)), run(other, Silent(other, "south", spoil))
    for name, value in absent.server.tensors().items():
        assert torch.equal(outcome.server.tensors()[name], value), name
    for name, value in other.private().tensors().items():
        assert torch.equal(engine.private().tensors()[name], value), f"private {name} was not rolled back"
    assert [(each["round"], each["silo"]) for each in outcome.rejected] == [(r, "south") for r in (1, 2, 3, 4)]
    assert all(reason in each["reason"] for each in outcome.rejected)
    assert outcome.missing == 4


def test_an_upload_sent_again_is_rejected_and_one_that_is_new_is_not() -> None:
    engine = engine_of("fedavg")
    outcome = run(engine, Rogue(engine, "south", stale()))
    assert [(each["round"], each["silo"], each["reason"]) for each in outcome.rejected] == [
        (r, "south", "it is what the silo last sent") for r in (2, 3, 4)
    ]
    honest = engine_of("fedavg")
    assert run(honest, honest).rejected == []


class Still(Rogue):
    """An engine whose silo of that name has converged: it sends back what it was sent, as `down` has it."""

    def train(self, cohort, down):
        replies = self.engine.train(cohort, down)
        w = replies.up.w.clone()
        w[cohort.roster.names.index(self.silo)] = down.w
        return replace(replies, up=replies.up.replace(w=w))


def test_a_silo_that_was_sent_the_same_and_sends_the_same_has_converged() -> None:
    """Nobody learns at a rate of 1e-30: every silo sends, round after round, the model that it was sent."""
    engine = make_engine(build, method=make("fedavg", {}), rows=1, rounds=4, lr=1e-30)
    assert run(engine, engine).rejected == []
    moving = engine_of("fedavg")
    assert run(moving, Still(moving, "south", huge)).rejected == []


def test_a_run_that_goes_on_knows_what_was_sent_before() -> None:
    """What the judge remembers survives JSON, and a memory of lengths alone, as older checkpoints have it, is none."""
    engine, heard = engine_of("fedavg"), dict[str, Any]()
    server, cohort = engine.method.open(engine.roster, engine.model), Cohort.everyone(engine.roster, engine.model, 0)
    first = engine.method.send(server, cohort)
    other = GlobalDown(w=1.1 * first.w)

    def rejected(down: GlobalDown, memory: dict[str, Any]) -> list[str]:
        replies = engine.train(cohort, first)  # whatever it was sent
        return list(judged(engine.method, engine, cohort.ids, down, replies, 10, memory).rejected)

    assert rejected(first, heard) == []
    heard = json.loads(json.dumps(heard))
    assert rejected(first, heard) == []
    assert rejected(other, heard) == ["north", "south", "east"]
    assert rejected(other, {name: said for name, (said, _) in heard.items()}) == []


def test_a_silo_that_may_train_on_from_its_own_model_may_come_to_rest_whatever_it_is_sent() -> None:
    """FedFomo: where no other silo's model does better, a silo goes on with its own, and gradients of zero end it."""
    engine = engine_of("fedfomo")
    assert run(engine, Rogue(engine, "south", stale())).rejected == []


def zero() -> nn.Module:
    model = nn.Linear(5, 3)
    for p in model.parameters():
        nn.init.zeros_(p)
    return model


SIZES = (10, 13, 9, 11, 1000)


def from_zero(method: str) -> Simulator:
    """Silos whose sizes differ a hundredfold, at a rate at which they move in proportion to their steps."""
    return make_engine(zero, make_silos(SIZES), make(method, {}), rounds=4, local_epochs=1, lr=1e-3)


@pytest.mark.parametrize("method", ["fedavg", "fedamp", "heurfedamp", "fedacs", "mocha", "cfl", "fedem"])
def test_from_zero_honest_silos_of_a_hundredfold_size_count(method: str) -> None:
    engine = from_zero(method)
    assert run(engine, engine).rejected == []


@pytest.mark.parametrize("silo", ["north", "centre"], ids=["a small rogue", "the largest is one"])
@pytest.mark.parametrize("method", ["fedavg", "fedamp", "heurfedamp", "fedacs", "mocha", "cfl", "fedem"])
def test_from_zero_a_rogue_a_thousand_times_as_long_does_not(method: str, silo: str) -> None:
    engine = from_zero(method)
    outcome = run(engine, Rogue(engine, silo, lambda row, name, round: 1e3 * row))
    assert [(each["round"], each["silo"]) for each in outcome.rejected] == [(r, silo) for r in (1, 2, 3, 4)]


def test_declaring_many_samples_does_not_make_any_length_usual() -> None:
    roster = Roster(tuple("abc"), torch.tensor([10, 10, 10**9]), torch.zeros(3), 0)
    cohort = Cohort.everyone(roster, MODEL, 0)
    for length, rejected in ((200.0, set()), (400.0, {2})):
        up, down = ModelUp(w=models(1, 1, length)), GlobalDown(w=torch.zeros(2))
        assert set(verdicts(up, down, cohort, limit=10)[0]) == rejected


def of_equal_size(k: int) -> Cohort:
    roster = Roster(tuple("abcdefghi"), torch.full((9,), 20), torch.zeros(9), 0)
    return Cohort(torch.arange(k), 0, roster, MODEL)


def models(*lengths: float) -> Tensor:
    return torch.tensor(lengths)[:, None] * torch.tensor([[0.6, 0.8]])


@pytest.mark.parametrize(
    ("lengths", "sent", "rejected"),
    [
        ((1, 1.2, 9.9, 0.8), 1, set()),
        ((1, 1.2, 10.3, 0.8), 1, {2}),  # the lower median of the four is 1, of which 10 times is the limit
        ((1, 30), 1, {1}),  # of two, the longer one is the rogue
        ((1, 0), 1, set()),
        ((30,), 1, {0}),  # alone, it is held against the model it was sent
        ((0.001, 0.001, 0.5), 1, set()),  # the others hardly moved
    ],
)
def test_lengths_are_held_against_the_median_or_the_model_sent(lengths, sent, rejected) -> None:
    up, down, cohort = ModelUp(w=models(*lengths)), GlobalDown(w=models(sent)[0]), of_equal_size(len(lengths))
    assert set(verdicts(up, down, cohort, limit=10)[0]) == rejected
    assert not verdicts(up, down, cohort, limit=0)[0]


def test_a_change_is_held_against_the_model_and_not_against_the_control_variate() -> None:
    up = ChangeUp(dw=models(0.1, 5, 0.1), dc=models(3, 1, 1))
    down = ControlledDown(w=models(0.2)[0], c=models(100)[0])
    reasons, *_ = verdicts(up, down, of_equal_size(3), limit=10)
    assert set(reasons) == {1} and "'dw'" in reasons[1]


def test_a_wish_for_a_silo_that_does_not_exist_is_rejected() -> None:
    engine = engine_of("apple", budget=1)

    class Wishing(Rogue):
        def train(self, cohort, down):
            replies = self.engine.train(cohort, down)
            asked = replies.up.asked.clone()
            asked[1] = 3
            return replace(replies, up=replies.up.replace(asked=asked))

    outcome = run(engine, Wishing(engine, "", huge))
    assert [each["silo"] for each in outcome.rejected] == ["south"] * 4
    assert "do not exist" in outcome.rejected[0]["reason"]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_declares_the_shapes_it_uploads(name: str) -> None:
    ground = ground_of(make(name, {"budget": 2} if name in ("apple", "fedfomo") else {}))
    engine = ground.engine()
    server = ground.method.open(engine.roster, engine.model)
    cohort = Cohort(torch.arange(4), 0, engine.roster, engine.model)
    up = engine.train(cohort, ground.method.send(server, cohort)).up
    rows = {str(i): up.take(slice(i, i + 1)) for i in range(4)} if up.tensors() else {}
    axes = ground.method.axes(engine.roster, engine.model)
    assert {axis for about in described(up).values() for axis in about.axes} <= axes.keys()
    assert alike(rows, axes, engine.model) == {}


def wide(up: Tensor) -> Tensor:
    return torch.cat([up, up], 1)


@pytest.mark.parametrize("change", [wide, Tensor.float, lambda up: up[0], lambda up: torch.cat([up, up])])
@pytest.mark.parametrize("rogue", [0, 1])
def test_the_wrong_shape_or_type_is_rejected_whoever_comes_first(
    change: Callable[[Tensor], Tensor], rogue: int
) -> None:
    model = ground_of(make("fedavg", {})).model()
    ups = [ModelUp(w=torch.zeros(1, model.width, dtype=torch.float64)) for _ in range(2)]
    ups[rogue] = ups[rogue].map(change)
    wrong = alike(dict(zip("ab", ups, strict=True)), {"d": model.width}, model)
    assert set(wrong) == {"ab"[rogue]}


def test_what_no_axis_fixes_must_be_as_most_have_it() -> None:
    model = ground_of(make("fedavg", {})).model()
    ups = {
        name: ComponentsUp(theta=torch.zeros(1, c, model.width).double())
        for name, c in zip("abc", (2, 3, 3), strict=True)
    }
    assert set(alike(ups, {"d": model.width}, model)) == {"a"}


class TwoUp(Up):
    small: ModelUp
    large: ModelUp


class TwoDown(Down):
    small: GlobalDown
    large: GlobalDown


@pytest.mark.parametrize(
    ("small", "large", "reason"),
    [
        ((1, 1.2, 30, 0.8), (900, 1000, 1100, 1000), "'small.w' is 30 long; usual: 1"),
        ((1, 1.2, 1, 0.8), (900, 1000, 3e4, 1000), "'large.w' is 3e+04 long; usual: 1e+03"),
        ((1, 1.2, torch.nan, 0.8), (900, 1000, 1100, 1000), "'small.w' is not finite"),
        ((1, 1.2, 1, 0.8), (900, 1000, torch.inf, 1000), "'large.w' is not finite"),
    ],
)
def test_records_inside_an_upload_are_each_judged_by_their_own(small, large, reason) -> None:
    up = TwoUp(small=ModelUp(w=models(*small)), large=ModelUp(w=models(*large)))
    down = TwoDown(small=GlobalDown(w=models(1)[0]), large=GlobalDown(w=models(1000)[0]))
    reasons, lengths, marks = verdicts(up, down, of_equal_size(4), limit=10)
    assert reasons == {2: reason}
    assert lengths.shape == marks.shape == (2, 4)


@pytest.mark.parametrize(("spoil", "reason"), [(not_a_number, "not finite"), (huge, "long; usual")])
@pytest.mark.parametrize("method", ["fedavg", "apple", "scaffold"])
def test_a_rogue_among_candidates_is_rejected(method: str, spoil: Spoil, reason: str) -> None:
    engine = make_engine(build, method=Candidates(make(method, {}), (1.0, 0.5)), rows=1, rounds=2)
    outcome = run(engine, Rogue(engine, "south", spoil))
    assert [each["silo"] for each in outcome.rejected] == ["south"] * 2
    assert all("'c0." in each["reason"] and reason in each["reason"] for each in outcome.rejected)
