"""The command as a person calls it: what it prints, what it refuses, what it leaves behind."""

import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command import SMALL, call, same, small

from coterie.commands import main as cli
from coterie.methods import METHODS
from coterie.run.assembly import Assembly
from coterie.runs import folder as run_folder
from coterie.version import build

RUN = ("run", "small.toml")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Every test in a folder of its own, with the small study in it."""
    monkeypatch.chdir(tmp_path)
    small(tmp_path)


def test_the_version_is_that_of_the_files(capsys):
    assert call("--version") == 0 and capsys.readouterr().out == f"coterie {build()}\n"


def contents():
    """Everything below this folder: names, and the bytes of files."""
    return {str(p): p.read_bytes() if p.is_file() else None for p in Path().rglob("*")}


def refused(capfd, *words):
    """The one line with which these words are refused."""
    before = contents()
    assert call(*words) == 2
    out, err = capfd.readouterr()
    assert err.startswith("coterie: ") and err.endswith("\n") and err.count("\n") == 1, err
    assert "Traceback" not in out + err and out == ""
    assert contents() == before
    return err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        # names
        (["run", "digit"], "unknown study 'digit'; did you mean 'digits'? (or give the path of a .toml file)"),
        (["run", ""], "unknown study ''"),
        (["run", "missing.toml"], "study missing.toml: No such file or directory"),
        (["run", "."], "study .: Is a directory"),
        ([*RUN, "--methods", "fedamq"], "unknown method 'fedamq'; did you mean 'fedamp'?"),
        ([*RUN, "--methods", ""], "--methods : expected names, e.g. fedamp,separate"),
        ([*RUN, "--methods", "fedamp,"], "--methods fedamp,: expected names"),
        (["methods", "fedamq"], "unknown method 'fedamq'; did you mean 'fedamp'?"),
        (["methods", ""], "unknown method ''; known: "),
        (["studies", "digit"], "unknown study 'digit'; did you mean 'digits'?"),
        (["data", "digit"], "unknown data set 'digit'; did you mean 'digits'?"),
        # options
        ([*RUN, "--seeds", "a"], "--seeds a: expected whole numbers, e.g. 0,1,2"),
        ([*RUN, "--seeds", ""], "--seeds : expected whole numbers"),
        ([*RUN, "--seeds", "0,0"], "'seeds' must be a list of different whole numbers"),
        ([*RUN, "--seeds=-1"], "'seeds' must be a list of different whole numbers"),
        ([*RUN, "--rows", "0"], "[engine] rows: 0 is out of range; allowed: [1, inf)"),
        ([*RUN, "--rows=-2"], "[engine] rows: -2 is out of range"),
        ([*RUN, "--rows", "²"], "[engine] rows: expected whole number or \"auto\" or \"all\", found '²'"),
        ([*RUN, "--rows", ""], "[engine] rows: expected whole number"),
        ([*RUN, "--device", "tpu"], "unknown device 'tpu'; take auto, cpu, cuda or cuda:N"),
        ([*RUN, "--device", "meta"], "unknown device 'meta'"),
        ([*RUN, "--device", "cuda:99"], "device 'cuda:99': this machine has "),
        ([*RUN, "--rounds", "0"], "[train] rounds: 0 is out of range; allowed: [1, inf)"),
        ([*RUN, "--unseen", "1"], "[train] unseen: 1.0 is out of range; allowed: [0, 1)"),
        ([*RUN, "--unseen", "0.99"], "[train] unseen = 0.99 leaves no silo to train; lower it"),
        ([*RUN, "--unseen", "nan"], "[train] unseen: expected number, found nan"),
        ([*RUN, "--set", "train.lr"], "--set train.lr: expected key.path=value, e.g. train.lr=0.1"),
        ([*RUN, "--set", "name.x=1"], "--set name.x=1: 'name' is a value, not a table"),
        ([*RUN, "--set", "train=3", "--rounds", "1"], "'train' must be a table, e.g. [train]"),
        ([*RUN, "--set", "train.lrr=1"], "[train]: unknown key 'lrr'; did you mean 'lr'?"),
        ([*RUN, "--set", "train.lr=fast"], "[train] lr: expected number, found 'fast'"),
        ([*RUN, "--set", "methods.fedamp.tau=2"], "[methods.fedamp] tau: 2.0 is out of range; allowed: [0, 1]"),
        ([*RUN, "--set", "methods={}"], "no methods to run; add a [methods.NAME] table or --methods NAME"),
        ([*RUN, "--out", "\udcff"], "not text in UTF-8"),
        # a method that does not fit
        ([*RUN, "--set", "methods.heurfedamp.tau=[0.5]"], "[methods.heurfedamp] tau has 1 values for 6 silos"),
        ([*RUN, "--methods", "mocha"], "[methods.mocha] works with linear models only"),
        # data
        ([*RUN, "--set", "data.sizes=[500]"], "class 8 of digits needs 338 samples for train and test but 164 are"),
        ([*RUN, "--set", "data={split='iid', silos=5000}"], "split iid: silo 1797 is left with no training samples"),
        ([*RUN, "--set", "data={split='dirichlet', silos=200}"], "split dirichlet: 200 silos of 10 samples or more"),
        ([*RUN, "--set", "data={name='mnist', path='.'}"], "neither train-images-idx3-ubyte nor"),
        ([*RUN, "--set", "data={name='npz'}"], "data set npz: give `path`, where its files are"),
        ([*RUN, "--set", "data={name='npz', path='missing.npz'}"], "missing.npz: cannot be read"),
        ([*RUN, "--set", "data={name='npz', path='small.toml'}"], "small.toml: damaged or not a NumPy .npz archive"),
        # models
        ([*RUN, "--set", "model={name='cnn', channels=[2, 2, 2, 2]}"], "[model] cnn takes images"),
        ([*RUN, "--model", "linear", "--set", "model.hidden=3"], "[model] (linear): unknown key 'hidden'"),
        ([*RUN, "--set", "model={name='cnnn'}"], "[model] name: unknown model 'cnnn'; did you mean 'cnn'?"),
        # the folder
        ([*RUN, "--out", "small.toml"], "--out small.toml: exists already and is not overwritten"),
        ([*RUN, "--out", "small.toml/x"], "--out small.toml/x: Not a directory"),
        ([*RUN, "--out", "."], "--out .: exists already and is not overwritten; give another folder or remove it"),
        ([*RUN, "--out", "/proc/coterie"], "--out /proc/coterie: "),
        # Typer's own
        ([*RUN, "--nosuch"], "No such option"),
        ([*RUN, "--rounds"], "requires an argument"),
        ([*RUN, "--rounds", "many"], "'many' is not a valid integer"),
        ([*RUN, "--unseen", "some"], "'some' is not a valid float"),
        ([*RUN, "surplus"], "unexpected extra argument"),
        (["nosuch"], "No such command 'nosuch'"),
        (["--nosuch"], "No such option"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_and_leaves_nothing(capfd, words, said):
    assert said in refused(capfd, *words)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff\xfe\x00", "not a text file; give a .toml file in UTF-8"),
        (b"name = [", "study bad.toml: not valid TOML"),
        (b"name = 'x'\n[train]\nroundz = 3", "[train]: unknown key 'roundz'; did you mean 'rounds'?"),
        (b"", "no methods to run"),
    ],
)
def test_a_file_that_is_no_study_is_refused(capfd, content, said):
    Path("bad.toml").write_bytes(content)
    assert said in refused(capfd, "run", "bad.toml")
    assert said in refused(capfd, "studies", "bad.toml")


def arrays(name, **changes):
    x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    np.savez(name, **{"x": x, "y": np.arange(60) % 3, **changes})


@pytest.mark.parametrize(
    ("changes", "words", "said"),
    [
        ({}, ["--set", "model={name='cnn'}"], "[model] cnn takes images (channels, height, width)"),
        ({"x": np.full((60, 4), np.nan)}, [], "[data] npz inputs: NaN or infinity in 60 samples, first in 0; clean"),
        ({"y": np.array([np.nan] + [0.5] * 59)}, [], "targets: NaN or infinity in 1 samples"),
        ({"y": np.full((60, 2), 1)}, [], "the model's output (2,) for a sample does not fit its labels of shape (2,)"),
        ({"x": np.arange(240).reshape(60, 4)}, [], "the model cannot take samples of shape (4,)"),
        ({"x": np.zeros((50, 4))}, [], "50 inputs and 60 labels; give one label per input"),
        ({"y": np.array(["a"] * 60)}, [], "labels are <U1; give whole numbers from 0 up"),
        ({"y": np.array([{}] * 60)}, [], "holds Python objects (pickle); save plain numbers instead"),
    ],
)
def test_data_no_model_can_use_are_refused(capfd, changes, words, said):
    arrays("own.npz", **changes)
    assert said in refused(capfd, *RUN, "--set", "data={name='npz', path='own.npz', silos=3}", *words)


def test_a_file_that_has_too_few_of_a_class_says_which_and_how_many(capfd):
    arrays("own.npz", y=np.array([0] * 58 + [1, 2]))
    data = "data={name='npz', path='own.npz', split='groups', silos=3, groups=3, sizes=[6], test=5}"
    assert "class 2 of npz needs 13 samples for train and test but 12 are missing" in refused(
        capfd, *RUN, "--set", data
    )


@pytest.mark.parametrize(
    ("where", "what", "out"), [(Path, "mkdir", "locked/out"), (run_folder, "write_whole", "locked")]
)
def test_a_folder_that_cannot_be_written_is_refused(capfd, monkeypatch, where, what, out):
    def deny(*_, **__):
        raise PermissionError(13, "Permission denied")

    Path("locked").mkdir()
    monkeypatch.setattr(where, what, deny)  # root, as which tests may run, may write anywhere
    said = f"--out {out}: Permission denied; give a folder that can be written"
    assert said in refused(capfd, *RUN, "--out", out)


def test_what_is_there_already_is_never_touched(capfd):
    Path("out").mkdir()
    Path("out/precious").write_text("kept", "utf-8")
    assert "exists already" in refused(capfd, *RUN, "--out", "out")
    Path("empty").mkdir()
    assert "unknown device" in refused(capfd, *RUN, "--out", "empty", "--device", "tpu")
    assert (
        call(*RUN, "--rounds", "1", "--methods", "separate", "--out", "empty", "--quiet") == 0
    )  # an empty one will do


def test_a_failure_inside_a_method_is_told_with_its_name(capfd):
    words = ("--set", "methods.fedamp={weights='step', alpha=1e9, sigma=1.0}", "--out", "deep/out")
    said = "[methods.fedamp] fedamp: alpha = 1e+09 makes a self-weight negative"
    assert said in refused(capfd, *RUN, *words, "--methods", "fedamp")
    assert call(*RUN, *words) == 2
    assert said in capfd.readouterr().err
    found = run_folder.partial_results(Path("deep/out"))  # what was trained before is not thrown away
    assert set(found["method"]) == {"separate"} and found["round"].max() == 2


def test_a_run_ends_with_a_table_and_the_path_of_the_report(capfd):
    assert call(*RUN, "--rounds", "1", "--out", "out") == 0
    out, err = capfd.readouterr()
    lines = [line.rstrip() for line in out.splitlines()]
    assert err == ""
    assert any(re.match(r"separate +\d+\.\d\d", line) for line in lines)
    assert any(re.match(r"fedamp +\d+\.\d\d", line) for line in lines)
    assert lines[-2:] == ["Results in out", "Report:   out/report.html"]


def test_quiet_prints_nothing(capfd):
    assert call(*RUN, "--rounds", "1", "--methods", "separate", "--quiet", "--out", "out") == 0
    assert capfd.readouterr() == ("", "")


def test_a_run_that_was_not_told_where_goes_under_runs(capfd):
    assert call(*RUN, "--rounds", "1", "--methods", "separate", "--quiet") == 0
    (folder,) = Path("runs").iterdir()
    assert re.fullmatch(r"small-\d{8}-\d{6}", folder.name)


def test_the_command_line_outranks_the_study(capfd):
    words = ("--rounds", "1", "--seeds", "5", "--rows", "2", "--methods", "fedprox,fedamp", "--device", "cpu")
    assert call(*RUN, *words, "--unseen", "0.2", "--set", "methods.fedprox.mu=0.5", "--quiet", "--out", "out") == 0
    written = tomllib.loads(Path("out/study.toml").read_text("utf-8"))
    assert (written["seeds"], written["train"]["rounds"], written["train"]["unseen"]) == ([5], 1, 0.2)
    assert written["engine"] == {
        "device": "cpu",
        "rows": 2,
        "precision": "float32",
        "checkpoint_every": "auto",
        "models": True,
        "in_memory": "auto",
    }
    assert list(written["methods"]) == ["fedprox", "fedamp"]
    assert (written["methods"]["fedprox"]["mu"], written["methods"]["fedamp"]["tau"]) == (0.5, 0.75)
    measures = set(pd.read_parquet("out/results.parquet")["measure"])
    assert {"accuracy", "accuracy_unseen"} <= measures


def test_nothing_asked_is_the_help(capfd):
    assert call() == 0
    out, err = capfd.readouterr()
    assert all(word in out for word in ("run", "methods", "studies", "data")) and err == ""


@pytest.mark.parametrize("group", [(), ("federation",), ("data",)])
def test_no_sentence_of_a_list_of_commands_is_cut(group, capfd):
    assert call(*group, "--help") == 0
    assert "..." not in capfd.readouterr().out.replace("[ARGS]...", "")


def test_help_says_what_each_argument_is(capfd):
    assert call("report", "--help") == 0
    listed = capfd.readouterr().out
    assert listed.count("the folder of a run, finished or not") == 1
    assert listed.count("rguments:") == 1
    assert call("silo", "--help") == 0
    assert "\n  approve DIR [HASH]  show" in capfd.readouterr().out  # a line for each action


def test_lists_name_everything(capfd):
    for command, names in (("methods", METHODS), ("studies", ["digits"]), ("data", ["digits", "npz", "synthetic"])):
        assert call(command) == 0
        out = capfd.readouterr().out
        assert set(names) <= {line.split(" ")[0] for line in out.splitlines()}


def test_a_study_that_is_printed_is_a_study_file(capfd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    assert call("studies", "digits") == 0
    printed = capfd.readouterr().out
    Path("printed.toml").write_text(printed, "utf-8")
    assert call("studies", "printed.toml") == 0
    assert capfd.readouterr().out == printed


def test_a_run_that_is_asked_to_end_ends_as_with_ctrl_c(capfd, monkeypatch):
    monkeypatch.setattr(Assembly, "train", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    before = contents()
    assert call(*RUN, "--out", "deep/out") == 130
    assert capfd.readouterr() == ("", "coterie: stopped\n")
    assert contents() == before


@pytest.mark.parametrize("interrupted", [KeyboardInterrupt, EOFError])
def test_ctrl_c_or_no_terminal_at_a_question_ends_the_command(capfd, monkeypatch, interrupted):
    def asked(prompt):
        raise interrupted

    monkeypatch.setattr("click.termui.hidden_prompt_func", asked)
    assert call("federation", "operator", "alice") == 130
    assert capfd.readouterr().err == "coterie: stopped\n" and not Path("alice").exists()


def test_a_cell_of_a_study_without_cells_is_refused_with_what_to_do(capfd):
    assert call("run", "flights", "--data", "mine") == 2
    assert capfd.readouterr().err == (
        "coterie: --data mine: this study has no cells; leave it out; your own data go with --silos FOLDER\n"
    )


# As processes of their own.


def process(*words, **options):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "coterie", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, **options,
    )  # fmt: skip


def test_python_m_coterie_is_the_command():
    with process("run", "digit") as child:
        out, err = child.communicate(timeout=120)
    assert (child.returncode, out) == (2, "")
    assert err == "coterie: unknown study 'digit'; did you mean 'digits'? (or give the path of a .toml file)\n"


@pytest.mark.slow
@pytest.mark.parametrize("word", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_stopped_in_the_middle_goes_on_and_ends_the_same(capfd, word):
    words = (*RUN, "--rounds", "40", "--quiet")
    with process(*words, "--out", "deep/out") as child:
        while not Path("deep/out/models/separate").exists():  # the first method has ended, the second trains
            assert child.poll() is None
            time.sleep(0.01)
        child.send_signal(word)
        out, err = child.communicate(timeout=120)
    assert (child.returncode, out, err) == (130, "", "coterie: stopped; go on with: coterie run --resume deep/out\n")
    assert call("run", "--resume", "deep/out", "--quiet") == 0
    assert call(*words, "--out", "whole") == 0
    same(Path("deep/out"), Path("whole"))


CELLS = """
[cells.few]
data = {silos = 3}
[cells.missing]
data = {name = "pathmnist", split = "iid"}
[cells.many]
train = {rounds = 1}
"""


def test_all_cells_run_one_after_another_and_those_that_cannot_are_named(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "nothing"))
    study = tmp_path / "celled.toml"
    text = SMALL.replace("silos = 6\ngroups = 3\nsizes = [24, 18, 12]\ntest = 10\n", 'split = "iid"\nsilos = 4\n')
    study.write_text(text + CELLS, "utf-8")
    assert call("run", study, "--data", "all", "--out", tmp_path / "out", "--quiet") == 2
    said = capfd.readouterr().err
    assert "left out missing (data set pathmnist: give `path`" in said and said.count("\n") == 1
    assert {p.name for p in (tmp_path / "out").iterdir()} == {"few", "many"}
    few = tomllib.loads((tmp_path / "out" / "few" / "study.toml").read_text("utf-8"))
    assert (few["cell"], few["data"]["silos"]) == ("few", 3)
    study.write_text(text, "utf-8")
    assert call("run", study, "--data", "all") == 2
    assert "this study has no cells" in capfd.readouterr().err


def test_the_list_of_studies_says_what_they_cost(capfd):
    assert call("studies") == 0
    out = " ".join(capfd.readouterr().out.split())
    assert "Huang et al., AAAI 2021, Table 3; 3,600,000 client-steps, small 216,000" in out
    assert "--data fmnist mnist emnist cifar100" in out
    assert call("studies", "amp-table3", "--data", "mnist", "--scale", "small") == 0
    printed = tomllib.loads(capfd.readouterr().out)
    assert (printed["data"]["name"], printed["cell"], printed["scale"]) == ("mnist", "mnist", "small")


def test_memory_that_runs_out_is_told_whatever_the_command(capfd, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(cli, "app", fail)
    assert call("predict", "model.safetensors") == 2
    assert capfd.readouterr().err == "coterie: out of memory; take fewer silos, a smaller model or smaller data\n"
