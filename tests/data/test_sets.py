import gzip
import io
import struct
import sys
import tracemalloc
import zipfile

import numpy as np
import pytest

from coterie.data import cache, sets
from coterie.data import idx as idx_file
from coterie.data import npz as npz_file
from coterie.data.idx import read_idx
from coterie.data.npz import read_npz
from coterie.errors import BadInput


def idx_bytes(array, shape=None):
    shape = array.shape if shape is None else shape
    return struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape) + array.astype(np.uint8).tobytes()


def write_mnist(folder, zipped=True, train=4, test=2):
    """A tiny MNIST: image i is filled with the number i, labels count up."""
    number = 0
    for stem, n in (("train", train), ("t10k", test)):
        images = np.repeat(np.arange(number, number + n), 28 * 28).reshape(n, 28, 28)
        for kind, array in (("images-idx3", images), ("labels-idx1", np.arange(number, number + n) % 10)):
            data = idx_bytes(array)
            path = folder / f"{stem}-{kind}-ubyte{'.gz' if zipped else ''}"
            path.write_bytes(gzip.compress(data) if zipped else data)
        number += n


def peak(action):
    """Bytes allocated at most while `action` runs."""
    tracemalloc.start()
    action()
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most


def test_digits_come_with_the_package():
    pool = sets.digits()
    assert (pool.x.shape, pool.x.dtype, pool.y.dtype) == ((1797, 1, 8, 8), np.float32, np.int64)
    assert (pool.x.min(), pool.x.max()) == (0, 1)
    assert np.bincount(pool.y).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_digits_without_scikit_learn_say_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(BadInput, match="scikit-learn is not installed"):
        sets.digits()


@pytest.mark.parametrize("zipped", [True, False])
def test_mnist_is_pooled_in_order(tmp_path, zipped):
    write_mnist(tmp_path, zipped)
    assert sets.idx("mnist", str(tmp_path), 10).test.tolist() == [False] * 4 + [True] * 2
    pool = sets.idx("mnist", str(tmp_path), 10)
    assert (pool.x.shape, pool.x.dtype, pool.y.dtype) == ((6, 1, 28, 28), np.float32, np.int64)
    assert pool.y.tolist() == [0, 1, 2, 3, 4, 5]
    assert (pool.x * 255).round().reshape(6, -1).mean(axis=1).tolist() == [0, 1, 2, 3, 4, 5]
    assert pool.owner is None


def test_writers_are_read_when_they_are_there(tmp_path):
    write_mnist(tmp_path)
    np.save(tmp_path / "writer_train.npy", [7, 7, 8, 8])
    np.save(tmp_path / "writer_test.npy", [9, 9])
    assert sets.idx("mnist", str(tmp_path), 10).owner.tolist() == [7, 7, 8, 8, 9, 9]
    np.save(tmp_path / "writer_test.npy", [9, 9, 9])
    with pytest.raises(BadInput, match="7 writers for 6 images"):
        sets.idx("mnist", str(tmp_path), 10)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (lambda: npy(np.zeros(4, int), shape=(1 << 40,)), "claims 8796093022208 bytes"),
        (lambda: npy(np.zeros(4, int))[:-1], "claims 32 bytes of data"),
        (lambda: b"nothing", "damaged or not a NumPy"),
    ],
)
def test_damaged_writers_are_refused(tmp_path, data, message):
    write_mnist(tmp_path)
    (tmp_path / "writer_train.npy").write_bytes(data())
    with pytest.raises(BadInput, match=message):
        sets.idx("mnist", str(tmp_path), 10)


def test_debians_folder_is_found_without_a_path(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "DEBIAN", tmp_path)
    (tmp_path / "fashion-mnist").mkdir()
    write_mnist(tmp_path / "fashion-mnist")
    assert len(sets.idx("fashion-mnist", "", 10)) == 6
    with pytest.raises(BadInput, match="data set mnist: give `path`"):
        sets.idx("mnist", "", 10)


def test_emnist_is_set_upright(tmp_path):
    image = np.arange(784).reshape(1, 28, 28) % 251
    for part in ("train", "test"):
        (tmp_path / f"emnist-byclass-{part}-images-idx3-ubyte").write_bytes(idx_bytes(image))
        (tmp_path / f"emnist-byclass-{part}-labels-idx1-ubyte").write_bytes(idx_bytes(np.array([61])))
    pool = sets.idx("emnist", str(tmp_path), 62, ("emnist-byclass-train", "emnist-byclass-test"))
    np.testing.assert_allclose(pool.x[0, 0] * 255, image[0].T, rtol=1e-6)


