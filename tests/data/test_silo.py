import numpy as np
import pytest

from coterie.data.silo import Part, Pool, Share, Silo, check_silos, deal
from coterie.errors import BadInput


def part(n: int = 3, label: int = 0) -> Part:
    return Part(np.zeros((n, 2), np.float32), np.full(n, label))


def silo(**parts: Part) -> Silo:
    return Silo("silo-03", **{"train": part(), "validation": part(), "test": part(), **parts})


def test_deal_gives_each_silo_its_own_samples():
    pool = Pool("p", np.arange(6, dtype=np.float32)[:, None], np.array([0, 1, 0, 1, 0, 1]), 2)
    shares = [
        Share(np.array([4, 1]), np.array([2]), np.array([0])),
        Share(np.array([3]), np.array([5]), np.array([], np.int64)),
    ]
    first, second = deal(pool, shares)
    assert first.train.x.ravel().tolist() == [4, 1]
    assert first.train.y.tolist() == [0, 1]
    assert first.validation.x.ravel().tolist() == [2]
    assert first.test.x.ravel().tolist() == [0]
    assert len(second.test) == 0


def test_names_sort_in_the_order_of_the_silos():
    pool = Pool("p", np.zeros((120, 1), np.float32), np.zeros(120, np.int64), 1)
    none = np.array([], np.int64)
    names = [s.name for s in deal(pool, [Share(np.array([i]), none, none) for i in range(120)])]
    assert names == sorted(names)
    assert names[7] == "silo-007"
    assert deal(pool, [Share(np.array([0]), none, none)])[0].name == "silo-00"


def test_sound_silos_pass():
    check_silos([silo(), silo(validation=part(0))], 1)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_number_that_is_none_is_refused_with_its_place(value):
    x = np.zeros((3, 2), np.float32)
    x[1, 1] = value
    with pytest.raises(BadInput, match="silo-03 validation inputs: NaN or infinity in 1 samples, first in 1; clean"):
        check_silos([silo(validation=Part(x, np.zeros(3, np.int64)))], 1)


def test_a_target_that_is_no_number_is_refused():
    data = Part(np.zeros((2, 1), np.float32), np.array([1.0, np.nan], np.float32))
    with pytest.raises(BadInput, match="silo-03 test targets: NaN"):
        check_silos([silo(test=data)], 0)


@pytest.mark.parametrize("label", [-1, 4])
def test_a_label_out_of_range_is_refused_with_its_place(label):
    with pytest.raises(BadInput, match=f"silo-03 test: label {label} of sample 0 is out of range.*0 to 3"):
        check_silos([silo(test=part(2, label))], 4)


def test_labels_of_sequences_are_checked_too():
    data = Part(np.zeros((2, 3), np.int64), np.array([[0, 1, 1], [0, 9, 0]]))
    with pytest.raises(BadInput, match="silo-03 train: label 9 of sample 1 is out of range"):
        check_silos([silo(train=data)], 2)


def test_labels_that_are_not_whole_are_refused():
    with pytest.raises(BadInput, match="labels are float64; give whole numbers from 0 to 3"):
        check_silos([silo(test=Part(np.zeros((2, 1), np.float32), np.array([0.5, 1.0])))], 4)


def test_a_silo_without_training_samples_is_refused():
    with pytest.raises(BadInput, match="silo-03 train: no samples"):
        check_silos([silo(train=part(0))], 1)


def test_inputs_and_labels_must_match_in_number():
    with pytest.raises(BadInput, match="silo-03 test: 3 inputs but 2 labels"):
        check_silos([silo(test=Part(np.zeros((3, 1), np.float32), np.zeros(2, np.int64)))], 1)
