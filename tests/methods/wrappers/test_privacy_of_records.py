"""Privacy of records: nothing but noised gradients carries a silo's data into its uploads, and ε counts every step."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import gammaln, logsumexp

from coterie.conformance import CHECKS, SIZES, Ground, ground_of, rounds, small_silos
from coterie.data.silo import Part, Silo
from coterie.engine.dpsgd import sampling
from coterie.engine.method import Method
from coterie.engine.task import Task
from coterie.engine.training import Training
from coterie.errors import BadInput
from coterie.measure.gaussian import gaussian_epsilon
from coterie.methods import METHODS, make
from coterie.methods.wrappers.accounting import composed, noise_for
from coterie.methods.wrappers.spent import spent, spent_by_all

COVERED = {
    "fedavg", "fedprox", "fedavg-local", "fedavg-ft", "fedprox-ft", "fedper", "lg-fedavg", "fedbabu", "fedbn",
    "knn-per", "fedsa-lora", "ffa-lora", "apfl", "ditto", "mr-mtl", "cfl", "pfedgraph", "fedamp", "heurfedamp",
    "fedacs", "dfedavg",
}  # fmt: skip
RECORD = {"level": "record"}


def record(name: str, options: dict[str, object] | None = None, **privacy: object) -> Method:
    return make(name, {**(options or {}), "privacy": RECORD | privacy})


def other_data(silo: Silo) -> Silo:
    """A silo of the same size that has nothing else in common with it."""
    parts = {split: getattr(silo, split) for split in ("train", "validation", "test")}
    return Silo(silo.name, **{split: Part(3 - 2 * part.x, (part.y + 1) % 3) for split, part in parts.items()})


def uploads(method: Method, silos: list[Silo]) -> list[torch.Tensor]:
    ground = Ground(method, ground_of(method.method).build, silos)
    engine = ground.engine()
    server, made = method.open(engine.roster, engine.model), list[torch.Tensor]()
    for r in range(3):
        server, up = rounds(ground, engine, server, r, r + 1)
        made += up.tensors().values()
    return made


def carries_more_than_gradients(method: Method) -> bool:
    """Whether uploads depend on the data when all gradients are clipped to nothing."""
    try:
        one, other = (uploads(method, silos) for silos in (small_silos(), [*map(other_data, small_silos())]))
    except BadInput:
        return True  # it takes a loss of its own
    return not all(torch.allclose(a.double(), b.double(), atol=1e-12, rtol=0) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("name", METHODS)
def test_methods_whose_uploads_depend_on_more_than_one_gradient_of_each_batch_refuse(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, plain = Counter[tuple[object, ...]](), Task.grad

    def counted(task: Task, models: torch.Tensor, batch: object, *more: object, **named: object) -> object:
        if task.dpsgd is not None:
            seen[task.dpsgd.key, task.names, batch.draw] += 1  # type: ignore[attr-defined]
        return plain(task, models, batch, *more, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Task, "grad", counted)
    method = record(name, clip=1e-30, noise=0.0)
    engine = ground_of(make(name, {})).engine()
    fits = bool(make(name, {}).up.__dataclass_fields__) and not carries_more_than_gradients(method)
    fits = fits and set(seen.values()) == {2}  # once with either data
    assert (method.refusal(engine.roster, engine.model) is None) == (name in COVERED)
    assert fits or name not in COVERED


@pytest.mark.parametrize(
    ("name", "options"),
    [("fedamp", {"warmup_epochs": 3}), ("ditto", {"personal_epochs": 2}), ("fedavg", {"finetune": {}})],
)
def test_what_options_add_is_seen(name: str, options: dict[str, object]) -> None:
    method = record(name, options, clip=1e-30, noise=0.0)
    engine = ground_of(make(name, {})).engine()
    assert (method.refusal(engine.roster, engine.model) is None) == (not carries_more_than_gradients(method))


def rdp_epsilon(q: float, sigma: float, steps: int, delta: float) -> float:
    """ε by Rényi DP of the Poisson-sampled Gaussian at whole orders (Mironov, Talwar and Zhang, 2019, Section 3.3).

    Turned into (ε, δ) by Canonne, Kamath and Steinke, NeurIPS 2020, Proposition 12.
    """
    best = math.inf
    for order in range(2, 257):
        k = np.arange(order + 1)
        binomial = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
        chances = k * math.log(q) + (order - k) * (math.log1p(-q) if q < 1 else 0.0)
        terms = binomial + chances + (k * k - k) / (2 * sigma**2)
        rdp = steps * logsumexp(terms if q < 1 else terms[-1:]) / (order - 1)
        best = min(best, rdp + math.log1p(-1 / order) - math.log(delta * order) / (order - 1))
    return best


@pytest.mark.parametrize(
    ("q", "sigma", "steps"), [(0.016, 1.0, 945), (0.032, 2.0, 640), (0.1, 4.0, 300), (0.5, 8.0, 100), (1.0, 20.0, 60)]
)
@pytest.mark.parametrize("delta", [1e-5, 1e-6])
def test_epsilon_of_sampled_steps_is_what_renyi_gives_or_a_little_less(
    q: float, sigma: float, steps: int, delta: float
) -> None:
    """Rényi's is a bound from above, and near: the accountant's is exact but for rounding."""
    bound = rdp_epsilon(q, sigma, steps, delta)
    assert 0.85 * bound < composed({(q, sigma): steps}, delta) < bound


@pytest.mark.parametrize(
    ("q", "sigma", "steps"), [(0.3, 0.01, 8), (0.3, 0.1, 400_000), (0.3, 1.0, 400_000), (0.3, 1e-320, 1)]
)
def test_where_noise_hides_nothing_epsilon_is_without_bound_at_once(
    q: float, sigma: float, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Added up exactly it took minutes or 110 GiB: the owner of a silo that was asked once approved nothing more."""
    monkeypatch.setattr("dp_accounting.pld.PLDAccountant", None)
    assert rdp_epsilon(q, max(sigma, 1e-3), steps, 1e-5) > 500
    assert composed({(q, sigma): steps}, 1e-5) == composed({(q, sigma): steps, (q, 2.0): 8}, 1e-5) == math.inf
    assert composed({(1.0, 0.001): 8}, 1e-5) == pytest.approx(gaussian_epsilon(8e6, 1e-5))  # of no sample it is exact


