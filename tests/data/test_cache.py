import sys
from pathlib import Path

import pytest

from coterie.data import cache, sets
from coterie.data.catalog import ALIASES, CATALOG
from coterie.data.sources import BY_HAND, FORMS, SOURCES, UNPACKED
from coterie.errors import BadInput


def test_the_folder_can_be_named(monkeypatch):
    monkeypatch.setenv("COTERIE_DATA", "~/sets")
    assert cache.folder("mnist") == Path.home() / "sets" / "mnist"


@pytest.mark.parametrize(
    ("platform", "variable", "value", "folder"),
    [
        ("linux", "XDG_CACHE_HOME", "/caches", "/caches/coterie"),
        ("linux", "XDG_CACHE_HOME", "", "~/.cache/coterie"),
        ("darwin", "XDG_CACHE_HOME", "/caches", "~/Library/Caches/coterie"),
        ("win32", "LOCALAPPDATA", "/local", "/local/coterie"),
    ],
)
def test_without_a_name_it_is_the_platforms(monkeypatch, platform, variable, value, folder):
    monkeypatch.delenv("COTERIE_DATA")
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setenv(variable, value)
    assert cache.root() == Path(folder).expanduser()


def test_a_set_is_at_hand_when_all_its_files_are(own_cache):
    folder = own_cache / "cifar100"
    folder.mkdir()
    (folder / "train.bin").touch()
    assert cache.place("cifar100") is None
    (folder / "test.bin.gz").touch()
    assert cache.place("cifar100") == folder


def test_a_pictures_archive_will_do(own_cache):
    (own_cache / "mnist").mkdir()
    (own_cache / "mnist" / "mnist.npz").touch()
    assert cache.place("mnist") == own_cache / "mnist"


def test_what_has_no_files_is_nowhere():
    assert cache.place("digits") is None


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("mnist", "or run `coterie data fetch mnist`, or `coterie data import mnist PATH`"),
        ("femnist", "where its files are, or `coterie data import femnist PATH`"),
        ("femnist", "or put femnist.npz into .*femnist$"),
        ("emnist", "or put emnist-byclass-train-images-idx3-ubyte, .*-test-labels-idx1-ubyte into .*emnist$"),
        ("npz", "data set npz: give `path`, where its files are$"),
    ],
)
def test_a_missing_set_says_how_to_get_it(name, advice):
    with pytest.raises(BadInput, match=advice):
        sets.npz(name, "")


def test_the_tables_speak_of_the_catalogs_sets():
    assert {*SOURCES, *BY_HAND, "npz"} == FORMS.keys() <= CATALOG.keys()
    assert UNPACKED.keys() <= FORMS.keys() and {*ALIASES.values()} <= CATALOG.keys()
    for name, files in SOURCES.items():
        for file in files:
            kind, _, digest = file.checksum.partition(":")
            assert len(digest) == {"md5": 32, "sha256": 64}[kind] and int(digest, 16)
            assert all(url.startswith(("http://", "https://")) for url in file.urls)
        if not any(file.archive for file in files):  # then these are the very files a loader looks for
            assert {file.name.removesuffix(".gz") for file in files} == {*FORMS[name][0]}