def test_a_missing_file_is_named(tmp_path):
    write_mnist(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(BadInput, match=r"neither t10k-labels-idx1-ubyte nor t10k-labels-idx1-ubyte\.gz is there"):
        sets.idx("mnist", str(tmp_path), 10)


def test_files_that_do_not_belong_together_are_refused(tmp_path):
    write_mnist(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx_bytes(np.zeros(3))))
    with pytest.raises(BadInput, match=r"train images \(4, 28, 28\) and labels \(3,\) do not belong together"):
        sets.idx("mnist", str(tmp_path), 10)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (idx_bytes(np.zeros(9), shape=(10,)), "claims 10 bytes of data"),
        (idx_bytes(np.zeros(11), shape=(10,)), "claims 10 bytes of data"),
        (idx_bytes(np.zeros(4), shape=(2**32 - 1,) * 4), "claims 340282366604025813516997721482669850625 bytes"),
        (b"\x00\x00\x08\x03\x00\x00", "ends within its header"),
        (b"\x00\x00\x0d\x01\x00\x00\x00\x01\x00", "not an IDX file of bytes"),
        (b"", "not an IDX file of bytes"),
    ],
)
@pytest.mark.parametrize("zipped", [True, False])
def test_idx_headers_are_not_believed(tmp_path, data, message, zipped):
    path = tmp_path / ("file.gz" if zipped else "file")
    path.write_bytes(gzip.compress(data) if zipped else data)
    with pytest.raises(BadInput, match=message):
        read_idx(path)


@pytest.mark.parametrize("zipped", [True, False])
def test_an_idx_claim_of_half_a_gigabyte_costs_nothing(tmp_path, zipped):
    data = idx_bytes(np.zeros(4), shape=(1 << 29,))
    path = tmp_path / ("file.gz" if zipped else "file")
    path.write_bytes(gzip.compress(data) if zipped else data)

    def read():
        with pytest.raises(BadInput, match="claims 536870912 bytes"):
            read_idx(path)

    assert peak(read) < 8 << 20


def test_a_plain_idx_of_the_wrong_length_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(idx_bytes(np.zeros(9), shape=(5, 2)))
    with pytest.raises(BadInput, match=r"claims 10 bytes of data \(5, 2\), but 9 follow"):
        read_idx(tmp_path / "file")


def test_gzip_that_goes_on_beyond_its_claim_is_not_unpacked(tmp_path):
    path = tmp_path / "file.gz"
    path.write_bytes(gzip.compress(idx_bytes(np.zeros(100), shape=(10,)) + bytes(50 << 20)))

    def read():
        with pytest.raises(BadInput, match=r"claims 10 bytes of data \(10,\), but more follow"):
            read_idx(path)

    assert peak(read) < 8 << 20


@pytest.mark.parametrize("spoil", [lambda z: z[:-12], lambda z: z[:20] + b"\xff" * 8 + z[28:], lambda z: b"no gzip"])
def test_damaged_gzip_is_refused(tmp_path, spoil):
    path = tmp_path / "file.gz"
    path.write_bytes(spoil(gzip.compress(idx_bytes(np.random.default_rng(0).integers(0, 255, 500)))))
    with pytest.raises(BadInput, match="damaged gzip file"):
        read_idx(path)


def test_an_idx_beyond_the_limit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(idx_file, "LARGEST", 99)
    (tmp_path / "file.gz").write_bytes(gzip.compress(idx_bytes(np.zeros(100))))
    with pytest.raises(BadInput, match="claims 100 bytes of data, the limit is 99"):
        read_idx(tmp_path / "file.gz")


def test_an_archive_of_x_and_y(tmp_path):
    x = np.random.default_rng(0).random((5, 3))
    np.savez(tmp_path / "a.npz", x=x, y=[0, 2, 1, 0, 2], coarse=[0, 1, 1, 0, 1], owner=[4, 4, 5, 5, 5])
    pool = sets.npz("mine", str(tmp_path / "a.npz"))
    assert (pool.x.dtype, pool.y.dtype, pool.classes) == (np.float32, np.int64, 3)
    np.testing.assert_allclose(pool.x, x, rtol=1e-6)
    assert pool.coarse.tolist() == [0, 1, 1, 0, 1]
    assert pool.owner.tolist() == [4, 4, 5, 5, 5]


