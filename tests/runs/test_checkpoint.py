"""Checkpoints: a run that goes on ends with the same bits, and what is damaged is noticed and not used."""

import gc
import json
import os
import resource
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from plain import make_engine, make_silos
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from coterie.engine.predictors import Distilled, Ensemble
from coterie.engine.rounds import Outcome, Progress, run_rounds
from coterie.engine.simulate import Simulator
from coterie.measure.metrics import Rank
from coterie.methods import GROUPS, METHODS, make
from coterie.methods.wrappers.personal import local_buffers
from coterie.models.parts import freeze
from coterie.runs.checkpoint import Checkpoint, results_in, traces_in

ROUNDS = 4


def linear() -> nn.Module:
    return nn.Linear(5, 3)


def layered() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def engine_of(name: str, options: dict[str, object] | None = None, **train: object) -> Simulator:
    silos = make_silos((7, 10, 6, 5, 8))
    build = layered if name in GROUPS["a part of the model"] else linear
    return make_engine(build, silos, make(name, options or {}), dtype=torch.float32, **{"rounds": ROUNDS, **train})


class Killed(Exception):
    """As if the process had ended here."""


def run(engine: Simulator, folder: Path, stop: int = -1, every: int = 1) -> tuple[Outcome, list[int]]:
    """Train with checkpoints, up to the moment at which a round is told; and the rounds that were told."""
    told = list[int]()

    def watch(progress: Progress) -> None:
        told.append(progress.round)
        if progress.round == stop:
            raise Killed

    checkpoint = Checkpoint(folder / "0", "it", 3, every)
    outcome = run_rounds(engine.method, engine, engine.roster, engine.model, engine.training, watch, checkpoint)
    checkpoint.end(outcome)
    return outcome, told


def bits(engine: Simulator, outcome: Outcome, folder: Path) -> dict[str, Any]:
    """All that a run ends with, but for how long it took."""
    assert outcome.models is not None
    records = {"server": outcome.server, "private": engine.private(), "models": outcome.models}
    tensors = {f"{kind}.{name}": t for kind, record in records.items() for name, t in record.tensors().items()}
    table = results_in(folder)
    assert table is not None
    assert outcome.picked is not None
    costs = {key: getattr(outcome, key) for key in ("measured", "score", "bytes_up", "bytes_down", "missing")}
    costs |= {"picked": outcome.picked.pick}
    return {
        **{name: t.numpy().tobytes() for name, t in tensors.items()},
        **{f"trace.{name}": kept.tobytes() for name, kept in traces_in(folder / "0").items()},
        **costs,
        "results": table.to_pydict(),
    }


def unbroken_and_resumed(build: Callable[[], Simulator], folder: Path, stop: int = 2) -> Outcome:
    engine = build()
    outcome, _ = run(engine, folder / "unbroken")
    whole = bits(engine, outcome, folder / "unbroken")
    with pytest.raises(Killed):
        run(build(), folder / "broken", stop)
    engine = build()
    outcome, told = run(engine, folder / "broken")
    assert told == list(range(stop, ROUNDS + 1))
    resumed = bits(engine, outcome, folder / "broken")
    assert [name for name in whole if whole[name] != resumed.get(name)] == []
    assert resumed.keys() == whole.keys()
    return outcome


@pytest.mark.parametrize("name", METHODS)
def test_every_method_resumes_with_the_same_bits(name: str, tmp_path: Path) -> None:
    unbroken_and_resumed(lambda: engine_of(name, participation=0.8, drop=0.25), tmp_path)


@pytest.mark.parametrize("stop", range(ROUNDS + 1))
def test_a_run_resumes_from_any_round(stop: int, tmp_path: Path) -> None:
    unbroken_and_resumed(lambda: engine_of("scaffold", optimizer="adam", measure_every=3), tmp_path, stop)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fedamp", {"finetune": {"epochs": 1}}),
        ("fedavg", {"clip_update": {"norm": 0.05}}),
        ("fedprox", {"finetune": {"epochs": 1}, "clip_update": {"norm": 0.05}}),
        ("apfl", {"learned": False}),
    ],
)
def test_wrappers_and_options_resume_with_the_same_bits(name: str, options: dict[str, object], tmp_path: Path) -> None:
    unbroken_and_resumed(lambda: engine_of(name, options), tmp_path)


