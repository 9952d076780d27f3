"""Differential privacy: what leaves is clipped and noised, the noise is the silo's own, and ε is dp-accounting's."""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import pytest
import torch
from oracle import Oracle, close
from scipy.optimize import brentq
from scipy.stats import norm

from coterie.conformance import CHECKS, Ground, ground_of, rounds, small_silos, trained
from coterie.engine.method import Roster
from coterie.engine.rounds import drawn
from coterie.engine.training import Training
from coterie.errors import BadInput
from coterie.keys import gaussian
from coterie.methods import METHODS, make
from coterie.methods.wrappers.accounting import composed
from coterie.methods.wrappers.changes import bases, changes
from coterie.methods.wrappers.personal import local_buffers
from coterie.methods.wrappers.spent import spent, spent_by_all

COVERED = {
    "fedper", "lg-fedavg", "fedrep", "fedbabu", "fedbn", "fedrod", "knn-per", "fedsa-lora", "ffa-lora",
    "fedavg", "fedprox", "fedavg-local", "fedavg-ft", "fedprox-ft", "scaffold", "apfl", "ditto", "perfedavg", "pfedme",
    "cfl", "fedamp", "heurfedamp", "fedacs", "fedem", "mr-mtl", "pfedgraph", "fedala",
}  # fmt: skip
OFF = {"clip": math.inf, "noise": 0.0}


@pytest.mark.parametrize("name", sorted(COVERED))
def test_without_clipping_and_noise_nothing_changes_to_the_last_bit(name: str) -> None:
    results = []
    for options in ({}, {"privacy": OFF}):
        ground = Ground(make(name, options))
        engine = ground.engine()
        server, predicted = trained(ground, engine)
        results.append([*server.tensors().values(), *engine.private().tensors().values(), predicted])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("name", METHODS)
def test_methods_of_which_more_leaves_than_noise_covers_refuse(name: str) -> None:
    engine = ground_of(make(name, {})).engine()
    reason = make(name, {"privacy": {}}).refusal(engine.roster, engine.model)
    assert (reason is None) == (name in COVERED), reason


def with_statistics() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))


@pytest.mark.parametrize(("name", "options"), [("fedavg", {}), ("fedper", {}), ("fedavg", {"personal": ["head"]})])
def test_statistics_of_the_data_that_leave_are_refused_and_how_to_keep_them_is_said(
    name: str, options: dict[str, object]
) -> None:
    method = make(name, {"privacy": {}, **options})
    engine = Ground(method, with_statistics).engine()
    assert "[train] buffers = 'local' or fedbn" in (method.refusal(engine.roster, engine.model) or "")
    assert local_buffers(method, engine.model).refusal(engine.roster, engine.model) is None


@pytest.mark.parametrize(("name", "options"), [("fedbn", {}), ("fedavg", {"personal": ["norm"]})])
def test_where_normalisation_stays_on_the_silos_noise_covers_all_that_leaves(
    name: str, options: dict[str, object]
) -> None:
    clip, z = 0.05, 3.0
    silos, ups = small_silos(sizes=(14, 8, 22, 6)), list[torch.Tensor]()
    for noise in (0.0, z):
        method = make(name, {"privacy": {"clip": clip, "noise": noise}, **options})
        ground = Ground(method, with_statistics, silos)
        engine = ground.engine()
        assert method.refusal(engine.roster, engine.model) is None
        ups.append(rounds(ground, engine, method.open(engine.roster, engine.model), 0, 1)[1].w)
    shared, norm_ = method.shared(engine.model), engine.model.columns("norm")
    assert ups[0].shape[1] == shared.width == shared.trained and not {*shared.names} & {*norm_.names}
    keys = [f"privacy,{engine.seed},0,{name!r},".encode() for name in engine.roster.names]
    close(ups[1] - ups[0], z * clip * np.stack([gaussian(key, shared.width) for key in keys]))


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedem"])
def test_all_fields_together_are_clipped_and_the_noise_has_its_deviation(name: str) -> None:
    """Against NumPy: the plain upload's change, scaled back as one vector, and the noise by its key."""
    clip, z = 0.05, 3.0
    oracle = Oracle()
    plain = make(name, {})
    base = bases(plain)
    free = oracle.play(plain, rounds=1)
    down = plain.send(free.servers[0], None)
    told = [oracle.play(make(name, {"privacy": {"clip": clip, "noise": n}}), rounds=1).ups[0] for n in (0.0, z)]
    moved, clipped, noised = (
        np.concatenate([t.flatten(1).numpy() for t in changes(up, down, base).values()], 1)
        for up in (free.ups[0], *told)
    )
    lengths = np.linalg.norm(moved, axis=1, keepdims=True)
    assert (lengths > clip).all()
    close(clipped, moved * clip / lengths)
    engine = oracle.engine(plain)
    keys = [f"privacy,{engine.seed},0,{name!r},".encode() for name in engine.roster.names]
    close(noised - clipped, z * clip * np.stack([gaussian(key, moved.shape[1]) for key in keys]))


