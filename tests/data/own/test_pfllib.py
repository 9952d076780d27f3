"""PFLlib's folders as silos, without unpickling."""

import io
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

import coterie as co
from coterie.data.own.gather import gather
from coterie.data.own.ready import OwnData, ready
from coterie.data.own.sides import TEST, TRAIN
from coterie.errors import BadInput


def made(folder: Path, clients: int = 3, shape: tuple[int, ...] = (1, 4, 4)) -> Path:
    """What PFLlib writes."""
    rng = np.random.default_rng(0)
    for part, count in (("train", 30), ("test", 10)):
        (folder / part).mkdir(parents=True)
        for client in range(clients):
            x, y = rng.normal(size=(count + client, *shape)).astype(np.float32), rng.integers(0, 4, count + client)
            with (folder / part / f"{client}.npz").open("wb") as file:
                np.savez_compressed(file, data={"x": x, "y": y})
    (folder / "config.json").write_text('{"num_clients": 3}')
    return folder


def archive(path: Path, body: bytes) -> None:
    """An archive as NumPy writes one object, with another pickle in it."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "|O", "fortran_order": False, "shape": ()})
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("data.npy", head.getvalue() + body)


def test_every_client_is_a_silo_with_its_own_split(tmp_path: Path) -> None:
    folder = made(tmp_path / "MNIST")
    found = gather(folder, "")
    assert [holding.name for holding in found] == ["client-0", "client-1", "client-2"]
    one = found[1]
    with np.load(folder / "test" / "1.npz", allow_pickle=True) as theirs:
        own = theirs["data"].item()
    assert one.x.dtype == np.float32 and np.array_equal(one.x[one.sides == TEST], own["x"])
    assert np.array_equal(one.y[one.sides == TEST], own["y"]) and (one.sides == TRAIN).sum() == 31


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_whatever_pickle_numpy_wrote_is_read(tmp_path: Path, protocol: int) -> None:
    folder = made(tmp_path / "MNIST", 1)
    x, y = np.arange(24.0).reshape(3, 2, 4), np.array([0, 1, 1])
    whole = np.empty((), object)
    whole[()] = {"x": np.asfortranarray(x), "y": y}
    for part in ("train", "test"):
        archive(folder / part / "0.npz", pickle.dumps(whole, protocol))
    (one,) = gather(folder, "")
    assert np.array_equal(one.x, np.concatenate([x, x])) and list(one.y) == [0, 1, 1, 0, 1, 1]


def test_python_trains_on_such_a_folder(tmp_path: Path) -> None:
    federation = co.Federation(co.silos(made(tmp_path / "MNIST")), model="linear", seeds=[0])
    assert list(federation.table()["test"]) == [10, 11, 12]
    assert list(federation.table()["validation"]) == [6, 6, 6] and list(federation.table()["train"]) == [24, 25, 26]
    assert federation.train("fedavg", rounds=1, lr=0.1, quiet=True).table().shape[0] == 3


def test_a_fifth_of_the_rows_to_train_validates_and_a_small_client_is_refused(tmp_path: Path) -> None:
    holdings = gather(made(tmp_path / "MNIST"), "")
    own = ready(holdings, OwnData(), 0).silos[1]
    assert [len(own.train), len(own.validation), len(own.test)] == [25, 6, 11]
    assert sorted([*own.train.rows, *own.validation.rows]) == [*range(31)]  # those to test stay as PFLlib has them
    assert len(ready(holdings, OwnData(validation=0.0), 0).silos[1].validation) == 0
    with pytest.raises(BadInput, match="silo 'client-2': has 9 rows with a label; 10 or more are needed"):
        ready([*holdings[:2], holdings[2].take(np.r_[:5, 40:44])], OwnData(), 0)
    with pytest.raises(BadInput, match="silo 'client-2': no row is for test"):
        ready([*holdings[:2], holdings[2].take(np.arange(20))], OwnData(), 0)


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch broken-into",)


def test_a_pickle_that_would_run_something_is_refused_and_runs_nothing(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = made(tmp_path / "MNIST", 1)
    archive(folder / "train" / "0.npz", pickle.dumps({"x": Evil(), "y": 1}, 4))
    with pytest.raises(BadInput, match=r"train/0\.npz: damaged or not of PFLlib \(it names '\w+\.system'"):
        gather(folder, "")
    assert not Path("broken-into").exists()


def test_what_cannot_be_clients_is_named(tmp_path: Path) -> None:
    folder = made(tmp_path / "MNIST", 2)
    (folder / "test" / "1.npz").unlink()
    with pytest.raises(BadInput, match="client 1 is in train or in test alone"):
        gather(folder, "")
    texts = np.empty((), object)
    texts[()] = {"x": [("some", 1)], "y": np.zeros(1)}
    (folder / "train" / "1.npz").unlink()
    archive(folder / "train" / "0.npz", pickle.dumps(texts, 4))
    with pytest.raises(BadInput, match=r"train/0\.npz: damaged or not of PFLlib \(a list where a Call belongs\)"):
        gather(folder, "")
    for damaged in (b"\x80\x04h\x05.", b"\x80\x04)."):  # what it refers to is not there; it holds nothing
        archive(folder / "train" / "0.npz", damaged)
        with pytest.raises(BadInput, match=r"train/0\.npz: damaged or not of PFLlib"):
            gather(folder, "")
    (folder / "train" / "0.npz").write_bytes(b"no archive")
    with pytest.raises(BadInput, match=r"train/0\.npz: damaged or not of PFLlib"):
        gather(folder, "")
