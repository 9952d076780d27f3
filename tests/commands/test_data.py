"""`coterie data`, as a person types it."""

import io
import json

import numpy as np
import pytest
from command import call
from rich.console import Console

from coterie.data import fetch
from coterie.data.bar import shown
from coterie.data.catalog import CATALOG

pytestmark = pytest.mark.usefixtures("own_cache")


def printed(capfd, *words):
    assert call(*words) == 0
    out, err = capfd.readouterr()
    assert err == ""
    return out


def refused(capfd, *words):
    assert call(*words) == 2
    err = capfd.readouterr().err
    assert err.startswith("coterie: ") and err.count("\n") == 1
    return err


def test_the_list_says_what_is_at_hand_and_where(capfd, own_cache):
    lines = printed(capfd, "data").splitlines()
    assert {*CATALOG} <= {line.split(" ")[0] for line in lines}
    assert next(line for line in lines if line.startswith("digits")).split()[-1] == "yes"
    assert next(line for line in lines if line.startswith("shakespeare")).split()[-1] == "no"
    (own_cache / "shakespeare").mkdir()
    (own_cache / "shakespeare" / "shakespeare.txt").touch()
    lines = printed(capfd, "data").splitlines()
    assert next(line for line in lines if line.startswith("shakespeare")).split()[-1] == "yes"
    assert f"shakespeare: {own_cache / 'shakespeare'}" in lines
    assert f"Files are kept in {own_cache}" in lines


def test_a_page_has_the_files_and_their_checksums(capfd):
    out = printed(capfd, "data", "fmnist")
    assert "fashion-mnist: Fashion-MNIST" in out and "not at hand" in out
    assert "train-images-idx3-ubyte.gz md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d" in out
    assert "LEAF's scripts" in printed(capfd, "data", "femnist")


def test_import_then_list(capfd, tmp_path, own_cache):
    np.savez(tmp_path / "a.npz", x=np.zeros((40, 28, 28), np.uint8), y=np.arange(40) % 11)
    out = printed(capfd, "data", "import", "organamnist", tmp_path / "a.npz")
    assert "organamnist: 40 samples, not verified" in out and str(own_cache / "organamnist") in out
    assert f"at hand in {own_cache / 'organamnist'}" in printed(capfd, "data", "organamnist")


def test_fetch_says_where_it_is(capfd, own_cache, monkeypatch):
    asked = []
    monkeypatch.setattr(fetch, "fetch", lambda name, watch: asked.append(name) or own_cache / name)
    assert f"fashion-mnist is in {own_cache / 'fashion-mnist'}" in printed(capfd, "data", "fetch", "fmnist")
    assert asked == ["fashion-mnist"]


def test_the_bar_shows_file_and_bytes():
    out = io.StringIO()
    with shown(Console(file=out, force_terminal=True, width=100)) as watch:
        watch("train-images.gz", 0, None)
        watch("train-images.gz", 5_000_000, 20_000_000)
        watch("train-labels.gz", 10, 10)
    assert "train-images.gz" in out.getvalue() and "train-labels.gz" in out.getvalue()
    assert "5.0/20.0 MB" in out.getvalue()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["digit"], "unknown data set 'digit'; did you mean 'digits'?"),
        (["fetch", "digit"], "unknown data set 'digit'; did you mean 'digits'?"),
        (["fetch", "femnist"], "LEAF's scripts"),
        (["fetch"], "Missing argument 'NAME'"),
        (["import", "mnist"], "Missing argument 'PATH'"),
        (["import", "mnist", "nowhere"], "nowhere: no such file or folder"),
        (["import", "digits", "."], "needs no files"),
        (["mnist", "cifar10"], "unexpected extra argument"),
        (["--nothing"], "No such option"),
    ],
)
def test_mistakes_are_one_line(capfd, words, said):
    assert said in refused(capfd, "data", *words)


def test_help_names_the_commands(capfd):
    out = printed(capfd, "data", "--help")
    assert "fetch" in out and "import" in out and "show" not in out


def test_a_study_on_writers_runs(capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    users = {f"w{i}": {"x": rng.random((12, 784)).tolist(), "y": (np.arange(12) % 3).tolist()} for i in range(4)}
    (tmp_path / "all_data.json").write_text(json.dumps({"user_data": users}))
    printed(capfd, "data", "import", "femnist", "all_data.json")
    study = ["[data]", "name = 'femnist'", "[model]", "name = 'linear'", "[train]", "rounds = 1", "[methods.separate]"]
    (tmp_path / "s.toml").write_text("\n".join(study))
    assert call("run", "s.toml", "--out", "out", "--quiet") == 0
    text = (tmp_path / "out" / "study.toml").read_text()
    assert 'split = "natural"' in text and "min_samples = 10" in text
