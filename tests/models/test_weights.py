"""Weights from a file, for any model."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from coterie.engine.rows import Model
from coterie.errors import BadInput
from coterie.models import build
from coterie.models.weights import checksum

TABLE = {"name": "mlp", "hidden": [4]}


def written(folder: Path, outputs: int) -> Path:
    """Weights of the same model for so many classes."""
    torch.manual_seed(0)
    path = folder / "weights.safetensors"
    save_file(build(TABLE, (5,), outputs)[0]().state_dict(), path)
    return path


def test_a_head_of_other_size_is_fresh_and_all_else_is_the_files(tmp_path: Path) -> None:
    path = written(tmp_path, 7)
    blueprint, table = build({**TABLE, "weights": str(path)}, (5,), 3)
    model = Model(blueprint, 3)
    torch.manual_seed(0)
    own = build(TABLE, (5,), 7)[0]().state_dict()
    rows = [model.layout.named(model.start(0, key)) for key in "ab"]
    for row in rows:
        assert torch.equal(row["1.weight"], own["1.weight"])
    assert not torch.equal(rows[0]["3.weight"], rows[1]["3.weight"])
    assert len(table["weights_sha256"]) == 64
    assert build(table, (5,), 3)[1] == table


def test_another_file_under_the_same_name_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, 3)
    _, table = build({**TABLE, "weights": str(path)}, (5,), 3)
    save_file({"other": torch.zeros(1)}, path)
    with pytest.raises(BadInput, match=r"its SHA-256 is .*, expected .*; bring that file"):
        build(table, (5,), 3)[0]()


def test_without_a_fresh_layer_starts_lie_a_little_apart(tmp_path: Path) -> None:
    model = Model(build({**TABLE, "weights": str(written(tmp_path, 3))}, (5,), 3)[0], 3)
    first, second = model.start(0), model.start(0, "component", 1)
    assert not torch.equal(first, second)
    assert float((first - second).norm() / first.norm()) < 0.02


def test_a_missing_file_and_another_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"\[model\] weights .*cannot be read"):
        build({**TABLE, "weights": str(tmp_path / "none.safetensors")}, (5,), 3)
    path = written(tmp_path, 3)
    with pytest.raises(BadInput, match=r"1\.weight is \(4, 5\), expected \(6, 5\)"):
        build({"name": "mlp", "hidden": [6], "weights": str(path)}, (5,), 3)[0]()


def test_a_checksum_goes_by_names_and_numbers() -> None:
    one = {"a": torch.zeros(2), "b": torch.ones(2)}
    assert checksum(one) == checksum(dict(reversed(one.items())))
    assert len({checksum(one), checksum({"a": one["a"]}), checksum({"a": one["b"], "b": one["a"]})}) == 3
    assert checksum({}) == ""