def test_the_noise_is_gaussian_and_goes_by_its_key() -> None:
    from scipy.stats import kstest

    a, b = gaussian(b"a", 20_000), gaussian(b"b", 20_000)
    assert kstest(a, "norm").pvalue > 0.01 and abs(np.corrcoef(a, b)[0, 1]) < 0.03
    np.testing.assert_array_equal(a, gaussian(b"a", 20_000))


def test_a_silos_noise_goes_by_its_secret_and_by_what_it_hides() -> None:
    """Same secret and change, same bits; another change has noise of its own, or the difference would bare it."""
    method = make("fedavg", {"privacy": {"clip": 1e6, "noise": 1e-6}})
    ground = Ground(method)
    engine = ground.engine()
    server = method.open(engine.roster, engine.model)

    def noise(secret: str, shift: float = 0.0) -> torch.Tensor:
        task = replace(engine.task(torch.tensor([0]), 0), secret=secret)
        down = method.send(server, None)
        up = method.method.up(w=server.w[None] + 1 + shift)
        return method._noised(task, down, up).w - up.w

    assert torch.equal(noise("mine"), noise("mine"))
    task, down = replace(engine.task(torch.tensor([0]), 0), secret="mine"), method.send(server, None)
    one, other = (make("fedavg", {"privacy": {"clip": 1e6, "noise": z}}) for z in (1e-6, 2e-6))
    up = method.method.up(w=server.w[None] + 1)
    both = [each._noised(task, down, up).w - up.w for each in (one, other)]  # the same change at two scales
    assert not torch.allclose(both[1], 2 * both[0], atol=1e-3)
    assert not torch.allclose(noise("mine"), noise("other"), atol=1e-3)
    assert not torch.allclose(noise("mine"), noise("mine", shift=0.5), atol=1e-3)
    assert torch.allclose(noise(""), noise("", shift=0.5), atol=1e-6)  # a simulation's goes by the seed alone


HUGE = 3e38  # as good as the largest number of float32: the squares of such have no sum there


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ([math.nan] * 4, [0.0] * 4),
        ([math.inf, -math.inf, math.nan, 0.0], [0.0] * 4),
        ([math.nan, 0.3, math.inf, -0.4], [0.0, 0.3, 0.0, -0.4]),
        ([HUGE, -HUGE, 0.0, HUGE], [3**-0.5, -(3**-0.5), 0.0, 3**-0.5]),
        ([HUGE, math.nan, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]),
    ],
)
@pytest.mark.parametrize("noise", [0.0, 2.0])
def test_whatever_training_made_of_a_model_a_clipped_change_leaves_and_its_noise(
    change: list[float], expected: list[float], noise: float
) -> None:
    left, exact = (leaving(each, noise) for each in (change, expected))
    assert left.isfinite().all()
    assert (left.norm() > 1.5) == bool(noise)
    torch.testing.assert_close(left, exact, atol=1e-6, rtol=0)


def test_a_change_of_nothing_but_nan_leaves_as_no_change_to_the_last_bit() -> None:
    assert torch.equal(leaving([math.nan] * 4, 2.0, "mine"), leaving([0.0] * 4, 2.0, "mine"))


def leaving(change: list[float], noise: float, secret: str = "") -> torch.Tensor:
    """What leaves a silo that was sent zeros and has changed them so."""
    method = make("fedavg", {"privacy": {"clip": 1.0, "noise": noise}})
    task = replace(Ground(method).engine().task(torch.tensor([0]), 0), secret=secret)
    return method._noised(task, method.down(w=torch.zeros(4)), method.up(w=torch.tensor([change]))).w


def analytic(uploads: dict[float, int], delta: float) -> float:
    """ε by Balle & Wang, "Improving the Gaussian Mechanism for Differential Privacy", ICML 2018, Theorem 8.

    Gaussian mechanisms with ratios σ_i of noise to sensitivity are together one with 1/σ² = Σ 1/σ_i²; replacing all
    data of a silo moves a change by 2 C, so σ_i = z_i / 2.
    """
    sigma = sum(count / (z / 2) ** 2 for z, count in uploads.items()) ** -0.5

    def excess(epsilon: float) -> float:
        half, shift = 1 / (2 * sigma), epsilon * sigma
        return norm.cdf(half - shift) - math.exp(epsilon) * norm.cdf(-half - shift) - delta

    return float(brentq(excess, 0, 500))


def epsilon(uploads: dict[float, int], delta: float) -> float:
    """ε of so many uploads of each noise for replacing all data of a silo by any other.

    That turns a change of length C around at most, so it moves an upload by 2 C: the noise is z/2 times that.
    """
    return composed({(1.0, noise / 2): times for noise, times in uploads.items()}, delta)


@pytest.mark.parametrize("uploads", [{1.1: 30}, {4.0: 30}, {8.0: 200}, {2.0: 1}, {8.0: 60, 4.0: 30, 1.5: 1}])
@pytest.mark.parametrize("delta", [1e-5, 1e-7])
def test_epsilon_composes_all_uploads_whatever_their_noise(uploads: dict[float, int], delta: float) -> None:
    assert epsilon(uploads, delta) == pytest.approx(analytic(uploads, delta), rel=1e-3)


