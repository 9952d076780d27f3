"""The simulator: all silos as rows, however many at once, are a plain federation of PyTorch modules."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from plain import CLASSES, SIZES, as_row, batches, client, close, data, make_engine, make_silos, train
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.engine import task as task_module
from coterie.engine.exchange import Measures, as_table
from coterie.engine.method import Cohort
from coterie.engine.rounds import Outcome, run_rounds
from coterie.engine.simulate import Simulator
from coterie.errors import BadInput
from coterie.methods.fedamp import FedAMP
from coterie.methods.fedavg import FedAvg


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def normed_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(16, 6, bias=False), nn.BatchNorm1d(6), nn.Dropout(0.25), nn.Linear(6, CLASSES),
    )  # fmt: skip


def run(engine: Simulator) -> Outcome:
    return run_rounds(engine.method, engine, engine.roster, engine.model, engine.training)


def models(outcome: Outcome) -> Tensor:
    assert outcome.models is not None
    return outcome.models.models


RAGGED = (7, 14, 3, 6, 10)


@pytest.mark.parametrize("method", [FedAvg(), FedAMP(beta=2.0, tau=0.8)], ids=["fedavg", "fedamp"])
@pytest.mark.parametrize("build", [mlp, normed_cnn])
def test_results_do_not_depend_on_rows(build: Callable[[], nn.Module], method: Any) -> None:
    silos = make_silos(RAGGED, shape=(1, 4, 4) if build is normed_cnn else (5,))
    train = {"rounds": 2, "momentum": 0.5}
    whole = run(make_engine(build, silos, method, "all", **train))
    for rows in (1, 2, 3, "auto", 99):
        other = run(make_engine(build, silos, method, rows, **train))
        close(models(other), models(whole), 1e-9)  # sums of batches in another order
        for ours, theirs in zip(other.results, whole.results, strict=True):
            pd.testing.assert_frame_equal(ours, theirs, rtol=1e-9)


def test_rows_are_all_a_number_or_whichever_a_trial_finds_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    assert make_engine(mlp, rows="all").rows == 3
    assert make_engine(mlp, rows=2).rows == 2
    assert make_engine(mlp, rows="auto").rows in (1, 3)
    assert make_engine(mlp, make_silos((5,)), rows="auto").rows == 1
    calls: list[int] = []
    for slow, expected in ((1, 3), (3, 1)):
        clock = iter(np.arange(1000.0))

        def tick(slow: int = slow, clock: Any = clock) -> float:
            # a call with `slow` rows takes 100 times as long as it should
            return float(next(clock)) * (100 if calls and calls[-1] == slow else 1)

        def grad(self: Any, rows: Tensor, batch: Any) -> None:
            calls.append(len(rows))

        monkeypatch.setattr("coterie.engine.simulate.time.perf_counter", tick)
        monkeypatch.setattr(task_module.Task, "grad", grad)
        calls.clear()
        assert make_engine(mlp, rows="auto").rows == expected
        assert set(calls) == {1, 3}


def test_a_model_that_is_work_enough_for_a_thread_is_taken_by_itself_without_a_trial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("coterie.engine.simulate.WORTH_SHARING", 1.0)
    monkeypatch.setattr(task_module.Task, "first_batch", lambda self: pytest.fail("a trial"))
    assert make_engine(mlp, rows="auto").rows == 1


@pytest.mark.parametrize("rows", [1, "all"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fedavg_is_a_sequential_loop_over_torch_modules(rows: int | str, momentum: float) -> None:
    """McMahan et al.'s algorithm as anyone would write it, BatchNorm's statistics averaged like weights."""

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, CLASSES))

    silos = make_silos()
    engine = make_engine(build, silos, rows=rows, momentum=momentum, weight_decay=0.01, schedule="cosine")
    outcome = run(engine)

    layout = engine.model.layout
    state = {name: t.clone() for name, t in layout.named(engine.model.start(engine.seed)).items()}
    for round in range(3):
        lr = 0.1 * (1 + np.cos(np.pi * round / 3)) / 2
        trained = []
        for silo in silos:
            module = build().double()
            module.load_state_dict(state, strict=False)
            sgd = torch.optim.SGD(module.parameters(), lr, momentum=momentum, weight_decay=0.01)
            train(module, *data(silo), batches(engine, silo, round), sgd)
            trained.append({name: t.detach().clone() for name, t in module.state_dict().items()})
        state = {
            name: sum(n / sum(SIZES) * t[name] for n, t in zip(SIZES, trained, strict=True)) for name in state
        }  # fmt: skip
    close(outcome.server.w, layout.flatten(state))

    # what is measured afterwards is this model on each silo's own data, in evaluation mode
    module = build().double()
    module.load_state_dict(state, strict=False)
    module.eval()
    last = outcome.results[-1]
    assert set(last["round"]) == {3}
    for silo in silos:
        for split in ("train", "validation", "test"):
            x, y = data(silo, split)
            out = module(x).detach()
            mine = last[(last["silo"] == silo.name) & (last["split"] == split)].set_index("measure")["value"]
            assert mine["accuracy"] == pytest.approx(float((out.argmax(1) == y).double().mean()))
            assert mine["loss"] == pytest.approx(float(F.cross_entropy(out, y)), rel=1e-9)


def test_measuring_a_few_samples_at_once_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    silos = make_silos(test=(9, 2, 5))
    whole = run(make_engine(mlp, silos))
    monkeypatch.setattr(task_module, "SAMPLES_AT_ONCE", {"cpu": 5})
    parts = run(make_engine(mlp, silos))
    for ours, theirs in zip(parts.results, whole.results, strict=True):
        pd.testing.assert_frame_equal(ours, theirs, rtol=1e-9)


@pytest.mark.parametrize("rows", [1, 2, "all"])
def test_an_empty_split_has_no_rows_in_the_results(rows: int | str) -> None:
    outcome = run(make_engine(mlp, make_silos(validation=(4, 0, 4), test=(5, 5, 5)), rows=rows))
    for table in outcome.results:
        counted = table.groupby(["split", "measure"])["silo"].agg(set)
        assert counted["validation", "loss"] == {"north", "east"}
        assert counted["validation", "accuracy"] == {"north", "east"}
        assert counted["test", "loss"] == {"north", "south", "east"}
        assert table["value"].notna().all()


def test_nothing_to_measure_is_an_empty_table() -> None:
    engine = make_engine(mlp, make_silos(validation=(0, 0, 0)), measure=("validation",))
    outcome = run(engine)
    assert [len(table) for table in outcome.results] == [0] * 4
    assert list(outcome.results[0].columns) == ["round", "silo", "split", "measure", "value"]


def test_a_table_names_the_silos_of_its_cohort() -> None:
    engine = make_engine(mlp)
    cohort = Cohort(torch.tensor([2, 0]), 0, engine.roster, engine.model)
    measures = Measures(cohort, {("test", "loss"): np.array([0.5, np.nan])})
    assert as_table(measures, 7).to_dict("records") == [
        {"round": 7, "silo": "east", "split": "test", "measure": "loss", "value": 0.5}
    ]


def test_uploads_come_back_in_the_order_of_the_cohort() -> None:
    """Silos train with the largest first; their replies do not show it."""
    silos = make_silos()
    engine = make_engine(mlp, silos, rows=2)
    cohort = Cohort(torch.tensor([2, 0, 1]), 0, engine.roster, engine.model)
    server = engine.method.open(engine.roster, engine.model)
    up = engine.train(cohort, engine.method.send(server, cohort)).up
    for place, silo in enumerate((2, 0, 1)):
        module = client(mlp, engine.model, server.w)
        train(
            module, *data(silos[silo]), batches(engine, silos[silo]), torch.optim.SGD(module.parameters(), 0.1)
        )  # fmt: skip
        close(up.w[place], as_row(engine.model, module))


def test_only_those_who_train_change_what_they_keep() -> None:
    engine = make_engine(mlp, method=FedAMP())
    before = engine.private().w.clone()
    cohort = Cohort(torch.tensor([1]), 0, engine.roster, engine.model)
    server = engine.method.open(engine.roster, engine.model)
    up = engine.train(cohort, engine.method.send(server, cohort)).up
    after = engine.private().w
    assert torch.equal(after[[0, 2]], before[[0, 2]])
    assert torch.equal(after[1], up.w[0])
    assert not torch.equal(after[1], before[1])


def test_what_silos_declare_when_they_join() -> None:
    roster = make_engine(mlp, make_silos(validation=(4, 0, 2))).roster
    assert roster.names == ("north", "south", "east")
    assert roster.sizes.tolist() == list(SIZES)
    assert roster.validation.tolist() == [4, 0, 2]
    with pytest.raises(BadInput, match="silo 'south' has no training samples"):
        make_engine(mlp, make_silos((5, 0, 3)))


class Crowded(FedAvg):
    """Runs out of memory with more than two rows, as a GPU would."""

    def step(self, task: Any, state: Any, batch: Any) -> Any:
        if task.k > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().step(task, state, batch)


def test_out_of_memory_halves_the_rows_and_goes_on() -> None:
    silos, train = make_silos(RAGGED), {"rounds": 2}
    engine = make_engine(mlp, silos, Crowded(), "all", **train)
    outcome = run(engine)
    assert engine.rows == 2
    close(models(outcome), models(run(make_engine(mlp, silos, FedAvg(), "all", **train))))


def test_a_single_row_that_does_not_fit_is_said() -> None:
    class Hopeless(FedAvg):
        def step(self, task: Any, state: Any, batch: Any) -> Any:
            raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(BadInput, match=r"not enough GPU memory for one silo.*batch_size"):
        run(make_engine(mlp, make_silos(RAGGED), Hopeless(), "all"))
