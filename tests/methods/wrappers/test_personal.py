"""Personal columns stay on the silo: BatchNorm's statistics (`[train] buffers = "local"`), or what a table names."""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from plain import CLASSES, SIZES, TRAINING, as_row, batches, client, close, data, make_engine, make_silos, train
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.conformance import CHECKS, Ground, ground_of
from coterie.engine.layout import Columns
from coterie.engine.method import Cohort, Method
from coterie.engine.rounds import run_rounds
from coterie.engine.rows import Model
from coterie.engine.simulate import Simulator
from coterie.errors import BadInput
from coterie.methods import make, written
from coterie.methods.fedamp import FedAMP
from coterie.methods.fedavg import FedAvg
from coterie.methods.fedavg_local import FedAvgLocal
from coterie.methods.separate import Separate
from coterie.methods.wrappers.around import with_clipping, with_personal
from coterie.methods.wrappers.personal import LocalBuffers, local_buffers
from coterie.run.assembly import Assembly
from coterie.wire import Down, Up, bank, rows, shared


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6, bias=False), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, CLASSES))


def engine_of(method: Method, rows: int | str = "all") -> Simulator:
    return make_engine(normed, method=LocalBuffers(method), rows=rows)


def play(engine: Simulator, round: int, server: object) -> tuple[object, Tensor]:
    """One round: the server after it, and what was uploaded."""
    cohort = Cohort(torch.arange(3), round, engine.roster, engine.model)
    up = engine.train(cohort, engine.method.send(server, cohort)).up
    return engine.method.receive(server, cohort, up), up.w


@pytest.mark.parametrize("rows", [1, "all"])
def test_fedavg_averages_weights_while_each_silo_keeps_its_statistics(rows: int | str) -> None:
    """FedAvg in plain PyTorch, in which a module keeps its running statistics when it loads the global weights."""
    silos, engine = make_silos(), engine_of(FedAvg(), rows)
    layout, trained = engine.model.layout, engine.model.layout.trained
    server = engine.method.open(engine.roster, engine.model)
    modules = [client(normed, engine.model, engine.model.start(engine.seed)) for _ in silos]
    weights = {name: p.detach().clone() for name, p in modules[0].named_parameters()}
    for round in range(3):
        for silo, module in zip(silos, modules, strict=True):
            module.load_state_dict(weights, strict=False)  # parameters only
            sgd = torch.optim.SGD(module.parameters(), 0.1)
            train(module, *data(silo), batches(engine, silo, round), sgd)
        weights = {
            name: sum(
                n / sum(SIZES) * dict(m.named_parameters())[name].detach() for n, m in zip(SIZES, modules, strict=True)
            )
            for name in weights
        }
        server, uploads = play(engine, round, server)
        own = engine.private().own
        for i, module in enumerate(modules):
            row = as_row(engine.model, module)
            close(uploads[i], row[:trained])
            close(own[i], row[trained:])
        assert (server.w[trained:] == 0).all()  # type: ignore[attr-defined]
    # a silo deploys the global weights with its own statistics
    everyone = Cohort(torch.arange(3), 2, engine.roster, engine.model)
    measured = engine.measure(everyone, engine.method.send(server, everyone), ("test",)).values["test", "loss"]
    for i, (silo, module) in enumerate(zip(silos, modules, strict=True)):
        module.load_state_dict(weights, strict=False)
        x, y = data(silo, "test")
        assert measured[i] == pytest.approx(float(F.cross_entropy(module.eval()(x), y).detach()), rel=1e-9)
    assert {c.name for c in layout.buffers} == {"1.running_mean", "1.running_var"}


