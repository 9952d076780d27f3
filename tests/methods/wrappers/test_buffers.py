"""`[train] buffers = "local"`: BatchNorm's statistics stay on the silo."""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from plain import CLASSES, SIZES, TRAINING, as_row, batches, client, close, data, make_engine, make_silos, train
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.conformance import CHECKS, Ground
from coterie.engine.method import Cohort, Method
from coterie.engine.rounds import run_rounds
from coterie.engine.rows import Model
from coterie.engine.simulate import Simulator
from coterie.errors import BadInput
from coterie.methods.fedamp import FedAMP
from coterie.methods.fedavg import FedAvg
from coterie.methods.fedavg_local import FedAvgLocal
from coterie.methods.separate import Separate
from coterie.methods.wrappers.buffers import LocalBuffers, local_buffers
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
        own = engine.private().statistics
        for i, module in enumerate(modules):
            row = as_row(engine.model, module)
            close(uploads[i, :trained], row[:trained])
            close(own[i], row[trained:])
        assert (uploads[:, trained:] == 0).all()
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
        assert (sent[:, trained:] == 0).all()
        server, uploads = play(engine, round, server)
        for i, silo in enumerate(silos):
            module = client(normed, engine.model, torch.cat([sent[i, :trained], statistics[i]]))
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
            close(uploads[i, :trained], row[:trained])
            statistics[i] = row[trained:]
        private = engine.private()
        close(private.statistics, statistics)
        close(private.inner.w, torch.cat([uploads[:, :trained], statistics], 1))  # its own model is whole
        assert (uploads[:, trained:] == 0).all()
        assert (server.w[:, trained:] == 0).all()  # type: ignore[attr-defined]
    # the cloud model is used with the silo's own statistics too
    task = engine.task(torch.arange(3), 1)
    down = engine.method.send(server, Cohort(torch.arange(3), 1, engine.roster, engine.model))
    cloud = engine.method.cloud(task, down, engine.private())
    assert cloud is not None
    close(cloud.models, torch.cat([down.u[:, :trained], statistics], 1))


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
    before = engine.private().statistics
    cohort = Cohort(torch.tensor([0, 2]), 0, engine.roster, engine.model)
    engine.train(cohort, engine.method.send(server, cohort))
    after = engine.private().statistics
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
