"""Stack: its members as in runs of their own, mixed by each silo's held-out data as NumPy mixes them."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from method_cases import conform
from oracle import Oracle, close
from torch import nn

from coterie.conformance import Ground, ground_of, rounds, small_silos
from coterie.data.silo import Part, Silo
from coterie.engine.measuring import measure
from coterie.engine.method import Cohort, Method
from coterie.engine.predictors import Distilled, Ensemble, restored
from coterie.engine.rounds import run_rounds
from coterie.engine.rows import Model
from coterie.engine.simulate import Simulator
from coterie.engine.training import Training
from coterie.errors import BadInput
from coterie.methods import make
from coterie.methods.parts.stacking import FOLDS, ITERATIONS, KAPPAS, TEMPERATURES
from coterie.methods.stack import Stack


@conform("stack", {"fit_every": 1})
def test_conformance_with_a_fit_in_every_round(method: Method, check: Callable[[Ground], None]) -> None:
    check(Ground(method))


def everyone(engine: Simulator, after: int) -> Cohort:
    return Cohort.everyone(engine.roster, engine.model, after - 1)


def test_members_train_as_in_runs_of_their_own():
    stack = ground_of(Stack(of=("separate", "fedavg-ft", "fedavg", "fedamp", "ditto", "fedem")))
    engine = stack.engine()
    server, _ = rounds(stack, engine, stack.method.open(engine.roster, engine.model), 0, 3)
    mixed = engine.personal(everyone(engine, 3), stack.method.send(server, everyone(engine, 3)))
    found = dict(zip((each.name for each in stack.method.candidates), mixed.parts, strict=True))
    for name, own in found.items():
        label, _, cloud = name.partition(" ")
        alone = ground_of(make(label, {}))
        other = alone.engine()
        theirs, _ = rounds(alone, other, alone.method.open(other.roster, other.model), 0, 3)
        order = torch.tensor([2, 0, 1, 3])  # from the one with most data down
        task, down = other.task(order, 2), alone.method.send(theirs, everyone(other, 3)).take(order)
        model = (alone.method.cloud if cloud else alone.method.personal)(task, down, other.private().take(order))
        for field, value in model.tensors().items():
            close(own.tensors()[field][order], value)


def test_members_with_settings_of_their_own_train_as_in_runs_with_them():
    own = {
        "separate": {"lr": 0.3},
        "fedavg-ft": {"optimizer": "adam", "lr": 0.01},
        "ditto": {"weight_decay": 0.5},
        "fedavg": {},
    }
    method = Stack(of=tuple({"method": name, "train": train} for name, train in own.items()))
    training = Training(rounds=3, local_epochs=2, batch_size=4, lr=0.1, schedule="cosine")
    assert [each.name for each in method.candidates] == list(own)

    def models(each: Method, training: Training) -> Any:
        engine = Simulator(each, small_silos(), ground_of(method).model(), training, 1)
        server = run_rounds(each, engine, engine.roster, engine.model, training).server
        return engine.personal(everyone(engine, 3), each.send(server, everyone(engine, 3)))

    mixed = models(method, training)
    for (name, train), part in zip(own.items(), mixed.parts, strict=True):
        alone = models(make(name, {}), replace(training, **train))
        assert torch.allclose(part.models, alone.models), name


def test_members_that_train_alike_share_it_and_those_that_do_not_train_apart():
    both = Stack(of=({"method": "fedavg", "train": {"lr": 0.1}}, {"method": "fedavg-ft", "train": {"lr": 0.1}}))
    assert list(both.trainings) == ["fedavg"]
    apart = Stack(of=({"method": "fedavg-ft", "train": {"lr": 0.1}}, {"method": "fedavg", "train": {"lr": 0.2}}))
    assert list(apart.trainings) == ["fedavg_ft", "fedavg"]
    assert [each.name for each in apart.candidates] == ["fedavg-ft", "fedavg"]
    ditto = Stack(of=("ditto", {"method": "fedavg", "train": {"lr": 0.2}}))
    assert list(ditto.trainings) == ["ditto", "fedavg"]
    assert [each.name for each in ditto.candidates] == ["ditto", "fedavg"]


def test_two_rounds_are_the_equations():
    """FedAvg and training alone after one round, fitted in the second: what leaves, what is sent, what is mixed."""
    oracle = Oracle()
    method = Stack(of=("separate", "fedavg"), fit_every=1)
    played = oracle.play(method, rounds=2)
    lr_start = oracle.start()
    alone = [oracle.descend(i, lr_start, 0) for i in range(3)]
    mean = sum(n * w for n, w in zip(oracle.sizes, alone, strict=True)) / oracle.sizes.sum()

    def held(i: int, models: list[np.ndarray], scale: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """log p_c(y_j | x_j) at these temperatures (c, n), and the summed log-loss at all (c, t)."""
        x, y = oracle.data(i, "validation")

        def at(w: np.ndarray, t: float) -> np.ndarray:
            p = oracle.probabilities(w, x) ** (1 / t)
            return np.log((p / p.sum(1, keepdims=True))[np.arange(len(y)), y])

        likelihoods = np.stack([at(w, t) for w, t in zip(models, scale, strict=True)])
        return likelihoods, np.stack([[-at(w, t).sum() for t in TEMPERATURES] for w in models])

    def em(ll: np.ndarray, prior: np.ndarray, kappa: float) -> tuple[np.ndarray, np.ndarray]:
        pi = prior
        for _ in range(ITERATIONS):
            r = pi[:, None] * np.exp(ll)
            pi = ((r / r.sum(0)).sum(1) + kappa * prior) / (ll.shape[1] + kappa)
        r = pi[:, None] * np.exp(ll)
        return pi, r / r.sum(0)

    half, counts, fits, curves = np.full(2, 0.5), [], [], []
    for i in range(3):
        ll, curve = held(i, [alone[i], mean], np.ones(2))  # both as they were after the first round
        curves.append(curve)
        counts.append(em(ll, half, 30)[1].sum(1))
        row = []
        folds = [np.arange(ll.shape[1]) % FOLDS == fold for fold in range(min(FOLDS, ll.shape[1]))]
        for kappa in KAPPAS:
            left = [np.log(em(ll[:, ~f], half, kappa)[0] @ np.exp(ll[:, f])).sum() for f in folds]
            row.append(sum(left))
        fits.append(row)
    assert not played.ups[0].curves.any()  # nothing is trained before the first round
    close(played.ups[1].curves, curves)
    close(played.ups[1].counts, counts)
    close(played.ups[1].fits, fits)

    down = method.send(played.servers[2], everyone(played.engine, 2))
    prior = 0.98 * np.sum(counts, 0) / np.sum(counts) + 0.01
    kappa = KAPPAS[int(np.sum(fits, 0).argmax())]
    close(down.prior, prior)
    close(down.fitted, [kappa, 0.05 / 3])
    mixed = played.engine.personal(everyone(played.engine, 2), down)
    after = sum(n * oracle.descend(i, mean, 1) for i, n in enumerate(oracle.sizes)) / oracle.sizes.sum()
    for i in range(3):
        scale = down.scale.numpy()
        ll, _ = held(i, [oracle.descend(i, alone[i], 1), after], scale)
        close(mixed.weights[i], em(ll, prior, kappa)[0])
        close(mixed.temperatures[i], scale)


def gradient_rows(monkeypatch: pytest.MonkeyPatch, method: Method) -> int:
    """How many rows' gradients of a mini-batch a short run takes, measuring every round."""
    taken = [0]
    plain = Model.gradient

    def counted(self: Model, rows: Any, *rest: Any) -> Any:
        taken[0] += len(rows)
        return plain(self, rows, *rest)

    training = Training(rounds=4, local_epochs=2, batch_size=4, lr=0.1)
    engine = Simulator(method, small_silos(), ground_of(method).model(), training, 1)
    with monkeypatch.context() as patch:
        patch.setattr(Model, "gradient", counted)
        run_rounds(method, engine, engine.roster, engine.model, training)
    return taken[0]


