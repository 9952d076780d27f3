import tomllib

import numpy as np
import pytest

from coterie.data import catalog
from coterie.data.catalog import CATALOG, load, resolved
from coterie.data.sets import digits
from coterie.data.silo import Pool
from coterie.data.splits import SPLITS
from coterie.errors import BadInput
from coterie.options import parse


def same(a, b):
    return len(a.silos) == len(b.silos) and all(
        np.array_equal(getattr(one, part).x, getattr(two, part).x)
        and np.array_equal(getattr(one, part).y, getattr(two, part).y)
        for one, two in zip(a.silos, b.silos, strict=True)
        for part in ("train", "validation", "test")
    )


def test_the_default_is_digits_in_five_groups():
    data = load("digits", {}, 0)
    assert (data.classes, data.name) == (10, "digits")
    assert data.groups == [g for g in range(5) for _ in range(4)]
    assert [len(s.train) for s in data.silos] == [n for n in (40, 35, 30, 25, 20) for _ in range(4)]
    assert [len(s.test) for s in data.silos] == [30] * 20
    for silo, group in zip(data.silos, data.groups, strict=True):
        for part in (silo.train, silo.test):
            own = np.isin(part.y, [2 * group, 2 * group + 1])
            assert own.mean() == pytest.approx(0.8)
    assert resolved("digits", {})["dominating"] == "even"


@pytest.mark.parametrize("seed", range(20))
def test_the_default_fits_digits_with_its_validation(seed):
    data = load("digits", {}, seed)
    assert data.note == catalog.VALIDATION["pool"]
    assert [len(s.validation) for s in data.silos] == [n for n in (8, 7, 6, 5, 4) for _ in range(4)]
    images = np.concatenate([p.x.reshape(len(p), -1) for s in data.silos for p in (s.train, s.validation, s.test)])
    # No two digits are the same picture, so a sample used twice would show.
    assert len(np.unique(digits().x.reshape(1797, -1), axis=0)) == 1797
    assert len(np.unique(images, axis=0)) == len(images) == 20 * 30 + 4 * (150 + 30)


def test_the_seed_is_the_data():
    assert same(load("digits", {}, 3), load("digits", {}, 3))
    assert not same(load("digits", {}, 3), load("digits", {}, 4))


def test_the_note_says_where_validation_came_from():
    assert "cut from the training samples" in load("digits", {"split": "iid"}, 0).note
    assert load("digits", {"split": "iid", "validation": 0}, 0).note == "no validation samples"


@pytest.mark.parametrize(
    "table",
    [
        {},
        {"silos": 10},
        {"members": [2, 3], "sizes": [20, 30], "dominating": [[0, 1, 2], [7]]},
        {"split": "iid", "silos": 4},
        {"split": "pathological", "shares": "random"},
        {"split": "shards", "test_share": 0.3},
        {"split": "dirichlet", "keep": 20, "silos": 5},
        {"split": "dirichlet", "label_groups": 3, "silos": 5},
        {"subsample": 0.9, "split": "iid", "keep": 20},
        {"dirty": 0.4, "dirty_labels": 0.6},
        {"keep": 10},
    ],
)
def test_a_table_written_back_loads_the_same(table):
    full = resolved("digits", table)
    assert full["name"] == "digits"
    assert full.items() >= table.items()
    assert resolved("digits", full) == full
    assert same(load("digits", table, 1), load("digits", full, 1))


@pytest.mark.parametrize("name", CATALOG)
def test_every_default_is_sound_and_written_back(name):
    full = resolved(name, {})
    assert resolved(name, full) == full
    known = {f.name for f in catalog.describe_options(name)}
    unset = {"preset", "keep", "label_groups", "looks"} | ({"silos"} if full.get("split") == "natural" else set())
    assert known - unset <= full.keys()


def test_a_preset_is_written_back_with_its_values():
    full = resolved("mnist", {"path": "/data"})
    assert (full["preset"], full["silos"], full["sizes"]) == ("amp-mnist", 100, [500, 400, 300, 200, 100])
    assert full["dominating"] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert resolved("mnist", {"silos": 10, "sizes": [50]})["members"] == [2] * 5
    assert resolved("digits", {"preset": "amp-emnist"})["silos"] == 62


