"""How much silos take from their own group."""

import numpy as np
import pytest

from coterie.measure.blocks import block_scores, within_group

GROUPS = np.array([0, 0, 1])


def test_the_share_of_a_row_is_that_of_what_lies_off_the_diagonal() -> None:
    xi = np.array([[0.5, 0.4, 0.1], [0.3, 0.1, 0.6], [0.2, 0.2, 0.6]])
    assert within_group(xi, GROUPS) == pytest.approx([0.8, 1 / 3, 0])
    assert block_scores(xi, GROUPS) == pytest.approx({"within_group": 100 * (0.8 + 1 / 3) / 3, "within_group_least": 0})


def test_negative_weights_count_by_their_size() -> None:
    assert within_group(np.array([[1, -3.0, 1], [0, 1, 1], [1, 0, 1]]), GROUPS) == pytest.approx([0.75, 0, 0])


def test_a_silo_that_takes_from_nobody_has_no_share_and_does_not_count() -> None:
    xi = np.array([[1, 0, 0], [0.5, 0, 0.5], [0.0, 0, 1]])
    assert np.isnan(within_group(xi, GROUPS)).tolist() == [True, False, True]
    assert block_scores(xi, GROUPS) == {"within_group": 50.0, "within_group_least": 50.0}
    assert block_scores(np.eye(3), GROUPS) == {}


def test_without_groups_there_is_nothing_to_say() -> None:
    assert block_scores(np.ones((3, 3)), np.zeros(3, int)) == {}
