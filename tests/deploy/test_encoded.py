"""A silo reads and encodes its data once, and not for every message."""

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from loop import NAMES, Loop, settle
from test_drive import federated
from test_tables import TABLE, patients, settled

from coterie.data.own.agree import agree
from coterie.data.silo import Silo
from coterie.deploy import encoded, own
from coterie.deploy.encoded import FILE, encoded_silo
from coterie.deploy.own import Raw, SiloSource


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each silo's file was read."""
    found = Counter[str]()

    def counted(read: Callable) -> Callable:
        def reader(path: Path, *given: object) -> object:
            found[path.parent.name] += 1
            return read(path, *given)

        return reader

    for reader in ("read_silo", "read_npz"):
        monkeypatch.setattr(own, reader, counted(getattr(own, reader)))
    return found


def arrays(silo: Silo) -> list[np.ndarray]:
    return [a for part in (silo.train, silo.validation, silo.test) for a in (part.x, part.y)]


def same(one: Silo, other: Silo) -> bool:
    return all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in zip(arrays(one), arrays(other), strict=True))


def table(folder: Path) -> tuple[SiloSource, dict]:
    """A silo's table, and what it agreed on with others."""
    (folder / "north").mkdir()
    path = folder / "north" / "patients.csv"
    patients(0).to_csv(path, index=False)
    source = SiloSource(path, "outcome", ("id",))
    return source, agree({"north": Raw("north", source).statistics()}, "label", "auto")[0].as_table()


def test_a_table_is_encoded_for_the_first_message_only(tmp_path: Path, reads: Counter[str]) -> None:
    federated(tmp_path / "run", Loop(settled(tmp_path)), TABLE).run("")
    assert reads == dict.fromkeys(NAMES, 3)  # declared, described, encoded


def test_an_archive_is_read_for_the_first_message_only(tmp_path: Path, reads: Counter[str]) -> None:
    federated(tmp_path / "run", Loop(settle(tmp_path)), TABLE).run("")
    assert reads == dict.fromkeys(NAMES, 2)  # declared, taken


def test_what_is_kept_is_what_was_read(tmp_path: Path, reads: Counter[str]) -> None:
    source, agreed = table(tmp_path)
    fresh, kept = (encoded_silo(tmp_path, "north", source, agreed) for _ in range(2))
    assert reads["north"] == 2 and same(fresh.silo, kept.silo)
    assert fresh.schema == kept.schema is not None and fresh.classes == kept.classes == 2


@pytest.mark.parametrize("change", ["file", "touched", "drop", "schema", "standardize", "name", "version"])
def test_what_has_changed_is_read_again(
    change: str, tmp_path: Path, reads: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, agreed = table(tmp_path)
    before, name = encoded_silo(tmp_path, "north", source, agreed), "north"
    if change == "file":
        patients(0).assign(age=41.0).to_csv(source.path, index=False)
    elif change == "touched":
        os.utime(source.path, ns=(1, 1))
    elif change == "drop":
        source = replace(source, drop=("id", "ward"))
        agreed = agree({"north": Raw("north", source).statistics()}, "label", "auto")[0].as_table()
        reads["north"] -= 1
    elif change == "schema":
        agreed = agreed | {"classes": ["ill", "well", "worse"]}
    elif change == "standardize":
        source = replace(source, standardize=True)
    elif change == "name":
        name = "south"
    else:
        monkeypatch.setattr(encoded, "build", lambda: "another")
    after = encoded_silo(tmp_path, name, source, agreed)
    assert reads["north"] == 3
    assert not (change in ("file", "drop", "name") and same(before.silo, after.silo))


@pytest.mark.parametrize("harm", ["bit", "cut", "empty", "schema", "gone"])
def test_what_was_altered_is_not_believed(harm: str, tmp_path: Path, reads: Counter[str]) -> None:
    source, agreed = table(tmp_path)
    before, path = encoded_silo(tmp_path, "north", source, agreed), tmp_path / FILE
    content = path.read_bytes()
    if harm == "bit":
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif harm == "cut":
        path.write_bytes(content[:-10])
    elif harm == "empty":
        path.write_bytes(b"")
    elif harm == "schema":
        assert content.count(b"well") == 1
        path.write_bytes(content.replace(b"well", b"hale"))
    else:
        path.unlink()
    for _ in range(2):
        after = encoded_silo(tmp_path, "north", source, agreed)
        assert same(before.silo, after.silo) and before.schema == after.schema
    assert reads["north"] == 3


def test_a_folder_of_tables_is_known_by_every_file(tmp_path: Path, reads: Counter[str]) -> None:
    source, agreed = table(tmp_path)
    source = SiloSource(source.path.parent, "outcome", ("id",))
    before = encoded_silo(tmp_path, "north", source, agreed)
    patients(0, 20).to_csv(source.path / "more.csv", index=False)
    assert len(encoded_silo(tmp_path, "north", source, agreed).silo.train) > len(before.silo.train)


def test_a_full_disk_costs_time_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    source, agreed = table(tmp_path)
    monkeypatch.setattr(encoded, "write_whole", full)
    assert len(encoded_silo(tmp_path, "north", source, agreed).silo.train)


@pytest.mark.parametrize("incumbent", ["today", "trees"])
def test_what_a_silo_uses_today_is_kept_with_its_encoded_rows(tmp_path: Path, incumbent: str) -> None:
    path = tmp_path / "north.csv"
    draw = np.random.default_rng(0)
    x = draw.normal(size=60)
    table = pd.DataFrame({"x": x, "today": np.where(x > 0, 0.9, 0.2), "ill": np.where(x > 0.1, "yes", "no")})
    table.to_csv(path, index=False)
    source = SiloSource(path, label="ill", drop=() if incumbent == "today" else ("today",), incumbent=incumbent)
    raw = Raw("north", source)
    schema, _ = agree({"north": raw.statistics()}, "ill", "auto")
    first, again = (encoded_silo(tmp_path, "north", source, schema.as_table()).silo for _ in range(2))
    for silo in (first, again):
        assert silo.validation.x.shape[1] == first.validation.x.shape[1] and silo.validation.incumbent.shape[1] == 2
        np.testing.assert_array_equal(silo.validation.incumbent, first.validation.incumbent)
        assert (silo.trees is None) == (incumbent == "today")
        assert (silo.validation.incumbent.argmax(1) == silo.validation.y).mean() > 0.7


def test_another_file_of_the_model_of_today_is_asked_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, agreed = table(tmp_path)
    source = replace(source, incumbent=str(tmp_path / "{silo}.onnx"))
    monkeypatch.setattr("coterie.data.own.incumbent.by_onnx", lambda path, x, classes: ("p", asked(path, len(x))))

    def asked(path: Path, rows: int) -> np.ndarray:
        return np.tile([float(path.read_text()), 1 - float(path.read_text())], (rows, 1))

    for share in ("0.25", "0.8"):
        (tmp_path / "north.onnx").write_text(share)
        os.utime(tmp_path / "north.onnx", ns=(int(float(share) * 100), 1 + int(float(share) * 100)))
        for _ in range(2):
            found = encoded_silo(tmp_path, "north", source, agreed).silo.test.incumbent
            assert found is not None and found[:, 0] == pytest.approx(float(share), abs=1e-3)