def test_synthetic_is_generated():
    data = load("synthetic", {"silos": 5, "dimension": 4}, 0)
    assert (len(data.silos), data.classes, data.groups) == (5, 2, [0] * 5)
    assert data.silos[0].train.x.shape[1:] == (4,)
    assert resolved("synthetic", {"silos": 5})["alpha"] == 0.4


def test_your_own_archive(tmp_path):
    np.savez(tmp_path / "mine.npz", x=np.random.default_rng(0).random((60, 3)), y=np.arange(60) % 4)
    data = load("npz", {"path": str(tmp_path / "mine.npz"), "silos": 3}, 0)
    assert (len(data.silos), data.classes) == (3, 4)


def test_samples_of_another_shape_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((60, 32, 32), np.uint8), y=np.arange(60) % 4)
    with pytest.raises(BadInput, match=r"\[data\] organamnist: samples are \(1, 32, 32\), expected \(1, 28, 28\)"):
        load("organamnist", {"path": str(tmp_path / "a.npz")}, 0)


def test_data_no_model_can_use_is_refused(tmp_path):
    x = np.zeros((60, 3))
    x[:] = np.nan
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(60) % 4)
    with pytest.raises(BadInput, match="npz inputs: NaN or infinity in 60 samples, first in 0"):
        load("npz", {"path": str(tmp_path / "a.npz"), "silos": 3}, 0)


@pytest.mark.parametrize(
    ("name", "table", "message"),
    [
        ("digit", {}, r"\[data\] name: unknown data set 'digit'; did you mean 'digits'\?"),
        ("digits", {"split": "group"}, "unknown split 'group'; did you mean 'groups'"),
        ("digits", {"split": 3}, "unknown split 3"),
        ("digits", {"silo": 3}, "unknown key 'silo' for digits with split = \"groups\"; did you mean 'silos'"),
        ("digits", {"path": "/data"}, "unknown key 'path'"),
        ("digits", {"alpha": 3.0}, "unknown key 'alpha'"),
        ("digits", {"silos": 0}, r"\[data\]: silos: 0 is out of range"),
        ("digits", {"groups": 0}, r"\[data\]: groups: 0 is out of range"),
        ("digits", {"name": "mnist"}, "'mnist' and 'digits' are both asked for"),
        ("synthetic", {"split": "iid"}, "takes no split; remove it"),
        ("synthetic", {"siloes": 3}, "did you mean 'silos'"),
        ("mnist", {"preset": "amp-mnist", "silos": 3}, "silos is already set by preset"),
        ("mnist", {}, "data set mnist: give `path`"),
        ("digits", {"silos": 50}, r"class \d of digits needs \d+ samples .* missing; use fewer silos or smaller sizes"),
    ],
)
def test_mistakes_are_named(name, table, message):
    with pytest.raises(BadInput, match=message):
        load(name, table, 0)


def test_a_written_back_table_is_toml():
    full = resolved("emnist", {})
    text = "\n".join(
        f"{key} = {str(value).lower() if isinstance(value, bool) else repr(value)}" for key, value in full.items()
    )
    assert tomllib.loads(text) == full


def test_the_splits_of_the_catalog_exist():
    for entry in CATALOG.values():
        assert entry.split in SPLITS


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "emnist"])
def test_the_papers_settings_fit_the_papers_data(name):
    entry = CATALOG[name]
    per_class = entry.size // entry.classes // (1 if entry.classes == 10 else 5)
    y = np.repeat(np.arange(entry.classes), per_class)
    pool = Pool(name, np.zeros((len(y), 1), np.float32), y, entry.classes)
    schema, rule = SPLITS[entry.split]
    shares = rule(pool, parse(schema, entry.split_options, "[data]"), np.random.default_rng(0)).shares
    assert [len(s.test) for s in shares] == [100] * len(shares)