@pytest.mark.parametrize("common", [True, False])
def test_fedamp_mixes_weights_while_each_silo_keeps_its_statistics(common: bool) -> None:
    beta = 2.0
    silos, engine = make_silos(), engine_of(FedAMP(beta=beta, tau=0.8, common_init=common))
    trained = engine.model.layout.trained
    server = engine.method.open(engine.roster, engine.model)
    assert (server.w[:, trained:] == 0).all()
    statistics = engine.model.start(engine.seed)[trained:].repeat(3, 1)
    for round in range(2):
        cohort = Cohort(torch.arange(3), round, engine.roster, engine.model)
        sent = engine.method.send(server, cohort).u
        assert sent.shape == (3, trained)
        server, uploads = play(engine, round, server)
        for i, silo in enumerate(silos):
            module = client(normed, engine.model, torch.cat([sent[i], statistics[i]]))
            centre = [p.detach().clone() for p in module.parameters()]
            sgd = torch.optim.SGD(module.parameters(), 0.1)
            x, y = data(silo)
            for index in batches(engine, silo, round):
                sgd.zero_grad()
                F.cross_entropy(module(x[index]), y[index]).backward()
                sgd.step()
                with torch.no_grad():  # argmin_z ‖z − p‖²/2η + ‖z − c‖²/2β: where (z − p)/η + (z − c)/β is zero
                    for p, c in zip(module.parameters(), centre, strict=True):
                        p.copy_((p / engine.training.lr + c / beta) / (1 / engine.training.lr + 1 / beta))
            row = as_row(engine.model, module)
            close(uploads[i], row[:trained])
            statistics[i] = row[trained:]
        private = engine.private()
        close(private.own, statistics)
        close(private.inner.w, torch.cat([uploads, statistics], 1))  # its own model is whole
        assert (server.w[:, trained:] == 0).all()  # type: ignore[attr-defined]
    # the cloud model is used with the silo's own statistics too
    task = engine.task(torch.arange(3), 1)
    down = engine.method.send(server, Cohort(torch.arange(3), 1, engine.roster, engine.model))
    cloud = engine.method.cloud(task, down, engine.private())
    assert cloud is not None
    close(cloud.models, torch.cat([down.u, statistics], 1))


def test_shared_statistics_are_averaged_and_local_ones_are_not() -> None:
    def trained(buffers: str) -> Assembly:
        return Assembly(make_silos(), normed, CLASSES, replace(TRAINING, buffers=buffers), device="cpu", rows="all")

    shared_ones, local = trained("shared"), trained("local")
    columns = slice(shared_ones.model.layout.trained, None)
    together = shared_ones.train(FedAvg())
    apart = local.train(FedAvg())
    assert together.models is not None
    assert apart.models is not None
    assert (together.server.w[columns] != 0).any()
    assert (apart.server.w[columns] == 0).all()
    assert torch.equal(together.models.models[0], together.models.models[1])
    assert torch.equal(apart.models.models[0][: columns.start], apart.models.models[1][: columns.start])
    assert not torch.equal(apart.models.models[0][columns], apart.models.models[1][columns])


def test_a_silo_that_stays_away_keeps_its_statistics() -> None:
    engine = engine_of(FedAvg())
    server = engine.method.open(engine.roster, engine.model)
    before = engine.private().own
    cohort = Cohort(torch.tensor([0, 2]), 0, engine.roster, engine.model)
    engine.train(cohort, engine.method.send(server, cohort))
    after = engine.private().own
    assert torch.equal(after[1], before[1])
    assert not torch.equal(after[0], before[0])


def test_a_newcomer_takes_statistics_of_the_model_it_is_sent_on_its_own_data() -> None:
    newcomers = make_silos((7, 6))
    engine = make_engine(normed, newcomers, LocalBuffers(FedAvg()))
    trained = engine.model.layout.trained
    server = engine.method.open(engine.roster, engine.model)
    down = engine.host(server, 2)
    predictor = engine.personal(Cohort(torch.arange(2), 2, engine.roster, engine.model), down)
    for i, newcomer in enumerate(newcomers):
        module = client(normed, engine.model, engine.model.start(engine.seed))
        x, _ = data(newcomer)
        for index in batches(engine, newcomer, 2, "statistics"):
            module(x[index])
        close(predictor.models[i, :trained], server.w[:trained])
        close(predictor.models[i, trained:], as_row(engine.model, module)[trained:])


@pytest.mark.parametrize(
    "method", [FedAvg(), FedAMP(beta=2.0, warmup_epochs=1), FedAvgLocal()], ids=lambda m: type(m).__name__
)
def test_a_run_with_newcomers_measures_everybody(method: Method) -> None:
    training = replace(TRAINING, buffers="local", unseen=0.4, participation=0.7)
    silos = make_silos((7, 10, 6, 14, 8))
    outcome = Assembly(silos, normed, CLASSES, training, device="cpu", rows="all").train(method)
    assert set(outcome.results[-1]["measure"]) >= {"accuracy_unseen", "loss_unseen"}
    assert all(table["value"].map(lambda v: v < 20).all() for table in outcome.results)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize("method", [FedAvg(), FedAMP(beta=2.0)], ids=lambda m: type(m).__name__)
def test_conformance(method: Method, check: object) -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(5, 4, bias=False), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 3))

    # no batch of one sample: 13, 8, 21, 5, 7 and 10 in batches of 11
    ground = Ground(LocalBuffers(method), build)
    check(replace(ground, training=replace(ground.training, batch_size=11)))  # type: ignore[operator]