def test_no_noise_is_no_privacy() -> None:
    assert epsilon({0.0: 1, 8.0: 1}, 1e-5) == math.inf


def half_asked(seeds: Iterable[int], rounds: int) -> Counter[str]:
    """How often each of four silos is asked, by the rounds' own draw."""
    times = Counter[str]()
    for seed in seeds:
        roster = Roster(tuple(SILOS), torch.arange(4), torch.arange(4), seed)
        for r in range(rounds):
            times.update([*SILOS][i] for i in drawn(roster, torch.arange(4), "cohort", r, 0.5, at_least=1).tolist())
    return times


SILOS = dict.fromkeys(("a", "b", "c", "d"), 20)


def test_the_uploads_of_a_method_add_up_over_its_seeds() -> None:
    wrapped = make("fedavg", {"privacy": {"noise": 8.0}, "compress": {"bits": 8}, "robust": {}})
    about = spent({"fedavg": wrapped}, {"fedavg": Training(rounds=30)}, dict.fromkeys((0, 1, 2), SILOS))
    assert about["fedavg"]["uploads"] == 90
    assert about["fedavg"]["epsilon"] == pytest.approx(analytic({8.0: 90}, 1e-5), rel=1e-3)
    assert about["fedavg"]["epsilon"] == pytest.approx(12.36, abs=0.01)  # of one seed alone it is 6.33


def test_every_candidate_of_a_search_uploads_too() -> None:
    wrapped = {"fedavg": make("fedavg", {"privacy": {"noise": 8.0}})}
    trainings, members = {"fedavg": Training(rounds=30)}, dict.fromkeys((0, 1), SILOS)
    told = spent(wrapped, trainings, members, {"fedavg": [40, 20, 10, 5]})["fedavg"]  # in the first seed alone
    assert (told["uploads"], told["in_search"]) == (135, 75)
    assert told["epsilon"] == pytest.approx(analytic({8.0: 135}, 1e-5), rel=1e-3)
    together = spent_by_all(wrapped, trainings, members, {"fedavg": [40, 20, 10, 5]})
    assert together["epsilon"] == pytest.approx(told["epsilon"])


def test_the_silo_that_is_asked_most_often_over_all_seeds_is_the_one_that_counts() -> None:
    training, asked = Training(rounds=6, participation=0.5), half_asked((3, 4), 6)
    told = spent({"fedavg": make("fedavg", {"privacy": {}})}, {"fedavg": training}, dict.fromkeys((3, 4), SILOS))
    assert told["fedavg"]["uploads"] == max(asked.values())


def test_a_run_spends_what_all_its_methods_spend_of_the_worst_silo() -> None:
    """The silo that one method asks most often need not be the one that is worst off."""
    methods = {
        "fedavg": make("fedavg", {"privacy": {"noise": 3.0, "delta": 1e-6}}),
        "fedamp": make("fedamp", {"privacy": {"noise": 5.0, "delta": 1e-5}}),
        "separate": make("separate", {}),
    }
    trainings = {
        "fedavg": Training(rounds=6, participation=0.5),
        "fedamp": Training(rounds=10),
        "separate": Training(rounds=50),
    }
    told = spent_by_all(methods, trainings, {3: SILOS})
    silo, times = half_asked([3], 6).most_common(1)[0]
    assert told["delta"] == 1e-6 and told["silo"] == silo and told["unprotected"] == []
    assert told["epsilon"] == pytest.approx(analytic({3.0: times, 5.0: 10}, 1e-6), rel=1e-3)


@pytest.mark.parametrize("other", [{}, {"privacy": {"noise": 0.0}}])
def test_one_method_that_uploads_without_noise_leaves_the_run_without_privacy(other: dict[str, object]) -> None:
    methods = {"fedavg": make("fedavg", {"privacy": {}}), "ours": make("fedamp", other)}
    told = spent_by_all(methods, dict.fromkeys(methods, Training(rounds=2)), {0: SILOS})
    assert told["epsilon"] == math.inf and told["unprotected"] == ["ours"]


def test_a_run_without_privacy_says_nothing_of_it() -> None:
    methods = {"fedavg": make("fedavg", {})}
    trainings = {"fedavg": Training(rounds=2)}
    assert spent(methods, trainings, {0: SILOS}) == {} == spent_by_all(methods, trainings, {0: SILOS})


def test_noise_without_a_clip_is_refused() -> None:
    with pytest.raises(BadInput, match="finite clip"):
        make("fedavg", {"privacy": {"clip": math.inf, "noise": 1.0}})


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize("name", ["fedamp", "scaffold"])
def test_conformance(name: str, check: Callable[[Ground], None]) -> None:
    check(Ground(make(name, {"privacy": {"clip": 0.5, "noise": 0.01}})))


def test_what_a_silo_keeps_is_not_noised() -> None:
    kept = []
    for options in ({}, {"privacy": {"clip": 0.01, "noise": 5.0}}):
        ground = Ground(make("fedamp", options))
        engine = ground.engine()
        rounds(ground, engine, ground.method.open(engine.roster, engine.model), 0, 1)
        kept.append(engine.private().w)
    assert torch.equal(*kept)
