import numpy as np
import pytest

from coterie.keys import generator


def draw(*key: object) -> list[float]:
    return generator(*key).random(4).tolist()


def test_the_same_key_draws_the_same_numbers():
    assert draw(7, "split", "digits") == draw(7, "split", "digits")


def test_any_part_of_the_key_changes_the_numbers():
    keys = [(7, "a", 1), (8, "a", 1), (7, "b", 1), (7, "a", 2), (7, "a", "1"), (7, "a"), (7, "a,1"), (7, ("a", 1))]
    assert len({tuple(draw(*key)) for key in keys}) == len(keys)


def test_numpy_numbers_are_the_numbers_they_hold():
    assert draw(np.int64(7), "a", np.int32(3)) == draw(7, "a", 3)


def test_the_numbers_do_not_change_between_releases():
    assert generator(0, "split", "digits").integers(0, 1000, 5).tolist() == [563, 480, 376, 597, 597]


def test_an_object_whose_repr_may_change_is_no_key():
    with pytest.raises(TypeError, match="not object"):
        generator(0, object())