def test_another_name_is_the_same_set(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((60, 28, 28), np.uint8), y=np.arange(60) % 10)
    table = {"path": str(tmp_path / "a.npz"), "split": "iid", "silos": 3}
    data = load("fmnist", table, 0)
    assert data.name == resolved("fmnist", {})["name"] == "fashion-mnist"
    assert same(data, load("fashion-mnist", table, 0)) and same(data, load("fmnist", {**table, "name": "fmnist"}, 0))


def test_a_set_is_read_from_the_cache_when_no_path_is_given(own_cache):
    (own_cache / "organamnist").mkdir()
    np.savez(own_cache / "organamnist" / "organamnist.npz", x=np.zeros((60, 28, 28), np.uint8), y=np.arange(60) % 4)
    assert len(load("organamnist", {"split": "iid", "silos": 3}, 0).silos) == 3


def test_what_goes_wrong_combines_with_any_split():
    for split, table in {"groups": {}, "iid": {}, "dirichlet": {"silos": 5}, "shards": {"silos": 5}}.items():
        table = {**table, "split": split, "subsample": 0.9, "keep": 12, "dirty": 0.4, "dirty_labels": 0.5}
        table |= {"test": 20, "sizes": [20]} if split == "groups" else {}
        data = load("digits", table, 0)
        assert max(len(silo.train) for silo in data.silos) == 12
        assert sum(data.dirty) == 2 * len(data.silos) // 5


def test_generated_silos_can_be_dirty():
    clean, dirty = (load("synthetic", {"silos": 5, "dimension": 4, "dirty": share}, 0) for share in (0, 0.4))
    wrong = [(a.train.y != b.train.y).mean() for a, b in zip(clean.silos, dirty.silos, strict=True)]
    assert [share > 0.3 for share in wrong] == dirty.dirty and sum(dirty.dirty) == 2
    with pytest.raises(BadInput, match="unknown key 'subsample'"):
        load("synthetic", {"subsample": 0.5}, 0)


def test_inputs_are_normalised_by_channel_and_resized(tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (40, 3, 32, 32), dtype=np.uint8)
    np.savez(tmp_path / "cifar10.npz", x=x, y=np.arange(40) % 10)
    table = {"path": str(tmp_path), "split": "iid", "silos": 2}
    mean, deviation = [0.5, 0.4, 0.3], [0.2, 0.5, 0.25]
    plain = load("cifar10", table, 0)
    normal = load("cifar10", {**table, "mean": mean, "deviation": deviation}, 0)
    for a, b in zip(plain.silos, normal.silos, strict=True):
        expected = (a.train.x - np.array(mean)[:, None, None]) / np.array(deviation)[:, None, None]
        np.testing.assert_allclose(b.train.x, expected, atol=1e-6)
        assert b.train.x.dtype == np.float32
    half = load("cifar10", {**table, "mean": [0.5], "deviation": [0.5]}, 0)  # one number: for every channel
    np.testing.assert_allclose(half.silos[0].test.x, 2 * plain.silos[0].test.x - 1, atol=1e-6)
    small = load("cifar10", {**table, "resize": 28}, 0)
    assert small.silos[0].train.x.shape[1:] == (3, 28, 28)
    assert small.silos[0].train.x.mean() == pytest.approx(plain.silos[0].train.x.mean(), abs=1e-3)
    assert resolved("cifar10", {**table, "mean": mean, "resize": 28})["mean"] == mean


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mean": [0.1, 0.2]}, "mean has 2 numbers and the inputs 1 channel"),
        ({"deviation": [0.0]}, r"deviation\[0\]: 0.0 is out of range"),
    ],
)
def test_numbers_that_do_not_fit_the_channels_are_refused(options, message):
    with pytest.raises(BadInput, match=message):
        load("digits", options, 0)


def test_only_images_are_resized(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((20, 3), np.float32), y=np.arange(20) % 2)
    with pytest.raises(BadInput, match="resize: inputs of npz are not images"):
        load("npz", {"path": str(tmp_path / "a.npz"), "resize": 28}, 0)
