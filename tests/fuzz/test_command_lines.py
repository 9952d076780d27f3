"""Command lines: every command and option with anything after it; one line on stderr and code 2, or it was fine."""

import contextlib
import io
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from command import call, small
from fuzzing import fuzz, scratch
from hypothesis import strategies as st
from mutate import names, numbers

from coterie.data import fetch
from coterie.data.catalog import CATALOG
from coterie.data.download import Failed
from coterie.deploy.flower import launch, monitoring, services
from coterie.deploy.parties import new_federation
from coterie.errors import BadInput
from coterie.methods import METHODS
from coterie.report.live import Live
from coterie.run import experiment
from coterie.runs import folder as run_folder
from coterie.studies.study import built_in

# The system passes no NUL and no half of a surrogate pair in a command line.
words = st.one_of(
    names, numbers.map(str), st.sampled_from([*METHODS, *CATALOG, *built_in(), "fedamp,separate", "0,1,2", "all"])
)
words = words.map(lambda text: text.replace("\0", "").encode(errors="replace").decode())
# Folders stay below the scratch folder, whatever a word says.
places = words.map(lambda text: text.lstrip("/~")).filter(lambda text: text.count("..") < 4) | st.just("small.toml")
assignments = st.tuples(
    st.sampled_from(["train.lr", "data.silos", "model.hidden", "methods.fedamp.tau", "a", ""]), words
).map("=".join)
OPTIONS: dict[str, st.SearchStrategy[str]] = {
    "--methods": words, "--set": assignments | words, "--rounds": words, "--seeds": words,
    "--data": words, "--scale": words,
    "--unseen": words, "--device": words, "--rows": words, "--out": places, "--quiet": st.just("--quiet"),
    "--help": st.just("--help"),
    "--silos": words, "--host": words, "--port": words, "--proxy": st.just("--no-proxy"), "--gather": words,
    "--reply": words,
    "--resume": words,
}  # fmt: skip

VALID = [
    "run small.toml --methods fedamp --set train.lr=0.1 --rounds 2 --seeds 0,1 --unseen 0.2 --out out",
    "run small.toml --device cpu --rows all --out out", "run --resume small.toml --quiet",
    "run --silos fed --label age --task auto --drop id --standardize silo --model auto --out out",
    "predict small.toml --data small.toml --out out.csv", "export small.toml --onnx out.onnx",
    "report fed", "compare fed fed", "watch fed", "figures fed", "new-method mine",
    "run amp-table3 --data fmnist --scale small --quiet --out out",
    "methods fedamp", "studies digits", "data mnist", "data fetch mnist", "data import mnist small.toml",
    "federation new other --silos north,south --host example.org --port 9443 --proxy", "federation add fed west",
    "federation share fed small.toml", "federation status fed",
    "federation run fed small.toml --methods fedamp --set train.lr=0.1 --rounds 2 --gather 1 --reply 1",
    "coordinator fed/coordinator", "silo fed/silos/north --data small.toml --device cpu", "silo ledger fed/silos/north",
]  # fmt: skip


@st.composite
def likely(draw: Any) -> list[str]:
    """A valid line with a word or two replaced, left out or said twice."""
    line = draw(st.sampled_from(VALID)).split()
    for _ in range(draw(st.integers(1, 2))):
        place = draw(st.integers(1, len(line) - 1))
        after = line[place - 1]
        kind = draw(st.sampled_from(["replace", "replace", "replace", "leave out", "twice"]))
        if kind == "replace":
            line[place] = draw(OPTIONS.get(after, places))
        elif kind == "leave out" and len(line) > 2:
            del line[place]
        elif kind == "twice":
            line.insert(place, line[place])
    return line


@st.composite
def wild(draw: Any) -> list[str]:
    """A command, up to two words and up to three options, its own or another's."""
    command = draw(st.sampled_from(VALID)).split()[: draw(st.integers(1, 2))]
    line = [*command, *draw(st.lists(places, max_size=2))]
    for option in draw(st.lists(st.sampled_from(list(OPTIONS)), max_size=3)):
        line += [option, draw(OPTIONS[option])]
    return line + draw(st.lists(words, max_size=1))


def _stop(*_: Any, **__: Any) -> Any:
    raise BadInput("stopped before the long part")


def _pretend(study: Any, out: Path, *more: Any) -> Any:
    """All of a run but the training."""
    run_folder.release(out, run_folder.claim(out))
    _stop()


@pytest.fixture(autouse=True, scope="module")
def nothing_long() -> Any:
    """No training, no network, no Flower."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiment, "run_into", _pretend)
        patch.setattr(experiment, "resume", _stop)
        patch.setattr(fetch, "download", lambda *_: (_ for _ in ()).throw(Failed("no network")))
        for name in ("coordinator", "silo"):
            patch.setattr(services, name, _stop)
        for module in (launch, monitoring):
            patch.setattr(module, "running_coordinator", lambda folder: folder / "coordinator")
        patch.setattr(launch, "follow", _stop)
        patch.setattr(Live, "serve_forever", _stop)
        patch.setattr(monitoring, "silo_states", lambda folder: {"north": "online"})
        yield


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("made") / "fed"
    new_federation(folder, ["north", "south"], "127.0.0.1", 9443, None)
    return folder


@fuzz(1500, st.one_of(likely(), likely(), likely(), wild()))
def test_a_command_line_is_obeyed_or_refused_in_one_line(federation: Path, line: list[str]) -> None:
    out, err = io.StringIO(), io.StringIO()
    with scratch() as folder:
        here = folder / "a/b/c/d/e"
        here.mkdir(parents=True)
        small(here)
        shutil.copytree(federation, here / "fed")
        with contextlib.chdir(here), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            os.environ["COTERIE_DATA"] = str(folder / "cache")
            code = call(*line)
    said = err.getvalue()
    assert code in (0, 2), (code, said)
    assert said == "" if code == 0 else said.startswith("coterie: ") and said.count("\n") == 1
    assert all(letter.isprintable() for letter in said.removesuffix("\n"))