def test_noise_beyond_all_numbers_is_as_much_as_hides_everything() -> None:
    assert composed({(0.3, 1e200): 8}, 1e-5) == pytest.approx(0.0, abs=1e-3)


@pytest.mark.parametrize(("epsilon", "q", "times"), [(1.0, 0.032, 640), (8.0, 0.032, 640), (3.0, 1.0, 20)])
def test_the_noise_for_an_epsilon_keeps_within_it_and_just(epsilon: float, q: float, times: int) -> None:
    sigma = noise_for(epsilon, 1e-5, q, times)
    assert 0.99 * epsilon < composed({(q, sigma): times}, 1e-5) <= epsilon


TRAINING = Training(rounds=10, local_epochs=2, batch_size=32)
SILOS = {"a": 2000, "b": 500, "c": 100}


def test_epsilon_is_of_the_silo_that_is_worst_off_over_rounds_epochs_seeds_and_the_search() -> None:
    """The smallest silo's records are in the most steps' batches."""
    found = spent({"m": record("fedavg", noise=1.5)}, {"m": TRAINING}, {0: SILOS, 1: SILOS}, {"m": [10, 5]})["m"]
    q, steps = sampling(100, 32, 2)
    assert (q, steps) == (0.32, 8)
    assert (found["level"], found["silo"], found["uploads"], found["in_search"]) == ("record", "c", 35, 15)
    assert (found["steps"], found["sampling"], found["noise"]) == (35 * 8, 0.32, 1.5)
    assert found["epsilon"] == pytest.approx(composed({(0.32, 1.5): 280}, 1e-5))
    assert found["epsilon"] < rdp_epsilon(0.32, 1.5, 280, 1e-5)


def test_with_a_target_every_silo_has_its_own_noise_and_keeps_within_it() -> None:
    method = record("fedavg", epsilon=2.0)
    found = spent({"m": method}, {"m": TRAINING}, {0: SILOS})["m"]
    assert 1.97 < found["epsilon"] <= 2.0
    stopped = spent({"m": method}, {"m": TRAINING}, {0: SILOS}, ran={"m": 4})["m"]  # noise is for the planned rounds
    assert stopped["noise"] == pytest.approx(noise_for(2.0, 1e-5, *(sampling(SILOS[stopped["silo"]], 32, 20))))
    assert stopped["epsilon"] < found["epsilon"]
    engine = replace(Ground(method), training=replace(Ground(method).training, batch_size=4)).engine()
    made = method.dpsgd(engine.task(torch.arange(4), 0))
    assert made is not None
    for n, sigma in zip(SIZES, made.noise.tolist(), strict=True):
        q, steps = sampling(n, 4, 2)
        assert 1.97 < composed({(q, sigma): steps * 3}, 1e-5) <= 2.0


def test_a_run_that_hides_records_in_one_method_hides_no_more_in_all() -> None:
    methods = {"one": record("fedavg", noise=1.5), "two": make("fedamp", {"privacy": {"noise": 8.0}})}
    found = spent_by_all(methods, dict.fromkeys(methods, TRAINING), {0: SILOS})
    assert (found["level"], found["silo"]) == ("record", "c")
    assert found["epsilon"] == pytest.approx(composed({(0.32, 1.5): 80, (1.0, 4.0): 10}, 1e-5))
    bare = spent_by_all(methods | {"two": make("fedamp", {})}, dict.fromkeys(methods, TRAINING), {0: SILOS})
    assert bare["epsilon"] == math.inf and bare["unprotected"] == ["two"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"level": "record", "noise": 1.0, "epsilon": 2.0}, "takes the place of noise"),
        ({"epsilon": 2.0}, "is for level = 'record'"),
        ({"level": "record", "clip": math.inf}, "give a finite clip"),
        ({"level": "row"}, "unknown value"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, object], reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        make("fedavg", {"privacy": options})


def test_a_model_whose_samples_see_each_other_is_refused() -> None:
    method = record("fedbn")
    build = lambda: torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))  # noqa: E731
    engine = Ground(method, build).engine()
    assert "one record to clip" in (method.refusal(engine.roster, engine.model) or "")


def test_no_loop_without_its_noise_takes_a_step() -> None:
    method = record("fedavg")
    engine = Ground(method).engine()
    task = engine.task(torch.tensor([2, 0, 1, 3]), 0)
    down = method.send(method.open(engine.roster, engine.model), None)  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="without the noise"):
        task.run(method.step, method.begin(task, down, engine.private()), "train")


def test_a_newcomers_upload_is_refused_and_a_newcomer_that_uploads_nothing_is_not() -> None:
    for name, refused in (("fedamp", True), ("fedavg", False)):
        method = record(name)
        engine = Ground(method).engine()
        server = method.open(engine.roster, engine.model)
        if refused:
            with pytest.raises(BadInput, match="newcomers upload"):
                engine.host(server, 2)
        else:
            engine.host(server, 2)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize("name", ["fedavg", "ditto"])
def test_conformance(name: str, check: Callable[[Ground], None]) -> None:
    check(Ground(record(name, clip=0.5, noise=0.5)))