def test_there_is_nothing_to_keep_without_buffers_or_without_uploads() -> None:
    plain, model = Model(lambda: nn.Linear(5, 3), 3), Model(normed, 3)
    fedavg, separate = FedAvg(), Separate()
    assert local_buffers(fedavg, plain) is fedavg
    assert local_buffers(separate, model) is separate
    assert local_buffers(fedavg, model) == LocalBuffers(fedavg)


class Global(Down):
    w: Tensor = shared("a model", role="model")


class Change(Up):
    dw: Tensor = rows("a difference", role="change")


class Two(Up):
    w: Tensor = rows("a model", role="model")
    c: Tensor = rows("a control variate", role="model")


class Several(Up):
    theta: Tensor = rows("components", "c", role="model")


class Whole(Up):
    w: Tensor = rows("a model", role="model")


class Books(Down):
    models: Tensor = bank("models", picks="picks")
    picks: Tensor = rows("which", "m")


@pytest.mark.parametrize(
    ("sent", "left"), [(Global, Change), (Global, Two), (Global, Several), (Books, Whole)], ids=lambda k: k.__name__
)
def test_methods_whose_statistics_cannot_be_told_apart_are_refused(sent: type[Down], left: type[Up]) -> None:
    @dataclass(frozen=True)
    class Other(Method):
        down: ClassVar[type[Down]] = sent
        up: ClassVar[type[Up]] = left

    with pytest.raises(BadInput, match=r"buffers = 'local': Other does not exchange one model"):
        local_buffers(Other(), Model(normed, 3))


def test_traces_see_what_the_method_inside_keeps() -> None:
    @dataclass(frozen=True)
    class Shown(FedAMP):
        def trace(self, server: object, everyone: object, private: object) -> dict[str, Tensor]:
            return {"own": private.w}  # type: ignore[attr-defined]

    engine = engine_of(Shown())
    outcome = run_rounds(engine.method, engine, engine.roster, engine.model, engine.training)
    assert len(outcome.traces["own"]) == 4


def head_of(engine: Simulator) -> Columns:
    return engine.model.columns("head")


def test_named_columns_never_leave_and_the_mean_is_over_the_others() -> None:
    engine = make_engine(normed, method=make("fedavg", {"personal": ["head", "norm"]}))
    shared = engine.method.shared(engine.model)
    assert shared.names == ("0.weight",)
    server = engine.method.open(engine.roster, engine.model)
    for round in range(2):
        before = engine.private().own
        server, uploads = play(engine, round, server)
        assert uploads.shape == (3, shared.width)
        sizes = torch.tensor(SIZES, dtype=torch.float64)
        close(shared.take(server.w), (sizes / sizes.sum()) @ uploads)  # type: ignore[attr-defined]
        assert (engine.method.own(engine.model).take(server.w) == 0).all()  # type: ignore[attr-defined]
        assert not torch.equal(engine.private().own, before)
    everyone = Cohort.everyone(engine.roster, engine.model, 1)
    models = engine.personal(everyone, engine.method.send(server, everyone)).models
    close(engine.method.own(engine.model).take(models), engine.private().own)
    close(shared.take(models), shared.take(server.w).expand(3, -1))  # type: ignore[attr-defined]


def test_personal_columns_trained_as_the_rest_are_plain_training_with_two_parts() -> None:
    """FedAvg in plain PyTorch, whose modules keep the last layer when they load the global weights."""
    silos, engine = make_silos(), make_engine(normed, method=make("fedavg", {"personal": ["head"]}))
    head = head_of(engine)
    server = engine.method.open(engine.roster, engine.model)
    modules = [client(normed, engine.model, engine.model.start(engine.seed)) for _ in silos]
    for round in range(3):
        for silo, module in zip(silos, modules, strict=True):
            train(module, *data(silo), batches(engine, silo, round), torch.optim.SGD(module.parameters(), 0.1))
        trained = torch.stack([as_row(engine.model, module) for module in modules])
        server, uploads = play(engine, round, server)
        close(uploads, engine.method.shared(engine.model).take(trained))
        close(engine.private().own, head.take(trained))
        mean = torch.tensor(SIZES, dtype=torch.float64) / sum(SIZES) @ trained
        rows = head.put(mean.expand(3, -1), head.take(trained))
        modules = [client(normed, engine.model, row) for row in rows]


