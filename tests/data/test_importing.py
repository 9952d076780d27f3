"""Files on disk become a set in the cache: as published, in archives, or as arrays; and nothing else does."""

import gzip
import hashlib
import io
import json
import pickle
import struct
import tarfile
import zipfile

import numpy as np
import pytest

from coterie.data import catalog, importing
from coterie.data.importing import import_set
from coterie.data.sources import SOURCES, UNPACKED, File
from coterie.errors import BadInput


def idx(array):
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def mnist(stems=("train", "t10k"), labels=(3, 7)):
    """The four official files, unpacked: one image each for train and test."""
    made = {}
    for stem, label in zip(stems, labels, strict=True):
        made[f"{stem}-images-idx3-ubyte"] = idx(np.full((1, 28, 28), 51))
        made[f"{stem}-labels-idx1-ubyte"] = idx(np.array([label]))
    return made


def write(folder, files):
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def tarred(path, files, mode="w:gz"):
    with tarfile.open(path, mode) as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return path


def zipped(path, files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def cached(own_cache, name):
    return sorted(path.name for path in (own_cache / name).iterdir())


@pytest.mark.parametrize("packed", [True, False])
def test_official_files_of_a_folder(tmp_path, own_cache, packed):
    files = {f"{n}.gz": gzip.compress(d) for n, d in mnist().items()} if packed else mnist()
    made = import_set("mnist", write(tmp_path, {**files, "readme.txt": b"hello"}))
    assert (made.folder, made.samples, made.verified) == (own_cache / "mnist", 2, False)
    assert cached(own_cache, "mnist") == sorted(files)
    assert catalog.read("mnist", {}).y.tolist() == [3, 7]


def test_writers_come_along(tmp_path, own_cache):
    np.save(tmp_path / "writer_train.npy", [5])
    np.save(tmp_path / "writer_test.npy", [6])
    import_set("mnist", write(tmp_path, mnist()))
    assert catalog.read("mnist", {}).owner.tolist() == [5, 6]


def test_an_official_zip_holds_more_than_is_wanted(tmp_path, own_cache):
    by_class = mnist(("emnist-byclass-train", "emnist-byclass-test"), (61, 10))
    digits = mnist(("emnist-digits-train", "emnist-digits-test"))
    files = {f"gzip/{n}.gz": gzip.compress(d) for n, d in (digits | by_class).items()}
    import_set("emnist", zipped(tmp_path / "gzip.zip", files))
    assert cached(own_cache, "emnist") == sorted(f"{n}.gz" for n in by_class)
    assert catalog.read("emnist", {}).y.tolist() == [61, 10]


def cifar100():
    rows = np.zeros((2, 3074), np.uint8)
    rows[:, 0], rows[:, 1] = [1, 2], [11, 12]
    return {f"cifar-100-binary/{name}.bin": row.tobytes() for name, row in zip(("train", "test"), rows, strict=True)}


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
def test_an_official_tar_is_read_without_unpacking_it(tmp_path, own_cache, mode):
    path = tmp_path / f"in.tar{mode[1:].replace(':', '.')}"
    evil = {"../evil.bin": b"", "/tmp/evil-coterie.bin": b"", "cifar-100-binary/fine_label_names.txt": b"apple"}
    import_set("cifar100", tarred(path, cifar100() | evil, mode))
    assert cached(own_cache, "cifar100") == ["test.bin", "train.bin"]
    pool = catalog.read("cifar100", {})
    assert (pool.y.tolist(), pool.coarse.tolist()) == ([11, 12], [1, 2])


def test_a_link_in_a_tar_is_not_followed(tmp_path, own_cache):
    secret = write(tmp_path, {"secret": cifar100()["cifar-100-binary/train.bin"]}) / "secret"
    with tarfile.open(tmp_path / "in.tar", "w") as tar:
        link = tarfile.TarInfo("train.bin")
        link.type, link.linkname = tarfile.SYMTYPE, str(secret)
        tar.addfile(link)
        entry = tarfile.TarInfo("test.bin")
        entry.size = 3074
        tar.addfile(entry, io.BytesIO(bytes(3074)))
    with pytest.raises(BadInput, match=r"nothing of cifar100 is there; expected train\.bin and test\.bin"):
        import_set("cifar100", tmp_path / "in.tar")


def test_checksums_know_the_published_files(tmp_path, monkeypatch):
    files = mnist()
    sums = {name: f"md5:{hashlib.md5(data).hexdigest()}" for name, data in files.items()}
    monkeypatch.setitem(UNPACKED, "mnist", sums)
    packed_anew = {f"{n}.gz": gzip.compress(d, mtime=1) for n, d in files.items()}
    assert import_set("mnist", write(tmp_path / "a", files)).verified
    assert import_set("mnist", write(tmp_path / "b", packed_anew)).verified
    assert not import_set("mnist", write(tmp_path / "c", mnist(labels=(3, 8)))).verified


def test_checksums_know_the_published_archive(tmp_path, monkeypatch):
    path = tarred(tmp_path / "official.tar.gz", cifar100())
    right = f"md5:{hashlib.md5(path.read_bytes()).hexdigest()}"
    for checksum, expected in ((right, True), ("md5:0", False)):
        monkeypatch.setitem(SOURCES, "cifar100", (File(path.name, (), checksum, archive=True),))
        assert import_set("cifar100", path).verified is expected


def medmnist():
    arrays = {}
    for part in ("train", "val", "test"):
        arrays |= {f"{part}_images": np.zeros((2, 28, 28), np.uint8), f"{part}_labels": [[1], [2]]}
    return arrays


@pytest.mark.parametrize("whole_folder", [True, False])
def test_an_archive_of_arrays_under_any_name(tmp_path, own_cache, whole_folder):
    np.savez_compressed(tmp_path / "downloaded (1).npz", **medmnist())
    import_set("organamnist", tmp_path if whole_folder else tmp_path / "downloaded (1).npz")
    assert cached(own_cache, "organamnist") == ["organamnist.npz"]
    assert len(catalog.read("organamnist", {})) == 6


def test_arrays_will_do_where_official_files_are_others(tmp_path, own_cache):
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 28, 28), np.uint8), y=[0, 1, 2, 3])
    import_set("fashion-mnist", tmp_path / "a.npz")
    assert catalog.read("fmnist", {}).y.tolist() == [0, 1, 2, 3]


