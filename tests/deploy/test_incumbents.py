"""Silos whose models of today a stack mixes in: what they give for each row stays where it is."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from loop import NAMES, Loop
from test_drive import federated
from test_tables import TABLE, patients

from coterie.data.own.incumbent import ANY
from coterie.deploy.ledger import Ledger
from coterie.deploy.messages import Answer, Request
from coterie.deploy.own import SiloSource
from coterie.deploy.policy import FILE, policy_text
from coterie.deploy.silo import SiloSide
from coterie.engine.exchange import Failure
from coterie.personal.file import load_model

STACK = TABLE | {"methods": {"stack": {"of": ["separate", "fedavg"], "incumbent": True, "fit_every": 1}}}
TODAY = 0.984375  # a probability that nothing else gives, without a rest in any precision


class Heard(Loop):
    """A transport that keeps what came back."""

    def __init__(self, sides: Mapping[str, SiloSide], late: Mapping[str, SiloSide]) -> None:
        super().__init__(dict(sides))
        self.late = late  # come when training has begun
        self.heard: dict[str, list[bytes]] = {}

    def exchange(self, requests: Mapping[str, Request], timeout: float) -> dict[str, Answer | Failure]:
        found = super().exchange(requests, timeout)
        for name, each in found.items():
            if isinstance(each, Answer):
                self.heard.setdefault(name, []).append(each.body)
        if any(each.kind == "train" for each in requests.values()):
            self.sides = {**self.sides, **self.late}
        return found


def with_today(place: int, rows: int = 120) -> pd.DataFrame:
    """A table with what a model of today says of each row, which is right."""
    frame = patients(place, rows)
    return frame.assign(today=np.where(frame["outcome"] == "well", TODAY, 1 - TODAY))


def settled(folder: Path, incumbent: Mapping[str, str]) -> dict[str, SiloSide]:
    sides = {}
    for place, name in enumerate((*NAMES, "west")):
        home = folder / name
        home.mkdir(parents=True)
        own = incumbent.get(name, "")
        (home / FILE).write_text(policy_text("all").replace('incumbent = ""', f'incumbent = "{own}"'))
        with_today(place).to_csv(home / "patients.csv", index=False)
        drop = ("id",) if own == "today" else ("id", "today")
        sides[name] = SiloSide(name, home, SiloSource(home / "patients.csv", "outcome", drop), "cpu")
    return sides


def shares(folder: Path, name: str) -> dict[str, float]:
    """Of the model that a silo keeps."""
    (file,) = (folder / name / "models").rglob(f"{name}.safetensors")
    model = load_model(file)
    return dict(zip(json.loads(model.about["candidates"]), model.module.core.weights.tolist(), strict=True))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Heard]:
    """Two silos with a model of today, of which one misses a round, one without, and a newcomer with one."""
    folder = tmp_path_factory.mktemp("incumbents")
    sides = settled(folder, {"north": "today", "south": "trees", "west": "today"})
    loop = Heard({name: sides[name] for name in NAMES}, {"west": sides["west"]})
    loop.deaf = lambda request: (request.kind, request.silo, request.round) == ("train", "south", 1)
    table = STACK | {"train": TABLE["train"] | {"rounds": 3, "measure_every": 3}}
    federated(folder / "run", loop, table).run("")
    return folder, loop


def test_a_silo_mixes_in_its_own_model_and_others_have_none(ran: tuple[Path, Heard]) -> None:
    folder, _ = ran
    assert shares(folder, "north")["incumbent"] > 0.5
    assert 0 < shares(folder, "south")["incumbent"] < 1
    assert shares(folder, "east")["incumbent"] == 0
    assert shares(folder, "west")["incumbent"] > 0.5  # a newcomer


def test_the_model_that_a_silo_keeps_finds_the_column_in_new_rows(ran: tuple[Path, Heard]) -> None:
    folder, _ = ran
    (file,) = (folder / "north" / "models").rglob("north.safetensors")
    rows = with_today(0).head(20)
    found = load_model(file).predict(rows)
    assert (found["prediction"] == rows["outcome"]).mean() > 0.8


def test_with_a_model_of_today_no_other_kind_of_thing_leaves_and_no_more_of_it(ran: tuple[Path, Heard]) -> None:
    folder, loop = ran
    for name in NAMES:
        trained = [e for e in Ledger(folder / name).entries() if e["kind"] == "train"]
        assert {(e["field"], *e["shape"]) for e in trained} == {
            ("fedavg.w", 1, 128), ("curves", 1, 3, 9), ("counts", 1, 3), ("fits", 1, 6),
        }  # fmt: skip
        assert len(trained) == 4 * (2 if name == "south" else 3)  # rounds
    told = torch.tensor([[TODAY, 1 - TODAY], [1 - TODAY, TODAY]])
    every = (row.to(kind) for row in (*told, *spread(told)) for kind in (torch.float32, torch.float64))
    patterns = [row.numpy().tobytes() for row in every]
    for name in ("north", "west"):
        assert not any(pattern in body for pattern in patterns for body in loop.heard[name])


def spread(p: torch.Tensor) -> torch.Tensor:
    """As a model of today is mixed."""
    return (1 - ANY) * p + ANY / 2