def test_an_archive_of_train_and_test_is_pooled(tmp_path):
    arrays = {"x_train": np.zeros((3, 32, 32, 3), np.uint8), "y_train": [0, 1, 2], "y_train_coarse": [0, 0, 1]}
    arrays |= {"x_test": np.full((2, 32, 32, 3), 255, np.uint8), "y_test": [3, 4], "y_test_coarse": [1, 1]}
    np.savez_compressed(tmp_path / "a.npz", **arrays)
    pool = sets.cifar("cifar10", str(tmp_path / "a.npz"), 10)
    assert pool.x.shape == (5, 3, 32, 32)
    assert pool.x.mean(axis=(1, 2, 3)).tolist() == [0, 0, 0, 1, 1]
    assert pool.y.tolist() == [0, 1, 2, 3, 4]
    assert pool.coarse.tolist() == [0, 0, 1, 1, 1]


def test_the_medmnist_layout_is_found_in_its_folder(tmp_path):
    arrays = {}
    for part, label in (("train", 0), ("val", 5), ("test", 10)):
        arrays |= {f"{part}_images": np.full((2, 28, 28), 51, np.uint8), f"{part}_labels": [[label], [label]]}
    np.savez_compressed(tmp_path / "organamnist.npz", **arrays)
    pool = sets.npz("organamnist", str(tmp_path), 11)
    assert pool.x.shape == (6, 1, 28, 28)
    assert pool.y.tolist() == [0, 0, 5, 5, 10, 10]
    assert pool.classes == 11
    assert pool.x.max() == pytest.approx(0.2)


def test_targets_and_tokens_keep_their_kind(tmp_path):
    np.savez(tmp_path / "targets.npz", x=np.zeros((3, 2)), y=[0.5, 1.5, 2.5])
    targets = sets.npz("mine", str(tmp_path / "targets.npz"))
    assert (targets.classes, targets.y.dtype) == (0, np.float32)
    np.savez(tmp_path / "tokens.npz", x=np.ones((3, 4), np.int32), y=np.full((3, 4), 7))
    tokens = sets.npz("mine", str(tmp_path / "tokens.npz"))
    assert (tokens.classes, tokens.x.dtype, tokens.y.shape) == (8, np.int64, (3, 4))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": [1]}, "found arrays a; name them x and y"),
        ({"x": [[1.0]], "y": [0, 1]}, "1 inputs and 2 labels"),
        ({"x": np.zeros((0, 2)), "y": np.zeros(0, int)}, "0 inputs and 0 labels"),
        ({"x": [[1.0]], "y": [-1]}, "labels run from -1 to -1"),
        ({"x": [[1.0]], "y": ["cat"]}, "labels are <U3; give whole numbers"),
        ({"x": [["cat"]], "y": [1]}, "inputs are <U3; give numbers"),
        ({"x": 1.0, "y": 1}, "cannot be put together"),
        ({"x": [[1.0]], "y": [0], "coarse": [0, 1]}, r"coarse is \(2,\); give one value for each of the 1 samples"),
        ({"x_train": [[1.0]], "y_train": [0], "x_test": [[1.0, 2.0]], "y_test": [0]}, "cannot be put together"),
        ({"x_train": [[1.0]], "y_train": [0], "x_test": np.zeros((1, 1), "M8[s]"), "y_test": [0]}, "one type"),
        ({"x_train": np.zeros((1, 1), "u1"), "y_train": [0], "x_test": [[1.0]], "y_test": [0]}, "one type"),
    ],
)
def test_archives_that_make_no_sense_are_refused(tmp_path, arrays, message):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(BadInput, match=message):
        sets.npz("mine", str(tmp_path / "a.npz"))


def test_labels_beyond_the_sets_classes_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", x=[[1.0]], y=[11])
    with pytest.raises(BadInput, match="labels run from 11 to 11; expected 0 to 10"):
        sets.npz("organamnist", str(tmp_path / "a.npz"), 11)