def test_a_text_under_any_name(tmp_path, own_cache):
    (tmp_path / "input.txt").write_text("ROMEO:\n" + "a" * 100)
    assert import_set("shakespeare", tmp_path / "input.txt").samples == 20
    assert cached(own_cache, "shakespeare") == ["shakespeare.txt"]


def leaf(**users):
    data = {user: {"x": [[0.2] * 784] * len(labels), "y": labels} for user, labels in users.items()}
    return json.dumps({"users": list(users), "num_samples": [1] * len(users), "user_data": data}).encode()


def test_leafs_files_become_an_archive_by_writer(tmp_path, own_cache):
    write(tmp_path, {"train/all_data_0.json": leaf(f0=[4, 61], f1=[7]), "test/all_data_0.json": leaf(f0=[9])})
    import_set("femnist", tmp_path)
    pool = catalog.read("femnist", {})
    assert pool.y.tolist() == [9, 4, 61, 7]
    assert pool.owner.tolist() == ["f0", "f0", "f0", "f1"]
    assert pool.x.shape == (4, 1, 28, 28) and pool.x.max() == pytest.approx(0.2)


def test_an_import_replaces_what_was_there(tmp_path, own_cache):
    import_set("mnist", write(tmp_path / "a", mnist()))
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 28, 28), np.uint8), y=[0, 1, 2, 3])
    import_set("mnist", tmp_path / "a.npz")
    assert cached(own_cache, "mnist") == ["mnist.npz"]
    assert [path.name for path in own_cache.iterdir()] == ["mnist"]


@pytest.mark.parametrize(
    ("name", "files", "said"),
    [
        ("mnist", {**mnist(), "t10k-labels-idx1-ubyte": idx(np.array([1, 2]))}, "do not belong together"),
        ("mnist", {**mnist(), "t10k-labels-idx1-ubyte": idx(np.array([10]))}, "expected 0 to 9"),
        ("cifar100", {"train.bin": bytes(3074), "test.bin": bytes(3073)}, "not a whole number of images"),
        ("mnist", {"train-images-idx3-ubyte": b""}, "nothing of mnist is there; expected train-images-idx3-ubyte and"),
        ("cifar10", {"py/data_batch_1": pickle.dumps({})}, "is pickles and never loaded; get the binary version"),
        ("mnist", {f"{d}/{n}": b for d in "ab" for n, b in mnist().items()}, "holds a/train-images-idx3-ubyte and b/"),
        ("shakespeare", {"a.txt": b"no roles"}, "no speeches"),
        ("femnist", {"a.json": b"{"}, "not a file of LEAF's"),
    ],
)
def test_what_makes_no_sense_leaves_the_cache_as_it_was(tmp_path, own_cache, name, files, said):
    with pytest.raises(BadInput, match=said):
        import_set(name, write(tmp_path / "in", files))
    assert list(own_cache.iterdir()) == []


def test_the_old_set_survives_a_failed_import(tmp_path, own_cache):
    import_set("mnist", write(tmp_path / "a", mnist()))
    with pytest.raises(BadInput):
        import_set("mnist", write(tmp_path / "b", {**mnist(), "t10k-labels-idx1-ubyte": idx(np.array([10]))}))
    assert catalog.read("mnist", {}).y.tolist() == [3, 7]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda data: data[:-40], "damaged or not an archive"),
        (lambda data: b"no archive", "damaged or not an archive"),
        (lambda data: data[:60] + b"\xff" * 30 + data[90:], "damaged or not an archive|cannot be read"),
    ],
)
def test_a_damaged_archive_is_refused(tmp_path, own_cache, spoil, said):
    rows = np.random.default_rng(0).integers(0, 20, (2, 3074), np.uint8)
    path = tarred(tmp_path / "in.tar.gz", {"train.bin": rows[0].tobytes(), "test.bin": rows[1].tobytes()})
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(BadInput, match=said):
        import_set("cifar100", path)
    assert list(own_cache.iterdir()) == []


def test_a_member_beyond_the_limit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(importing, "LARGEST", 3000)
    with pytest.raises(BadInput, match=r"train\.bin: claims 3074 bytes, more than the limit of 3000"):
        import_set("cifar100", tarred(tmp_path / "in.tar", cifar100(), "w"))


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(BadInput, match="none: no such file or folder; check the path"):
        import_set("mnist", tmp_path / "none")


@pytest.mark.parametrize("name", ["digits", "synthetic"])
def test_what_needs_no_files_takes_none(tmp_path, name):
    with pytest.raises(BadInput, match="needs no files"):
        import_set(name, tmp_path)


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "file"))
    with pytest.raises(BadInput, match="name a folder that can be written in COTERIE_DATA"):
        import_set("mnist", write(tmp_path / "in", mnist()))