def test_it_takes_no_more_gradients_than_its_members_with_what_they_share_taken_once(monkeypatch):
    method = Stack()
    members = sum(gradient_rows(monkeypatch, make(str(name), {})) for name in method.of)
    assert gradient_rows(monkeypatch, method) <= 1.1 * members
    shared = Stack(of=("fedavg", "fedavg-ft", "fedavg-local"))
    assert list(shared.trainings) == ["fedavg_local"]
    tuned, once = (gradient_rows(monkeypatch, make(name, {})) for name in ("fedavg-ft", "fedavg"))
    assert gradient_rows(monkeypatch, shared) < tuned + once


def test_a_validation_sample_is_judged_by_weights_found_without_it():
    ground = Ground(Stack(of=("separate", "fedavg"), fit_every=1))
    engine = ground.engine()
    server, _ = rounds(ground, engine, ground.method.open(engine.roster, engine.model), 0, 2)
    mixed = engine.personal(everyone(engine, 2), ground.method.send(server, everyone(engine, 2)))
    task = engine.task(torch.arange(4), 1)
    found = {split: task.outcomes(mixed, split)["outputs"] for split in ("validation", "test")}
    parts = [{s: task.outcomes(part, s)["outputs"] for s in found} for part in mixed.parts]
    for split, given in found.items():
        p = [each[split] ** (1 / mixed.temperatures[:, c, None, None]) for c, each in enumerate(parts)]
        p = torch.stack([each / each.sum(2, keepdim=True).clamp_min(1e-30) for each in p], 1)  # (k, c, n, C)
        shares = mixed.others if split == "validation" else mixed.weights[..., None]
        for row, n in enumerate(task.counts(split).tolist()):
            close(given[row, :n], (shares[..., None] * p)[row].sum(0)[:n])
    assert not torch.allclose(mixed.others, mixed.weights[..., None].expand_as(mixed.others))