def npy(array, shape=None):
    """An .npy file, whose header may lie about its shape."""
    file = io.BytesIO()
    header = np.lib.format.header_data_from_array_1_0(array)
    np.lib.format.write_array_header_1_0(file, header if shape is None else header | {"shape": shape})
    return file.getvalue() + array.tobytes()


def write_zip(path, **files):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(f"{name}.npy", data)


@pytest.mark.parametrize("shape", [(1 << 40,), (3,), (5,), (-4,), (-2, -2)])
def test_npz_headers_are_not_believed(tmp_path, shape):
    write_zip(tmp_path / "a.npz", x=npy(np.zeros(4), shape), y=npy(np.zeros(4, int)))

    def read():
        with pytest.raises(BadInput, match=r"x\.npy: its header claims .* but 32 follow"):
            read_npz(tmp_path / "a.npz")

    assert peak(read) < 8 << 20


def test_a_zip_entry_that_claims_too_much_is_refused(tmp_path):
    path = tmp_path / "a.npz"
    write_zip(path, x=npy(np.zeros(4)))
    data = bytearray(path.read_bytes())
    entry = data.index(b"PK\x01\x02")  # the central directory, which readers believe
    data[entry + 24 : entry + 28] = struct.pack("<I", 1 << 31)
    path.write_bytes(data)
    with pytest.raises(BadInput, match=r"x\.npy: claims 2147483648 bytes, more than the file can hold"):
        read_npz(path)


def test_an_archive_beyond_the_limit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(npz_file, "LARGEST", 1000)
    np.savez(tmp_path / "a.npz", x=np.zeros(100), y=np.zeros(100))
    with pytest.raises(BadInput, match="more than the limit of 1000"):
        read_npz(tmp_path / "a.npz")


def test_pickles_are_never_loaded(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.array([{"a": 1}, None], dtype=object), y=[0, 1])
    with pytest.raises(BadInput, match=r"x\.npy: holds Python objects \(pickle\)"):
        read_npz(tmp_path / "a.npz")


@pytest.mark.parametrize("spoil", [lambda z: z[:-30], lambda z: b"", lambda z: z[:90] + b"\xff" * 40 + z[130:]])
def test_damaged_archives_are_refused(tmp_path, spoil):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.random.default_rng(0).random(100), y=np.zeros(100, int))
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(BadInput, match="damaged or not a NumPy"):
        read_npz(path)


def test_an_archive_that_is_not_there_is_named(tmp_path):
    with pytest.raises(BadInput, match=r"none\.npz: cannot be read \(No such file or directory\)"):
        sets.npz("mine", str(tmp_path / "none.npz"))


def test_cifar100_has_fine_and_coarse_labels(tmp_path):
    rows = np.zeros((3, 3074), np.uint8)
    rows[:, 0], rows[:, 1], rows[:, 2:1026] = [4, 5, 6], [40, 50, 60], 255
    rows[:2].tofile(tmp_path / "train.bin")
    rows[2:].tofile(tmp_path / "test.bin")
    pool = sets.cifar("cifar100", str(tmp_path), 100)
    assert pool.y.tolist() == [40, 50, 60]
    assert pool.coarse.tolist() == [4, 5, 6]
    assert pool.x.mean(axis=(0, 2, 3)).tolist() == [1, 0, 0]
    rows[:1].ravel()[:-1].tofile(tmp_path / "test.bin")
    with pytest.raises(BadInput, match=r"test\.bin: 3073 bytes is not a whole number of images"):
        sets.cifar("cifar100", str(tmp_path), 100)


def test_an_archive_says_which_samples_are_for_testing(tmp_path):
    parts = {"train": 4, "val": 2, "test": 3}
    arrays = {f"{part}_images": np.zeros((n, 28, 28), np.uint8) for part, n in parts.items()}
    arrays |= {f"{part}_labels": np.zeros(n, int) for part, n in parts.items()}
    np.savez(tmp_path / "organamnist.npz", **arrays)
    assert sets.npz("organamnist", str(tmp_path), 11).test.tolist() == [False] * 6 + [True] * 3
    np.savez(tmp_path / "one.npz", x=np.zeros((4, 2), np.float32), y=np.zeros(4, int))
    assert sets.npz("npz", str(tmp_path / "one.npz")).test is None