def test_attention_looks_at_shared_weights_alone() -> None:
    engine = make_engine(normed, method=make("fedamp", {"personal": ["norm"], "beta": 2.0}))
    server = engine.method.open(engine.roster, engine.model)
    for round in range(2):
        server, uploads = play(engine, round, server)
    everyone = Cohort.everyone(engine.roster, engine.model, 1)
    shared = engine.method.shared(engine.model)
    alone = replace(server, w=torch.zeros_like(server.w))  # type: ignore[attr-defined,type-var]
    alone = replace(alone, w=shared.put(alone.w, uploads))  # type: ignore[attr-defined,type-var]
    found, expected = (FedAMP(beta=2.0).trace(each, everyone, None)["collaboration"] for each in (server, alone))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("fedamp", {"personal": ["head"], "beta": 2.0}),
        ("apfl", {"personal": ["0.weight"], "clip_update": {"norm": 0.1}}),
        ("fedavg", {"personal": ["head"], "compress": {"top_k": 0.2}, "robust": {}}),
        ("ditto", {"personal": ["head"], "privacy": {"noise": 0.01}, "compress": {"bits": 8}}),
    ],
)
def test_conformance_of_named_columns(name: str, table: dict[str, object], check: object) -> None:
    check(ground_of(make(name, table)))  # type: ignore[operator]


def test_statistics_stay_beside_other_personal_columns() -> None:
    silos = make_silos()
    method = make("fedavg", {"personal": ["head"], "compress": {"bits": 8}})
    federation = Assembly(silos, normed, CLASSES, replace(TRAINING, buffers="local"), device="cpu", rows="all")
    found = federation.engine(method).method
    assert found.shared(federation.model).names == ("0.weight", "1.weight", "1.bias")
    outcome = federation.train(method)
    assert outcome.models is not None
    everything = federation.model.columns("head", "1.running_mean", "1.running_var")
    assert (everything.take(outcome.server.w) == 0).all()
    first, second = everything.take(outcome.models.models)[:2]
    assert not torch.isclose(first, second).all()


@pytest.mark.parametrize("name", ["scaffold", "fedem", "fedfomo", "apple", "separate"])
def test_methods_that_exchange_more_or_less_than_one_model_refuse_personal_columns(name: str) -> None:
    engine = make_engine(normed, method=make(name, {"personal": ["head"]}))
    assert engine.method.refusal(engine.roster, engine.model).startswith("personal: it does not exchange one model")


def test_a_model_of_which_nothing_would_be_shared_is_refused() -> None:
    engine = make_engine(normed, method=make("fedavg", {"personal": ["*"]}))
    assert "all columns of this model would stay" in engine.method.refusal(engine.roster, engine.model)


def test_a_study_has_them_as_a_list() -> None:
    table = {"personal": ["head", "norm"], "clip_update": {"norm": 1.0}}
    method = make("fedavg", table)
    assert written("fedavg", method) == table
    assert make("fedavg", written("fedavg", method)) == method
    assert with_clipping(with_personal("fedavg", columns=["head", "norm"])) == method
    assert with_personal(with_clipping("fedavg"), columns=["head", "norm"]) == method
    with pytest.raises(BadInput, match=r"personal: expected a list"):
        make("fedavg", {"personal": 3})
    with pytest.raises(BadInput, match=r"nothing named 'haed'; did you mean 'head'"):
        make_engine(normed, method=make("fedavg", {"personal": ["haed"]}))


def test_privacy_takes_a_model_whose_statistics_stay_on_the_silos() -> None:
    for personal, refused in (["head"], True), (["norm"], False):
        engine = make_engine(normed, method=make("fedavg", {"personal": personal, "privacy": {}}))
        assert (engine.method.refusal(engine.roster, engine.model) is not None) == refused


def test_clipping_counts_shared_weights_alone_and_leaves_statistics_as_they_are() -> None:
    plain, clipped = (
        make_engine(normed, method=make("fedavg", {"personal": ["0.weight"], **more}))
        for more in ({}, {"clip_update": {"norm": 0.05}})
    )
    shared = plain.method.shared(plain.model)
    server = plain.method.open(plain.roster, plain.model)
    sent = shared.take(server.w)
    (_, free), (_, short) = (play(engine, 0, server) for engine in (plain, clipped))
    assert shared.trained < shared.width
    change, scaled = (free - sent)[:, : shared.trained], (short - sent)[:, : shared.trained]
    close(scaled, change * (0.05 / change.norm(dim=1, keepdim=True)).clamp_max(1))
    assert torch.equal(free[:, shared.trained :], short[:, shared.trained :])
    assert torch.equal(plain.private().own, clipped.private().own)