def test_rows_of_one_unit_are_left_out_together():
    silos = [
        replace(silo, validation=replace(silo.validation, units=np.arange(len(silo.validation)) // 2 * 7))
        for silo in small_silos()
    ]
    ground = Ground(Stack(of=("separate", "fedavg"), fit_every=1), silos=silos)
    engine = ground.engine()
    server, _ = rounds(ground, engine, ground.method.open(engine.roster, engine.model), 0, 2)
    mixed = engine.personal(everyone(engine, 2), ground.method.send(server, everyone(engine, 2)))
    for row, n in enumerate(engine.store["validation"].count):
        own = mixed.others[row, :, : n // 2 * 2]
        close(own[:, ::2], own[:, 1::2])
        assert n < 4 or not torch.allclose(own[:, 0], own[:, 2])


def test_what_is_mixed():
    assert [each.name for each in Stack().candidates] == [
        "separate", "fedavg-ft", "fedamp", "ditto", "fedem", "fedavg", "fedamp cloud",
    ]  # fmt: skip
    twice = Stack(of=("fedamp", {"method": "fedamp", "tau": 0.1}))
    assert list(twice.trainings) == ["fedamp", "fedamp_2"] and twice.members["fedamp-2"].tau == 0.1


def test_numbers_are_mixed_too():
    silos, draw = [], np.random.default_rng(0)
    for i in range(3):
        parts = []
        for n in (20, 12, 10):
            x = draw.normal(size=(n, 5)).astype(np.float32)
            parts.append(Part(x, (x @ np.arange(5) + i).astype(np.float32)))
        silos.append(Silo(f"s{i}", *parts))
    training = Training(rounds=3, local_epochs=2, batch_size=4, lr=0.01)
    method = Stack()
    engine = Simulator(method, silos, Model(lambda: nn.Linear(5, 1), 0, dtype=torch.float64), training, 0)
    outcome = run_rounds(method, engine, engine.roster, engine.model, training)
    assert isinstance(outcome.models, Ensemble) and torch.allclose(
        outcome.models.weights.sum(1), torch.ones(3).double()
    )
    last = outcome.results[-1]
    assert last[(last["split"] == "test") & (last["measure"] == "r2")]["value"].mean() > 0.5


class Tagger(nn.Module):
    """A class for every place of a sequence: outputs (b, C, t)."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.table(x)
        return out.movedim(-1, 1)


def test_classes_of_every_place_of_a_sequence_are_mixed_too():
    silos, draw = [], np.random.default_rng(0)
    for i in range(3):
        parts = []
        for n in (20, 12, 10):
            x = draw.integers(5, size=(n, 4))
            parts.append(Part(x, (x + i) % 3))
        silos.append(Silo(f"s{i}", *parts))
    training = Training(rounds=5, local_epochs=2, batch_size=4, lr=1.0)
    method = Stack(of=("separate", "fedavg"), fit_every=1)
    engine = Simulator(method, silos, Model(Tagger, 3, dtype=torch.float64), training, 0)
    assert method.refusal(engine.roster, engine.model) is None
    outcome = run_rounds(method, engine, engine.roster, engine.model, training)
    assert (outcome.models.weights[:, 0] > 0.9).all()  # their labels have nothing in common
    last = outcome.results[-1]
    assert last[(last["split"] == "test") & (last["measure"] == "accuracy")]["value"].mean() > 0.9


@pytest.mark.parametrize("classes", [3, 0])
def test_one_network_learns_what_the_mixture_predicts(classes: int):
    draw, silos = np.random.default_rng(0), []
    for i in range(3):
        parts = []
        for n in (60, 20, 10):
            x = draw.normal(size=(n, 5)).astype(np.float32)
            y = x @ np.arange(5) + i
            parts.append(Part(x, np.digitize(y, [-2, 2]) if classes else y.astype(np.float32)))
        silos.append(Silo(f"s{i}", *parts))
    training = Training(rounds=2, local_epochs=2, batch_size=8, lr=0.02)
    of = ("fedem", {"method": "separate", "train": {"lr": 0.05 if classes else 0.012}})  # about as good

    def deployed(distil: bool) -> tuple[Any, Any]:
        method = Stack(of=of, distil=distil)
        model = Model(lambda: nn.Linear(5, classes or 1), classes, dtype=torch.float64)
        engine = Simulator(method, silos, model, training, 0)
        server = run_rounds(method, engine, engine.roster, engine.model, training).server
        down = method.send(server, everyone(engine, 2))
        return engine.task(torch.arange(3), 1), engine.personal(everyone(engine, 2), down)

    task, mixture = deployed(False)
    _, found = deployed(True)
    assert isinstance(found, Distilled) and found.network.models.shape == mixture.parts[1].models.shape
    close(found.shares, mixture.weights)
    close(found.losses[:, 0], measure(task, mixture, "validation")["loss"])
    close(found.losses[:, 1], measure(task, found.network, "validation")["loss"])

    def apart(model: Any) -> float:
        """How far its predictions are from the mixture's."""
        ours, theirs = (task.outcomes(each, "train", raw=True)["outputs"] for each in (model, mixture))
        return float((ours - theirs).square().mean())

    assert apart(found) < 0.5 * apart(mixture.parts[1])  # where it started
    again = restored(found.form, found.tensors())
    assert isinstance(again, Distilled) and torch.equal(again.network.models, found.network.models)


def test_a_newcomer_without_held_out_data_has_the_common_weights_and_one_with_many_its_own():
    ground = Ground(Stack(of=("separate", "fedavg"), fit_every=1))
    engine = ground.engine()
    server, _ = rounds(ground, engine, ground.method.open(engine.roster, engine.model), 0, 3)
    none, many = small_silos(seed=3, sizes=(10, 400), prefix="newcomer")
    none = replace(none, validation=Part(none.validation.x[:0], none.validation.y[:0]))
    many = replace(
        many,
        train=Part(many.train.x[:200], many.train.y[:200]),
        validation=Part(many.train.x[200:], many.train.y[200:]),
    )
    newcomers = replace(ground, silos=[none, many]).engine()
    down = newcomers.host(server, 3)
    weights = newcomers.personal(everyone(newcomers, 4), down).weights
    close(down.prior, ground.method.send(server, everyone(engine, 4)).prior)
    assert abs(float(down.prior[0]) - 0.5) > 0.01  # learned
    close(weights[0], down.prior)
    assert (weights[1] - down.prior).abs().min() > 0.1


@pytest.mark.parametrize("of", [("separate", "fedavg"), Stack.of])
def test_beside_its_members_a_stack_sends_10_k_and_6_numbers_and_gets_2_k_and_2(of: Any):
    ground = Ground(Stack(of=of))
    engine = ground.engine()
    server, up = rounds(ground, engine, ground.method.open(engine.roster, engine.model), 0, 1)
    k = len(ground.method.candidates)

    def own(record: Any, silos: int) -> float:
        members = tuple(f"{name}." for name in ground.method.trainings)
        return sum(t.numel() for name, t in record.tensors().items() if not name.startswith(members)) / silos

    assert own(up, 4) == 10 * k + 6
    assert own(ground.method.send(server, everyone(engine, 1)), 1) == 2 * k + 2


def test_without_held_out_data_all_candidates_count_alike():
    silos = [
        Silo(each.name, each.train, Part(each.validation.x[:0], each.validation.y[:0]), each.test)
        for each in small_silos()
    ]
    ground = Ground(Stack(), silos=silos)
    engine = ground.engine()
    server, _ = rounds(ground, engine, ground.method.open(engine.roster, engine.model), 0, 2)
    mixed = engine.personal(everyone(engine, 2), ground.method.send(server, everyone(engine, 2)))
    close(mixed.weights, np.full((4, 7), 1 / 7))


def test_a_member_that_diverged_has_no_share_and_harms_nobody():
    ground = Ground(Stack(of=("separate", "fedavg")))
    engine = ground.engine()
    server, _ = rounds(ground, engine, ground.method.open(engine.roster, engine.model), 0, 1)
    lost = server.replace(fedavg=server.fedavg.replace(w=server.fedavg.w * torch.nan))
    mixed = engine.personal(everyone(engine, 1), ground.method.send(lost, everyone(engine, 1)))
    close(mixed.weights, [[1.0, 0.0]] * 4)
    assert engine.task(torch.arange(4), 0).predict(mixed, torch.rand(4, 2, 5).double()).isfinite().all()


def test_where_training_alone_is_clearly_better_the_gate_takes_it():
    """Silos whose labels contradict each other: what they learn together is worth nothing."""
    draw, silos = np.random.default_rng(0), []
    for i in range(4):
        parts = []
        for n in (200, 100, 100):
            x = draw.normal(size=(n, 5)).astype(np.float32)
            parts.append(Part(x, ((x[:, 0] > 0).astype(int) + i) % 3))
        silos.append(Silo(f"s{i}", *parts))
    training = Training(rounds=4, local_epochs=4, batch_size=16, lr=0.3)
    method = Stack(of=("separate", "fedavg"), fit_every=1)
    engine = Simulator(method, silos, Model(lambda: nn.Linear(5, 3), 3), training, 0)
    outcome = run_rounds(method, engine, engine.roster, engine.model, training)
    assert (outcome.models.weights[:, 0] > 0.99).all()


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"of": []}, "names no method"),
        ({"of": ["separate", "stack"]}, "a stack inside"),
        ({"of": ["separate", "fedamb"]}, "unknown method 'fedamb'"),
        ({"of": [3]}, "expected text or table"),
        ({"of": [{"method": "fedavg", "train": {"lr": -1}}]}, r"\[methods.fedavg\] train lr: -1"),
        ({"of": [{"method": "fedavg", "train": {"rate": 1}}]}, "unknown key 'rate'"),
    ],
)
def test_what_cannot_be_stacked_is_refused(table: Mapping[str, Any], why: str):
    with pytest.raises(BadInput, match=why):
        refused(table)


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"of": [{"method": "fedavg", "privacy": {"clip": 1.0}}]}, "fedavg: privacy covers its upload, not the sums"),
        ({"of": ["separate", {"method": "fedavg", "blind": {}}]}, "fedavg: blind covers its upload, not the sums"),
        ({"of": ["separate", {"method": "fedavg", "secagg": {}}]}, "fedavg: secagg covers its upload, not the sums"),
        ({"of": ["separate", "fedfomo"]}, "fedfomo: it learns from the validation data that candidates are weighed by"),
        ({"of": ["fedavg"], "privacy": {"clip": 1.0}}, "privacy: what leaves a silo is not just a changed copy"),
        ({"of": ["fedavg"], "robust": {"rule": "median"}}, "robust: its server does not average uploads"),
        ({"of": ["fedavg"], "clip_update": {"norm": 1.0}}, "what leaves a silo is not just a changed copy"),
    ],
)
def test_wrappers_that_do_not_fit_say_so(table: Mapping[str, Any], why: str):
    assert why in (refused(table) or "")


def refused(table: Mapping[str, Any]) -> str | None:
    method = make("stack", table)
    engine = Simulator(method, small_silos(), Ground(method).model(), Training(), 0)
    return method.refusal(engine.roster, engine.model)


def test_members_may_be_robust_clipped_and_compressed():
    wrapped = {"method": "fedavg", "robust": {"rule": "median"}, "compress": {"bits": 8}, "clip_update": {"norm": 1.0}}
    ground = Ground(make("stack", {"of": ["separate", wrapped]}))
    engine = ground.engine()
    assert ground.method.refusal(engine.roster, engine.model) is None
    outcome = run_rounds(ground.method, engine, engine.roster, engine.model, ground.training)
    assert np.isfinite(outcome.results[-1]["value"]).all()
