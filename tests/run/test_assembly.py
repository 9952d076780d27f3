"""A federation: silos and a model, on which methods train, and silos that arrive afterwards."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from plain import CLASSES, NAMES, TRAINING, batches, by_steps, client, data, make_engine, make_silos, train
from torch import nn
from torch.nn import functional as F

from coterie.data.silo import Part, Silo
from coterie.engine.rounds import run_rounds
from coterie.errors import BadInput
from coterie.methods.fedamp import FedAMP
from coterie.methods.fedavg import FedAvg
from coterie.methods.separate import Separate
from coterie.run.assembly import Assembly, pick_device
from coterie.run.experiment import prepare
from coterie.studies.study import check

SIZES = (7, 10, 6, 14, 8)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, CLASSES))


def federation(build: object = mlp, sizes: tuple[int, ...] = SIZES, **options: object) -> Assembly:
    own = {name: options.pop(name) for name in ("seed", "rows") if name in options}
    training = replace(TRAINING, **options)  # type: ignore[arg-type]
    return Assembly(make_silos(sizes), build, CLASSES, training, device="cpu", **own)  # type: ignore[arg-type]


def test_a_study_names_the_head_where_no_layer_tells() -> None:
    table = {"model": {"name": "mlp", "hidden": [4, 3], "head": "3"}, "train": {"rounds": 1}}
    study, prepared = prepare(check(table, ["fedavg"]), seed=0)
    assert study.model["head"] == prepared.model.head == "3"
    assert study.as_table()["model"]["head"] == "3"
    with pytest.raises(BadInput, match=r"no layer '9' to be its head"):
        prepare(check({"model": {"name": "mlp", "head": "9"}}, ["fedavg"]), seed=0)
    with pytest.raises(BadInput, match=r"layer '2' has no weights"):
        prepare(check({"model": {"name": "mlp", "head": "2"}}, ["fedavg"]), seed=0)
    with pytest.raises(BadInput, match=r"\[model\] head: expected text"):
        check({"model": {"name": "mlp", "head": 9}}, ["fedavg"])


def test_training_is_the_simulators() -> None:
    outcome = federation(rows=2).train(FedAvg())
    engine = make_engine(mlp, make_silos(SIZES), dtype=torch.float32, seed=0)
    expected = run_rounds(engine.method, engine, engine.roster, engine.model, engine.training)
    torch.testing.assert_close(outcome.server.w, expected.server.w)
    assert not torch.equal(outcome.server.w, engine.model.start(0))


def test_one_federation_trains_many_methods_from_the_same_start() -> None:
    shared = federation()
    first, _, again = shared.train(FedAvg()), shared.train(FedAMP()), shared.train(FedAvg())
    for ours, theirs in zip(first.results, again.results, strict=True):
        pd.testing.assert_frame_equal(ours, theirs)


@pytest.mark.parametrize(("share", "newcomers"), [(0.0, 0), (0.2, 1), (0.3, 2), (0.5, 3), (0.8, 4)])
def test_a_share_of_the_silos_is_held_out(share: float, newcomers: int) -> None:
    held = federation(unseen=share)
    assert len(held.newcomers) == newcomers
    assert sorted(s.name for s in (*held.members, *held.newcomers)) == sorted(NAMES)


def test_who_is_held_out_goes_by_seed_and_name() -> None:
    def away(seed: int, silos: list[Silo]) -> set[str]:
        made = Assembly(silos, mlp, CLASSES, replace(TRAINING, unseen=0.4), seed, "cpu", "all")
        return {silo.name for silo in made.newcomers}

    silos = make_silos(SIZES)
    assert away(0, silos) == away(0, silos[::-1])
    assert len({frozenset(away(seed, silos)) for seed in range(8)}) > 1


def test_silos_held_out_are_reported_apart_and_train_nobody() -> None:
    held = federation(unseen=0.4)
    outcome = held.train(FedAvg())
    members = Assembly(held.members, mlp, CLASSES, TRAINING, device="cpu", rows="all").train(FedAvg())
    torch.testing.assert_close(outcome.server.w, members.server.w)
    *rounds, late = outcome.results
    for table in rounds:
        assert set(table["silo"]) == {silo.name for silo in held.members}
        assert set(table["measure"]) == {"accuracy", "loss"}
    assert set(late["silo"]) == {silo.name for silo in held.newcomers}
    assert set(late["measure"]) == {"accuracy_unseen", "loss_unseen"}
    assert set(late["round"]) == {3}
    # a newcomer to FedAvg gets the global model
    module = client(mlp, held.model, outcome.server.w)
    for silo in held.newcomers:
        x, y = data(silo, "test", torch.float32)
        mine = late[(late["silo"] == silo.name) & (late["split"] == "test")].set_index("measure")["value"]
        assert mine["loss_unseen"] == pytest.approx(float(F.cross_entropy(module(x), y).detach()), rel=1e-5)
        hits = (module(x).argmax(1) == y).double().mean()
        assert mine["accuracy_unseen"] == pytest.approx(float(hits))


def test_a_newcomer_that_trains_alone_trains_on_its_own_data() -> None:
    held = federation(unseen=0.4)
    late = held.train(Separate()).results[-1]
    engine = make_engine(mlp, held.newcomers, Separate(), dtype=torch.float32, seed=0)
    for silo in held.newcomers:
        module = client(mlp, held.model, held.model.start(0))
        order = batches(engine, silo, round=2, purpose="arrive")
        train(module, *data(silo, "train", torch.float32), order, torch.optim.SGD(module.parameters(), 0.1))
        x, y = data(silo, "test", torch.float32)
        mine = late[(late["silo"] == silo.name) & (late["split"] == "test")].set_index("measure")["value"]
        assert mine["loss_unseen"] == pytest.approx(float(F.cross_entropy(module(x), y).detach()), rel=1e-4)


def test_holding_out_everybody_is_refused() -> None:
    with pytest.raises(BadInput, match="leaves no silo to train"):
        federation(unseen=0.95)


def test_silos_need_names_of_their_own() -> None:
    silos = make_silos()
    with pytest.raises(BadInput, match="two silos are called 'north'"):
        Assembly([*silos, replace(silos[1], name="north")], mlp, CLASSES, TRAINING, device="cpu")
    with pytest.raises(BadInput, match="at least one silo"):
        Assembly([], mlp, CLASSES, TRAINING, device="cpu")


def test_a_model_that_does_not_fit_is_refused_before_training(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BadInput, match=r"cannot take samples of shape \(5,\)"):
        federation(lambda: nn.Linear(4, CLASSES))
    with pytest.raises(BadInput, match="does not fit 3 classes; give it that many outputs"):
        federation(lambda: nn.Linear(5, 2))
    for _ in range(2):
        federation(lambda: nn.Linear(5, 1000))  # a head for another data set: it trains, and that is said, once
    assert capfd.readouterr().err.count("coterie: the model gives 1000 outputs for 3 classes") == 1


def test_a_batch_of_one_is_refused_only_where_batchnorm_cannot_take_it() -> None:
    federation(mlp, (5, 8))
    federation(normed, (6, 8))
    with pytest.raises(BadInput, match=r"north train: 5 samples in batches of 4 leave a batch of one"):
        federation(normed, (5, 8))
    with pytest.raises(BadInput, match="leave a batch of one"):
        federation(normed, (6, 8), batch_size=1)
    federation(normed, (5, 8), whole_batches=True).train(FedAvg())
    with pytest.raises(BadInput, match="train: 1 samples in batches of 4 leave a batch of one"):
        federation(normed, (8, 1), whole_batches=True)

    def images() -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, CLASSES))

    Assembly(make_silos((5, 8), (1, 2, 2)), images, CLASSES, TRAINING, device="cpu").train(FedAvg())


def test_tokens_and_regression_need_no_special_care() -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.out = nn.Embedding(9, 4), nn.Linear(4, CLASSES)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.out(self.embed(x)).transpose(1, 2)
            return out

    text = Assembly(make_silos(shape=(6,), tokens=9), Tagger, CLASSES, TRAINING, device="cpu")
    assert set(text.train(FedAvg()).results[-1]["measure"]) == {"accuracy", "loss"}

    def part(p: Part) -> Part:
        return Part(p.x, (p.x[:, 0] * 2 + 1).astype(np.float32))

    numbers = [Silo(s.name, part(s.train), part(s.validation), part(s.test)) for s in make_silos()]
    values = Assembly(numbers, lambda: nn.Linear(5, 1), 0, replace(TRAINING, rounds=20), device="cpu")
    outcome = values.train(FedAvg())
    assert set(outcome.results[-1]["measure"]) == {"loss", "rmse", "mae", "r2"}
    losses = [table.loc[table["measure"] == "loss", "value"].mean() for table in outcome.results]
    assert losses[-1] < 0.05 * losses[0]


def test_devices_by_name() -> None:
    assert pick_device("cpu").type == "cpu"
    assert pick_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    with pytest.raises(BadInput, match="unknown device 'gpu'"):
        pick_device("gpu")
    if not torch.cuda.is_available():
        with pytest.raises(BadInput, match="CUDA device"):
            pick_device("cuda")


def test_the_engine_is_the_members_before_the_first_round() -> None:
    engine = federation(unseen=0.2).engine(FedAMP())
    assert len(engine.roster) == 4
    assert torch.equal(engine.private().w, by_steps(engine).start())
