"""Uploads are judged before they count: what is no model is rejected, named, and leaves no trace."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from plain import make_engine
from rogue import Rogue, Spoil, huge, not_a_number, stale
from torch import Tensor, nn

from coterie.conformance import ground_of
from coterie.engine.exchange import Engine
from coterie.engine.judge import alike, verdicts
from coterie.engine.method import Cohort
from coterie.engine.rounds import Outcome, run_rounds
from coterie.engine.simulate import Simulator
from coterie.methods import METHODS, make
from coterie.methods.fedem import ComponentsUp
from coterie.methods.parts.averaging import GlobalDown, ModelUp
from coterie.methods.scaffold import ChangeUp, ControlledDown
from coterie.wire import described


def build() -> nn.Module:
    return nn.Linear(5, 3)


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
    reasons, _ = verdicts(ModelUp(w=models(*lengths)), GlobalDown(w=models(sent)[0]), 9, limit=10)
    assert set(reasons) == rejected
    assert not verdicts(ModelUp(w=models(*lengths)), GlobalDown(w=models(sent)[0]), 9, limit=0)[0]


def test_a_change_is_held_against_the_model_and_not_against_the_control_variate() -> None:
    up = ChangeUp(dw=models(0.1, 5, 0.1), dc=models(3, 1, 1))
    down = ControlledDown(w=models(0.2)[0], c=models(100)[0])
    reasons, _ = verdicts(up, down, 9, limit=10)
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
