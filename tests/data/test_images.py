"""Folders and tars of pictures. Pillow is optional, so a stand-in for it reads the tests' pictures."""

import io
import sys
import tarfile
import types

import numpy as np
import pytest

from coterie.data import catalog
from coterie.data.importing import import_set
from coterie.errors import BadInput


class Picture:
    """A picture of one colour: height, width, channels and value as four bytes."""

    def __init__(self, data):
        if len(data) != 4:
            raise OSError("cannot identify image file")
        self.height, self.width, self.channels, self.value = data

    def __enter__(self):
        return self

    def __exit__(self, *about):
        pass

    def getbands(self):
        return ("R", "G", "B")[: self.channels]

    def convert(self, kind):
        shape = (self.height, self.width) + ((3,) if kind == "RGB" else ())
        return np.full(shape, self.value, np.uint8)


@pytest.fixture
def pillow(monkeypatch):
    image = types.ModuleType("PIL.Image")
    image.open = lambda file, formats: Picture(file.read())
    image.DecompressionBombError = type("DecompressionBombError", (Exception,), {})
    monkeypatch.setitem(sys.modules, "PIL", types.ModuleType("PIL"))
    monkeypatch.setitem(sys.modules, "PIL.Image", image)


def picture(value, height=28, width=28, channels=1):
    return bytes([height, width, channels, value])


def write(folder, files):
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def values(pool):
    return (pool.x * 255).round().max(axis=(1, 2, 3)).tolist()


FOLDERS = {
    "test/cat/1.png": picture(10), "train/dog/b.png": picture(20), "train/cat/9.PNG": picture(30),
    "train/dog/a.jpg": picture(40), "train/notes.txt": b"nothing",
}  # fmt: skip


def test_a_folder_for_each_class(pillow, tmp_path):
    import_set("npz", write(tmp_path, FOLDERS))
    pool = catalog.read("npz", {})
    assert pool.x.shape == (4, 1, 28, 28)
    assert (values(pool), pool.y.tolist()) == ([30, 40, 20, 10], [0, 1, 1, 0])


@pytest.mark.parametrize("order", [1, -1])
def test_a_tar_in_any_order_gives_the_same(pillow, tmp_path, order):
    with tarfile.open(tmp_path / "in.tar.gz", "w:gz") as tar:
        for name, data in [*FOLDERS.items()][::order]:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    import_set("npz", tmp_path / "in.tar.gz")
    pool = catalog.read("npz", {})
    assert (values(pool), pool.y.tolist()) == ([30, 40, 20, 10], [0, 1, 1, 0])


def test_folders_may_be_numbers(pillow, tmp_path):
    import_set("mnist", write(tmp_path, {"9/a.png": picture(1), "2/a.png": picture(2)}))
    assert catalog.read("mnist", {}).y.tolist() == [2, 9]


def test_a_sets_own_channels_are_made(pillow, tmp_path):
    import_set("cifar10", write(tmp_path, {"frog/a.png": picture(7, 32, 32)}))
    assert catalog.read("cifar10", {}).x.shape == (1, 3, 32, 32)


def test_a_table_of_labels(pillow, tmp_path):
    table = b"file,label,coarse,owner\nb.png,5,1,ann\nsub/a.png,3,0,bob\n"
    write(tmp_path, {"labels.csv": table, "b.png": picture(1), "sub/a.png": picture(2), "c.png": picture(3)})
    import_set("npz", tmp_path)
    pool = catalog.read("npz", {})
    assert (values(pool), pool.y.tolist(), pool.coarse.tolist()) == ([1, 2], [5, 3], [1, 0])
    assert pool.owner.tolist() == ["ann", "bob"]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"a.png": picture(1)}, r"a\.png has no label; put it into a folder of its class, or write a labels\.csv"),
        ({"0/a.png": picture(1), "0/b.png": picture(1, 32)}, r"0/b\.png: is \(32, 28, 1\), the first is \(28, 28, 1\)"),
        ({"0/a.png": b"no"}, r"0/a\.png: not a picture \(cannot identify image file\)"),
        ({"labels.csv": b"file,label\nb.png,1\n", "a.png": picture(1)}, r"line 2: b\.png is not there"),
        ({"labels.csv": b"file,label\na.png\n", "a.png": picture(1)}, "line 2: not as many values as columns"),
        ({"labels.csv": b"name,label\na.png,1\n", "a.png": picture(1)}, "name two of them file and label"),
        ({"labels.csv": b"file,label\n", "a.png": picture(1)}, "lists no pictures"),
        ({"labels.csv": b"\xff\xfe", "a.png": picture(1)}, "not a table in UTF-8"),
        ({"labels.csv": b"", "b/labels.csv": b"", "a.png": picture(1)}, r"holds 2 files labels\.csv"),
        ({"0/a.png": picture(1, 32, 32)}, r"samples are \(1, 32, 32\), expected \(1, 28, 28\)"),
        ({"10/a.png": picture(1)}, "labels run from 10 to 10; expected 0 to 9"),
    ],
)
def test_pictures_that_make_no_set_are_refused(pillow, tmp_path, own_cache, files, said):
    with pytest.raises(BadInput, match=said):
        import_set("mnist", write(tmp_path, files))
    assert list(own_cache.iterdir()) == []


def test_without_pillow_it_says_so(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(BadInput, match="pictures need Pillow, which is not installed; run `pip install pillow`"):
        import_set("mnist", write(tmp_path, FOLDERS))