def pick(monkeypatch: pytest.MonkeyPatch, *rounds: int) -> None:
    """Have validation data prefer these rounds, each to those before it."""
    score = {round: float(round) for round in rounds}
    found = lambda table, by: {int(r): Rank(1, 1, score.get(int(r), 0.0)) for r in table["round"].unique()}  # noqa: E731
    monkeypatch.setattr("coterie.engine.rounds.ranks", found)


@pytest.mark.parametrize("distil", [False, True])
def test_an_ensemble_picked_before_a_kill_comes_back_from_the_disk(
    distil: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pick(monkeypatch, 1)
    members = ["separate", {"method": "fedavg-ft", "train": {"optimizer": "adam", "lr": 0.01}}, "fedem"]
    build = lambda: engine_of("stack", {"of": members, "fit_every": 1, "distil": distil}, lr=3.0)  # noqa: E731
    outcome = unbroken_and_resumed(build, tmp_path, stop=3)
    assert outcome.picked is not None and 0 < outcome.picked.round < 3
    assert isinstance(outcome.models, Distilled if distil else Ensemble)


@pytest.mark.parametrize("buffers", ["local", "shared"])
def test_statistics_of_batches_resume_with_the_same_bits(buffers: str, tmp_path: Path) -> None:
    def build() -> Simulator:
        method = make("fedamp", {})
        model = make_engine(normed, dtype=torch.float32).model
        wrapped = local_buffers(method, model) if buffers == "local" else method
        return make_engine(normed, method=wrapped, dtype=torch.float32, rounds=ROUNDS)

    unbroken_and_resumed(build, tmp_path)


@pytest.mark.parametrize(("stop", "before"), [(2, 1), (4, 3)])
@pytest.mark.parametrize("every", [1, 3])
def test_the_models_of_the_picked_round_survive_a_kill(
    stop: int, before: int, every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Validation data pick round 1 and then round 3: after the kill, or before it."""
    pick(monkeypatch, 1, 3)
    with pytest.raises(Killed):
        run(engine_of("fedavg"), tmp_path / "look", stop)
    assert picked_files(tmp_path / "look")[-1].startswith(f"picked-{before:06}")
    whole, _ = run(engine_of("fedavg"), tmp_path / "whole", every=every)
    with pytest.raises(Killed):
        run(engine_of("fedavg"), tmp_path, stop, every)
    outcome, _ = run(engine_of("fedavg"), tmp_path, every=every)
    alone = engine_of("fedavg", rounds=3)  # the same rounds, of which the third is the last
    third = run_rounds(alone.method, alone, alone.roster, alone.model, alone.training)
    for found in (whole, outcome):
        assert found.picked is not None and found.picked.round == 3 and found.models is not None
        assert torch.equal(found.models.models, third.server.w.expand(5, -1))


def test_models_are_written_when_another_round_is_picked_and_not_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pick(monkeypatch, 1, 3)
    kept = dict[int, list[str]]()

    class Spying(Checkpoint):
        def keep(self, outcome: Outcome, engine: Any, done: int) -> None:
            super().keep(outcome, engine, done)
            kept[done] = picked_files(tmp_path)

    engine = engine_of("fedavg")
    spying = Spying(tmp_path / "0", "it", 3)
    run_rounds(engine.method, engine, engine.roster, engine.model, engine.training, keeper=spying)
    assert [[name[:13] for name in kept[done]] for done in range(1, ROUNDS + 1)] == [
        [], ["picked-000001"], ["picked-000001"], ["picked-000001", "picked-000003"],
    ]  # fmt: skip
    assert kept[2] == kept[3]  # the last two checkpoints may count on different ones, and the rest goes


@pytest.mark.parametrize(("name", "same"), [("fedavg", True), ("fedamp", False), ("fedem", True)])
def test_a_model_that_is_the_same_in_all_silos_is_written_once(name: str, same: bool, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        run(engine_of(name), tmp_path, stop=2)
    (path,) = tmp_path.glob("0/picked-*.safetensors")
    assert len(load_file(path)["models"]) == (1 if same else 5)


@pytest.mark.parametrize(("name", "resumed_from"), [("fedavg", 3), ("scaffold", 0)])
def test_damaged_models_send_a_run_back(
    name: str, resumed_from: int, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """FedAvg's checkpoint after round 3 counts on other models; SCAFFOLD's last two on those of its first round."""
    pick(monkeypatch, *((1, 3) if name == "fedavg" else (1,)))
    whole, _ = run(engine_of(name), tmp_path / "whole")
    for damage in (flip, cut, empty, Path.unlink):
        folder = tmp_path / damage.__name__
        with pytest.raises(Killed):
            run(engine_of(name), folder, stop=4)
        damage(max(folder.glob("0/picked-*.safetensors")))
        outcome, told = run(engine_of(name), folder)
        assert told[0] == resumed_from
        assert capfd.readouterr().err.count("it or a file beside it is damaged, so it is not used") == (
            1 if resumed_from else 2
        )
        assert outcome.models is not None and whole.models is not None
        assert torch.equal(outcome.models.models, whole.models.models)
        found = results_in(folder)
        assert found is not None and found.equals(results_in(tmp_path / "whole"))


def on_a_base() -> nn.Module:
    return freeze(nn.Sequential(nn.Linear(5, 9000), nn.Tanh(), nn.Linear(9000, 4), nn.Linear(4, 3)), ["*"], ["head"])


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedamp", "fedem", "stack"])
def test_what_is_frozen_is_in_no_checkpoint(name: str, tmp_path: Path) -> None:
    """Nor in what a silo or the server keeps, an optimiser's state or what is sent: all of it is less than the base."""
    engine, again = (
        make_engine(on_a_base, make_silos((7, 10)), make(name, {}), dtype=torch.float32, rounds=2, optimizer="adam")
        for _ in range(2)
    )
    base = sum(t.nbytes for t in engine.model.base.values())
    with pytest.raises(Killed):
        run(engine, tmp_path, stop=2)
    written = {path.name[:5]: load_file(path) for path in tmp_path.glob("0/*.safetensors")}
    assert written.keys() == {"round", "picke"}
    assert sum(t.nbytes for tensors in written.values() for t in tensors.values()) < base
    outcome, _ = run(again, tmp_path)
    assert 0 < outcome.bytes_up < base and 0 < outcome.bytes_down < base


def files(folder: Path) -> list[str]:
    return sorted(path.name[:12] for path in folder.glob("0/*.safetensors") if not path.name.startswith("picked"))


def picked_files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("0/picked-*.safetensors"))


def test_the_last_two_rounds_are_kept_and_none_once_it_has_ended(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        run(engine_of("fedavg"), tmp_path, stop=3)
    assert files(tmp_path) == ["round-000002", "round-000003"] and picked_files(tmp_path)
    run(engine_of("fedavg"), tmp_path)
    assert len(files(tmp_path)) == 1 and files(tmp_path)[0].startswith("ended-") and not picked_files(tmp_path)


def test_a_run_that_has_ended_says_what_it_cost(tmp_path: Path) -> None:
    assert Checkpoint(tmp_path / "0", "it", 3).ended() is None
    outcome, _ = run(engine_of("fedavg", drop=0.4), tmp_path)
    known = Checkpoint(tmp_path / "0", "it", 3).ended()
    assert known is not None
    for key in ("bytes_up", "bytes_down", "train_seconds", "missing", "score", "measured"):
        assert getattr(known, key) == getattr(outcome, key)
    assert known.missing == 2 * ROUNDS and known.bytes_up > 0


def test_a_run_goes_on_with_as_many_rows_as_it_had_left(tmp_path: Path) -> None:
    engine, again = engine_of("fedavg"), engine_of("fedavg")
    engine.rows = 2  # as if a GPU's memory had not held more
    with pytest.raises(Killed):
        run(engine, tmp_path, stop=2)
    assert again.rows == 5
    run(again, tmp_path)
    assert again.rows == 2


def test_fewer_checkpoints_lose_at_most_the_rounds_between_them(tmp_path: Path) -> None:
    whole, _ = run(engine_of("fedavg"), tmp_path / "whole")
    with pytest.raises(Killed):
        run(engine_of("fedavg"), tmp_path, stop=3, every=2)
    outcome, told = run(engine_of("fedavg"), tmp_path, every=2)
    assert told == [2, 3, 4]
    assert torch.equal(outcome.server.w, whole.server.w)
    found, expected = results_in(tmp_path), results_in(tmp_path / "whole")
    assert found is not None and found.equals(expected)


def test_a_large_state_is_written_as_often_as_costs_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, written = SimpleNamespace(now=0.0), list[str]()

    class Slow(Checkpoint):
        def _write(self, name: str, *what: Any) -> None:
            super()._write(name, *what)
            clock.now += 2
            written.append(name)

    def train(progress: Progress) -> None:
        clock.now += 5
        if progress.round == 7:
            raise Killed

    monkeypatch.setattr("coterie.runs.checkpoint.time", SimpleNamespace(monotonic=lambda: clock.now))
    for small, rounds in ((0, [1, 5]), (1 << 20, range(1, 8))):
        monkeypatch.setattr("coterie.runs.checkpoint.SMALL", small)
        engine, kept = engine_of("fedavg", rounds=9), Slow(tmp_path / str(small), "it", 3)
        with pytest.raises(Killed):
            run_rounds(engine.method, engine, engine.roster, engine.model, engine.training, train, kept)
        assert written == [f"round-{done:06}" for done in rounds]
        table = results_in(tmp_path)
        assert table is not None and set(table["round"].to_pylist()) == set(range(8))  # to be looked at
        written.clear()


def test_what_was_measured_is_on_the_disk_and_not_in_memory(tmp_path: Path) -> None:
    kept = list[tuple[int, int]]()

    class Spying(Checkpoint):
        def keep(self, outcome: Outcome, engine: Any, done: int) -> None:
            super().keep(outcome, engine, done)
            kept.append((len(outcome.results), len(outcome.traces)))

    engine = engine_of("fedamp")
    in_memory = run_rounds(engine.method, engine, engine.roster, engine.model, engine.training)
    engine = engine_of("fedamp")
    spying = Spying(tmp_path / "0", "it", 3)
    run_rounds(engine.method, engine, engine.roster, engine.model, engine.training, keeper=spying)
    assert kept == [(0, 0)] * ROUNDS
    table = results_in(tmp_path)
    assert table is not None
    expected = pd.concat(in_memory.results, ignore_index=True).assign(method="it", seed=3)
    pd.testing.assert_frame_equal(table.to_pandas(), expected)
    found = traces_in(tmp_path / "0")
    assert found.keys() == in_memory.traces.keys() == {"collaboration", "rounds"}
    for name, values in in_memory.traces.items():
        assert np.array_equal(found[name], np.stack(values))


def test_memory_does_not_grow_with_the_rounds(tmp_path: Path) -> None:
    silos = [replace(silo, name=f"{silo.name}-{i}") for i in range(10) for silo in make_silos((7, 10, 6, 5, 8))]
    engine = make_engine(linear, silos, make("fedamp", {}), dtype=torch.float32, rounds=30)
    held = dict[int, int]()

    def watch(progress: Progress) -> None:
        if progress.round in (10, 30):
            gc.collect()
            held[progress.round] = tracemalloc.get_traced_memory()[0]

    checkpoint = Checkpoint(tmp_path / "0", "it", 3)
    tracemalloc.start()
    try:
        run_rounds(engine.method, engine, engine.roster, engine.model, engine.training, watch, checkpoint)
    finally:
        tracemalloc.stop()
    traced = 20 * 50 * 50 * 4  # bytes of who learned from whom in 20 rounds, the larger part of what is measured
    assert held[30] - held[10] < traced / 4  # some hundred bytes a round are PyTorch's own


# What is damaged.


def newest(folder: Path) -> Path:
    return max(folder.glob("0/round-*.safetensors"))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def forge(path: Path) -> None:
    path.rename(path.with_name(f"round-000003-{'0' * 64}.safetensors"))


@pytest.mark.parametrize("damage", [cut, flip, empty, forge])
def test_a_damaged_checkpoint_is_not_used_but_the_one_before(
    damage: Callable[[Path], None], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole, _ = run(engine_of("fedamp"), tmp_path / "whole")
    with pytest.raises(Killed):
        run(engine_of("fedamp"), tmp_path, stop=3)
    damage(newest(tmp_path))
    damaged = newest(tmp_path)
    outcome, told = run(engine_of("fedamp"), tmp_path)
    assert told == [2, 3, 4]
    said = f"coterie: {damaged}: it or a file beside it is damaged, so it is not used; "
    said += "going on from the one after round 2\n"
    assert capfd.readouterr().err == said
    assert torch.equal(outcome.server.w, whole.server.w)
    found = results_in(tmp_path)
    assert found is not None and found.equals(results_in(tmp_path / "whole"))


@pytest.mark.parametrize(("place", "from_round"), [(-1, 2), (30, 0)])
def test_a_damaged_journal_is_noticed(
    place: int, from_round: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole, _ = run(engine_of("fedamp"), tmp_path / "whole")
    with pytest.raises(Killed):
        run(engine_of("fedamp"), tmp_path, stop=3)
    journal = tmp_path / "0" / "journal"
    content = bytearray(journal.read_bytes())
    with safe_open(newest(tmp_path), "pt") as file:
        counted = json.loads(file.metadata()["about"])["journal"]["length"]  # the rest is measured again
    content[place % counted] ^= 1  # in what round 2 measured, or already in what was measured before the first
    journal.write_bytes(content)
    outcome, told = run(engine_of("fedamp"), tmp_path)
    assert told == list(range(from_round, ROUNDS + 1))
    assert capfd.readouterr().err.count("is damaged") == (1 if from_round else 2)
    assert torch.equal(outcome.server.w, whole.server.w)
    found = results_in(tmp_path)
    assert found is not None and found.equals(results_in(tmp_path / "whole"))


def test_a_damaged_end_is_trained_anew(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run(engine_of("fedavg"), tmp_path)
    (end,) = tmp_path.glob("0/ended-*.safetensors")
    flip(end)
    assert Checkpoint(tmp_path / "0", "it", 3).ended() is None
    assert "training it (seed 3) from its start" in capfd.readouterr().err
    _, told = run(engine_of("fedavg"), tmp_path)
    assert told[0] == 0


@contextmanager
def small_disk(room: int) -> Iterator[None]:
    """No file may grow beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_without_room_leaves_the_last_checkpoint_as_it_was(tmp_path: Path) -> None:
    """The state does not fit from the start, and the journal from some round on."""
    with pytest.raises(OSError, match="File too large"), small_disk(2000):
        run(engine_of("fedavg"), tmp_path / "state")
    assert not list(tmp_path.glob("state/0/*.safetensors")) and not (tmp_path / "state" / "0" / "part").exists()

    whole, _ = run(engine_of("fedavg"), tmp_path / "whole")
    with pytest.raises(Killed):
        run(engine_of("fedavg"), tmp_path, stop=2)
    before = {path.name: path.read_bytes() for path in tmp_path.glob("0/round-*")}
    room = os.path.getsize(tmp_path / "0" / "journal") + 10  # noqa: PTH202
    assert room > os.path.getsize(newest(tmp_path))  # noqa: PTH202
    with pytest.raises(OSError, match="File too large"), small_disk(room):
        run(engine_of("fedavg"), tmp_path)
    after = {path.name: path.read_bytes() for path in tmp_path.glob("0/round-*")}
    assert before.items() & after.items() and len(after) == 2  # round 3 was trained, and what it measured had no room
    outcome, told = run(engine_of("fedavg"), tmp_path)
    assert told == [3, 4] and torch.equal(outcome.server.w, whole.server.w)
