"""Pictures of several sizes: refused, or brought to one, in training and in prediction."""

import json

import numpy as np
import pytest

import coterie as co
from coterie.commands.models import predict
from coterie.data.own.gather import gather, read_silo
from coterie.data.own.ready import OwnData, load, ready
from coterie.data.own.schema import Schema
from coterie.deploy.own import Raw, SiloSource, read_source
from coterie.errors import BadInput

image = pytest.importorskip("PIL.Image")


def pictures(folder):
    """Two silos; cats are dark above, dogs below, in pictures of every size."""
    rng = np.random.default_rng(0)
    for silo in ("a", "b"):
        for place, name in enumerate(("cat", "dog")):
            (folder / silo / name).mkdir(parents=True)
            for i in range(12):
                height, width = rng.integers(8, 30, 2)
                x = rng.integers(120, 255, (height, width, 3)).astype(np.uint8)
                x[: height // 2] //= 1 + 3 * (place == 0)
                x[height // 2 :] //= 1 + 3 * (place == 1)
                image.fromarray(x).save(folder / silo / name / f"{i}.png")
    return folder


def test_pictures_of_several_sizes_are_refused_with_what_to_do(tmp_path):
    with pytest.raises(BadInput, match=r"the first is .*; bring all to one size, of own silos with --resize 64"):
        gather(pictures(tmp_path), "")


def test_grey_among_coloured_pictures_is_no_other_size(tmp_path):
    for place, mode in enumerate(("RGB", "L")):
        (folder := tmp_path / "a" / "cat").mkdir(parents=True, exist_ok=True)
        image.new(mode, (8, 8)).save(folder / f"{place}.png")
    with pytest.raises(BadInput, match=r"is \(8, 8, 1\), the first is \(8, 8, 3\); save all in grey"):
        gather(tmp_path, "")


def test_pictures_are_brought_to_one_size_that_the_schema_keeps(tmp_path):
    data = load(OwnData(path=str(pictures(tmp_path)), resize=16), 0)
    schema = data.schemas["a"]
    assert data.silos[0].train.x.shape[1:] == schema.shape == (3, 16, 16) and schema.resize == 16
    dark = data.silos[0].train.x[:, :, :7].mean((1, 2, 3)) < data.silos[0].train.x[:, :, 9:].mean((1, 2, 3))
    assert (dark == (data.silos[0].train.y == 0)).all()  # a cat is dark above, at any size
    assert Schema.read(schema.as_table(), "x") == schema
    for wrong in ({"resize": 8}, {"resize": -1}, {"resize": 10**9}, {"shape": [3, 16, 15]}):
        with pytest.raises(BadInput):
            Schema.read(schema.as_table() | wrong, "x")


def test_pictures_of_the_right_size_are_the_same_and_tables_have_none(tmp_path):
    for place in range(12):
        (tmp_path / "a" / f"{place % 2}").mkdir(parents=True, exist_ok=True)
        image.new("RGB", (8, 8), (10 * place, 0, 0)).save(tmp_path / "a" / f"{place % 2}" / f"{place}.png")
    plain, resized = read_silo(tmp_path / "a", ""), read_silo(tmp_path / "a", "", resize=8)
    assert np.array_equal(plain.x, resized.x)
    assert ready([plain], OwnData(), 0).schemas["a"].resize == 0


def test_prediction_resizes_as_training_did(tmp_path, capsys):
    folder = pictures(tmp_path / "silos")
    fed = co.Federation(co.silos(folder, resize=8), model="linear", rows="all")
    result = fed.train("fedavg", rounds=10, lr=0.3, quiet=True)
    result.save(tmp_path / "out")
    predict(tmp_path / "out" / "models" / "fedavg" / "a.safetensors", folder / "a", None, None)
    lines = [line.split(",") for line in capsys.readouterr().out.splitlines()[1:]]
    right = [line[0].startswith(line[1]) for line in lines]
    assert len(right) == 24 and np.mean(right) > 0.9


def test_a_deployed_silo_resizes_too(tmp_path):
    folder = pictures(tmp_path)
    source = {"path": str(folder / "a"), "label": "", "drop": [], "task": "auto", "device": "cpu", "resize": 16}
    raw = Raw("a", read_source(json.dumps(source))[0])
    silo, schema = raw.encoded(Schema("", ("cat", "dog"), shape=(3, 16, 16)))
    assert silo.train.x.shape[1:] == (3, 16, 16) and schema.resize == 16
    assert read_source(json.dumps({**source, "resize": 0}))[0] == SiloSource(folder / "a")
