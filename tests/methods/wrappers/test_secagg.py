"""Secure aggregation: sums come out, whoever drops out when, and single uploads never do."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.conformance import Ground, small_linear, small_mlp, small_silos
from coterie.engine.exchange import Failure, Replies
from coterie.engine.method import Cohort, Method
from coterie.engine.rounds import Outcome, run_rounds
from coterie.engine.simulate import Simulator
from coterie.engine.training import Training
from coterie.errors import BadInput
from coterie.keys import generator
from coterie.measure.gaussian import gaussian_epsilon
from coterie.methods import METHODS, make
from coterie.methods.wrappers.secagg import SecAgg, weighing
from coterie.methods.wrappers.spent import in_sum, spent, spent_by_all
from coterie.wire import stack

MEANS = (
    "fedavg", "fedprox", "fedavg-local", "fedavg-ft", "fedprox-ft", "fedper", "lg-fedavg", "fedrep", "fedbabu", "fedbn",
    "fedrod", "knn-per", "fedsa-lora", "ffa-lora", "scaffold", "apfl", "ditto", "mr-mtl", "fedala", "perfedavg",
    "pfedme", "fedem",
)  # fmt: skip
SILOS = small_silos(sizes=(13, 8, 21, 5, 9, 7))


class Losing(Simulator):
    """Loses one silo's upload in a round and another one's answer: as a network does, after the silos were asked."""

    lost_answers = 1

    def train(self, cohort: Cohort, down: Any) -> Replies:
        replies = super().train(cohort, down)
        here = self._kept(cohort, 1, "upload")
        gone = cohort.ids[[row for row in range(len(cohort)) if row not in here.tolist()]]
        self._private = self._private.put(gone, self._before.take(gone))
        failures = {self.roster.names[silo]: Failure("lost") for silo in gone.tolist()}
        return replace(
            replies, cohort=replace(cohort, ids=cohort.ids[here]), up=replies.up.take(here), failures=failures
        )

    def confirm(self, cohort: Cohort, question: Any) -> Replies:
        replies = super().confirm(cohort, question)
        here = self._kept(cohort, self.lost_answers, "answer")
        return replace(replies, cohort=replace(cohort, ids=cohort.ids[here]), up=replies.up.take(here))

    def _kept(self, cohort: Cohort, lost: int, purpose: str) -> Tensor:
        order = generator(0, purpose, cohort.round).permutation(len(cohort))
        return torch.from_numpy(np.sort(order[lost:]))


def run(method: Method, kind: type[Simulator] = Losing, rounds: int = 10) -> tuple[list[Tensor], Outcome]:
    """What the silos would deploy in the end, and what the run was."""
    ground = Ground(method, silos=SILOS)
    engine = replace(ground, training=replace(ground.training, rounds=rounds, local_epochs=1)).engine(kind=kind)
    outcome = run_rounds(engine.method, engine, engine.roster, engine.model, engine.training)
    everyone = Cohort.everyone(engine.roster, engine.model, rounds - 1)
    return [*engine.personal(everyone, engine.method.send(outcome.server, everyone)).tensors().values()], outcome


@pytest.mark.parametrize("name", MEANS)
def test_ten_rounds_that_lose_uploads_and_answers_end_as_in_the_clear(name: str) -> None:
    (plain, _), (secure, outcome) = run(make(name, {})), run(make(name, {"secagg": {}}))
    assert not outcome.rejected
    assert max(float((a.double() - b.double()).abs().max()) for a, b in zip(plain, secure, strict=True)) < 1e-6


@pytest.mark.parametrize("name", [name for name in METHODS.packaged if name not in MEANS])
def test_every_other_method_refuses_and_gives_the_reason(name: str) -> None:
    reasons = []
    for build in (small_mlp, small_linear):
        engine = Ground(make(name, {}), build).engine()
        reasons.append(make(name, {"secagg": {}}).refusal(engine.roster, engine.model) or "")
    assert all(reasons) and any("secagg: " in reason for reason in reasons)


def test_how_silos_are_weighed_is_found_from_the_servers_step() -> None:
    found = {name: weighing(make(name, {})) for name in ("fedavg", "fedem", "scaffold", "perfedavg", "fedamp", "cfl")}
    assert found == {"fedavg": "samples", "fedem": "samples", "scaffold": "each", "perfedavg": "each"} | {
        "fedamp": None, "cfl": found["cfl"]
    }  # fmt: skip


def test_all_silos_may_count_alike() -> None:
    uneven, even = (run(make("fedavg", {"secagg": options}))[0] for options in ({}, {"weights": "each"}))
    plain, _ = run(make("perfedavg", {"secagg": {"weights": "method"}}))
    assert (uneven[0] - even[0]).abs().max() > 1e-3
    assert plain[0].isfinite().all()


def test_a_round_of_which_too_few_are_left_is_void_and_leaves_no_trace() -> None:
    class TooFew(Losing):
        lost_answers = 2  # of six silos one upload and two answers: three are left, and four are needed

    method = make("fedavg-local", {"secagg": {}})
    models, outcome = run(method, TooFew, rounds=2)
    assert {each["reason"] for each in outcome.rejected} == {"3 of 6 silos are left, and a sum needs 4: void"}
    engine = Ground(method, silos=SILOS).engine()
    assert torch.equal(models[0], engine.private().w)  # as before the first round


class Round:
    """One round, step by step."""

    def __init__(self, **options: Any) -> None:
        self.method: Any = make("fedavg-local", {"secagg": options})
        self.engine = Ground(self.method, silos=SILOS).engine()
        self.asked = Cohort.everyone(self.engine.roster, self.engine.model, 0)
        self.down = self.method.send(self.method.open(self.engine.roster, self.engine.model), self.asked)
        self.up = self.engine.train(self.asked, self.down).up

    def question(self, silos: list[int]) -> Any:
        cohort = replace(self.asked, ids=torch.tensor(silos))
        return self.method.confirm(self.asked, cohort, self.up.take(cohort.ids))

    def answers(self, silos: list[int]) -> Any:
        return self.engine.confirm(replace(self.asked, ids=torch.tensor(silos)), self.question(silos)).up

    def summed(self, silos: list[int], revealed: Any, answered: list[int] | None = None, up: Any = None) -> Any:
        cohort = replace(self.asked, ids=torch.tensor(silos))
        back = replace(self.asked, ids=torch.tensor(silos if answered is None else answered))
        mine = (self.up if up is None else up).take(cohort.ids)
        return self.method.summed(self.asked, cohort, mine, back, revealed).w

    def mean(self, silos: list[int]) -> Tensor:
        w, n = self.engine.private().w[silos], self.engine.roster.sizes[silos].double()
        return (n[:, None] * w).sum(0) / n.sum()


SOME = [0, 2, 3, 4, 5]


def test_the_sum_is_that_of_the_uploads_that_count() -> None:
    one = Round()
    torch.testing.assert_close(one.summed(SOME, one.answers(SOME))[0], one.mean(SOME), atol=1e-8, rtol=0)


def test_what_was_sealed_in_a_round_opens_among_its_very_silos_alone() -> None:
    one = Round()
    ours, others = (replace(one.asked, ids=torch.tensor(silos)) for silos in ([0, 1, 2, 3], [0, 1, 2, 4]))
    up = one.engine.train(ours, one.down.replace(peers=ours.ids)).up
    counted = replace(one.asked, ids=torch.tensor([0, 1, 2]))
    for asked, opens in ((ours, True), (others, False)):
        question = one.method.confirm(asked, counted, up.take(torch.arange(3)))
        assert bool(one.engine.confirm(counted, question).up.shares.any()) == opens


def test_one_share_that_is_wrong_is_left_out_and_too_many_make_the_round_void() -> None:
    one = Round()
    answers = one.answers(SOME)
    lying = answers.replace(shares=answers.shares.clone())
    lying.shares[1] = lying.shares[1].roll(1, -1)
    torch.testing.assert_close(one.summed(SOME, lying)[0], one.mean(SOME), atol=1e-8, rtol=0)
    lying.shares[2:4] = lying.shares[2:4].roll(1, -1)
    with pytest.raises(BadInput, match="void"):
        one.summed(SOME, lying)


def test_shares_that_are_not_what_was_sealed_are_not_opened_and_the_others_suffice() -> None:
    one = Round()
    one.up.sealed[3, 0] = one.up.sealed[3, 0].flip(0)  # what silo 3 has sealed to silo 0
    answers = one.answers(SOME)
    assert not answers.shares[0, 3].any()
    torch.testing.assert_close(one.summed(SOME, answers)[0], one.mean(SOME), atol=1e-8, rtol=0)


def test_an_upload_sealed_for_another_number_of_silos_makes_the_round_void() -> None:
    one = Round()
    one.up = one.up.replace(sealed=one.up.sealed[:, :-1])
    with pytest.raises(BadInput, match="void"):
        one.question(SOME)


def test_an_upload_that_is_not_what_was_committed_to_makes_the_round_void() -> None:
    one = Round()
    answers = one.answers(SOME)
    with pytest.raises(BadInput, match="void"):
        one.summed(SOME, answers, up=one.up.replace(w=one.up.w.flip(1)))
    commitments = one.up.commitments.clone()
    commitments[0] = 0
    with pytest.raises(BadInput, match="void"):
        one.summed(SOME, answers, up=one.up.replace(commitments=commitments))


@pytest.mark.parametrize(("silos", "said"), [([0, 2, 3], "needs 4"), ([1, 2, 3, 4], "own upload")])
def test_a_silo_reveals_nothing_for_a_set_that_is_too_small_or_without_it(silos: list[int], said: str) -> None:
    one = Round()
    question = one.question(silos)
    with pytest.raises(BadInput, match=said):
        one.method.confirmed(one.engine.task(torch.tensor([0]), 0), question.take(torch.tensor([0])))


def test_nobody_reveals_the_own_seed_of_who_does_not_count_nor_a_pair_of_two_who_do() -> None:
    one = Round()
    shares = one.answers(SOME).shares  # (answers, of silo, secret, bytes)
    assert not shares[:, 1].any()
    assert shares[:, SOME, 6].any(-1).all() and shares[:, SOME, 1].any(-1).all()
    assert not shares[:, :, SOME].any()


def test_no_upload_correlates_with_its_model_a_planted_one_does_and_the_mean_alone_comes_out() -> None:
    one = Round()
    seen, models = one.up.w.double().numpy(), one.engine.private().w.numpy()
    assert correlation(seen, models) < 3
    seen[3] = models[3] * 2.0**62
    assert correlation(seen[3], models[3]) > 5
    means = one.summed(SOME, one.answers(SOME))
    assert torch.equal(means, means[:1].expand_as(means))


def correlation(seen: np.ndarray, models: np.ndarray) -> float:
    """Between what was seen and the models, in standard errors of chance."""
    return float(abs(np.corrcoef(seen.ravel(), models.ravel())[0, 1]) * seen.size**0.5)


def test_an_upload_of_another_round_does_not_open_in_this_one() -> None:
    """A server that keeps an upload and puts it into a later sum, whose others it knows, learns nothing."""
    one = Round()
    later = replace(one.asked, round=1)
    up = one.engine.train(later, one.down).up
    mixed = stack([one.up.take(torch.tensor([0])), up.take(torch.arange(1, 6))])  # silo 0 as it was a round ago
    answers = one.engine.confirm(later, one.method.confirm(later, later, mixed)).up
    assert not answers.shares[1:, 0].any()
    with pytest.raises(BadInput, match="void"):
        one.method.summed(later, later, mixed, later, answers)


def test_a_set_that_counts_a_silo_that_sent_nothing_opens_nothing_of_it_and_is_void() -> None:
    one = Round()
    question = one.question(SOME)
    lie = question.replace(counted=torch.ones_like(question.counted))
    answers = one.engine.confirm(replace(one.asked, ids=torch.tensor(SOME)), lie).up
    assert not answers.shares[:, 1].any()
    assert not answers.shares[:, SOME, 1].any()  # nor the seeds of its pairs: it counts
    with pytest.raises(BadInput, match="void"):
        one.summed(SOME, answers)


def test_the_same_upload_again_has_the_same_bits_and_another_one_another_mask() -> None:
    one, again = Round(), Round()
    assert torch.equal(one.up.w, again.up.w) and torch.equal(one.up.sealed, again.up.sealed)
    task = one.engine.task(torch.tensor([0]), 0)
    other = one.method.masked(task, one.method.method.up(w=one.engine.private().w[:1] + 1e-6), one.down)
    assert not torch.equal(other.nonce[0], one.up.nonce[0])
    assert (other.w[0] - one.up.w[0]).double().abs().median() > 2.0**55


def test_a_model_out_of_range_does_not_count_and_the_others_do() -> None:
    method = make("fedavg", {"secagg": {"limit": 1.0}})
    _, outcome = run(method, Simulator, rounds=2)
    assert all("out_of_range" in each["reason"] or "void" in each["reason"] for each in outcome.rejected)


def test_a_search_and_a_federation_of_two_are_refused() -> None:
    with pytest.raises(BadInput, match="give lr a value"):
        Round().method.receive(None, None, Round().up)
    two = Ground(make("fedavg", {"secagg": {}}), silos=small_silos(sizes=(9, 8))).engine()
    assert "sum of two" in (two.method.refusal(two.roster, two.model) or "")


def test_how_many_are_needed() -> None:
    assert [SecAgg().least(n) for n in (3, 4, 6, 10)] == [2, 3, 4, 7]
    barely = SecAgg(threshold=0.5 + 1e-12)  # of two halves, each would reveal for another set
    assert [barely.least(n) for n in (3, 4, 5, 10)] == [2, 3, 3, 6]


NOISE = {"clip": 0.01, "noise": 100.0}  # a deviation of 1 on every number of every upload


def test_the_noise_of_all_silos_is_in_a_sum() -> None:
    method = make("fedavg", {"privacy": NOISE, "secagg": {"weights": "each"}})
    ground = Ground(method, silos=SILOS)
    engine = replace(ground, training=replace(ground.training, rounds=1)).engine(kind=Losing)
    start = method.open(engine.roster, engine.model).w
    outcome = run_rounds(method, engine, engine.roster, engine.model, engine.training)
    found = float((outcome.server.w - start).std()) * 5**0.5  # of six uploads one is lost
    assert abs(found - 1) < 4 / (2 * len(start)) ** 0.5


@pytest.mark.parametrize(
    ("options", "silos"), [({"weights": "each"}, 4), ({}, 1), ({"weights": "each", "threshold": 1.0}, 6)]
)
def test_epsilon_counts_the_noise_that_is_at_least_in_a_sum(options: dict[str, Any], silos: int) -> None:
    """Recomputed by the closed form of Gaussian mechanisms, which the accountant knows nothing of."""
    pytest.importorskip("dp_accounting")
    training, members = Training(rounds=20), {0: {silo.name: len(silo.train) for silo in SILOS}}
    method = make("fedavg", {"privacy": {"clip": 1.0, "noise": 8.0}, "secagg": options})
    told = spent({"fedavg": method}, {"fedavg": training}, members)["fedavg"]
    expected = gaussian_epsilon(20 * (2 / (8.0 * silos**0.5)) ** 2, 1e-5)
    assert told["epsilon"] == pytest.approx(expected, rel=0.01)
    assert told.get("silos_in_sum", 1) == silos
    both = spent_by_all({"fedavg": method}, {"fedavg": training}, members)
    assert both["epsilon"] == pytest.approx(told["epsilon"])


def test_a_method_that_weighs_alike_by_itself_is_accounted_so() -> None:
    members = {0: {silo.name: len(silo.train) for silo in SILOS}}
    privacy = {"privacy": {"noise": 8.0}}
    assert in_sum(make("perfedavg", {**privacy, "secagg": {}}), Training(), members) == 4
    assert in_sum(make("perfedavg", privacy), Training(), members) == 1
    assert in_sum(make("perfedavg", {**privacy, "secagg": {}}), Training(participation=0.5), members) == 2
