"""The ragged schedule: which samples each silo takes at each step."""

import numpy as np
import pytest

from coterie.engine.plan import BatchPlan

NAMES, COUNTS = ("a", "b", "c"), np.array([11, 8, 3])


def plan(seed: int = 0, *key: object, batch: int = 4, epochs: int = 3) -> BatchPlan:
    return BatchPlan(NAMES, COUNTS, batch, epochs, seed, *(key or ("train", 0)))


def test_every_sample_exactly_once_in_every_epoch() -> None:
    p = plan()
    for row, n in enumerate(COUNTS):
        per_epoch = -(-n // 4)
        epochs = p.order[row, : 3 * per_epoch].reshape(3, -1)
        for epoch in epochs:
            assert sorted(epoch[epoch >= 0]) == list(range(n))


def test_every_epoch_is_shuffled_anew() -> None:
    first, second, third = plan().order[0].reshape(3, -1)
    assert not np.array_equal(first, second)
    assert not np.array_equal(second, third)


def test_batches_are_full_but_the_last_of_an_epoch() -> None:
    filled = (plan().order >= 0).sum(2)
    assert filled[0].tolist() == [4, 4, 3] * 3
    assert filled[1].tolist() == [4, 4] * 3 + [0] * 3
    assert filled[2].tolist() == [3] * 3 + [0] * 6


def test_whole_batches_leave_out_the_rest_of_an_epoch_unless_there_is_nothing_else() -> None:
    p = BatchPlan(NAMES, COUNTS, 4, 3, 0, "train", 0, whole=True)
    assert p.steps.tolist() == [6, 6, 3]
    assert (p.order >= 0).sum(2).tolist() == [[4] * 6, [4] * 6, [3] * 3 + [0] * 3]
    for epoch in p.order[0].reshape(3, -1):
        assert len({*epoch}) == 8 and {*epoch} <= {*range(11)}
    assert len({tuple(sorted(epoch)) for epoch in p.order[0].reshape(3, -1)}) > 1  # others are left out each time


def test_a_partial_batch_is_filled_at_its_end() -> None:
    for batch in plan().order.reshape(-1, 4):
        real = batch >= 0
        assert (np.diff(real.astype(int)) <= 0).all()


def test_those_still_training_are_a_prefix() -> None:
    p = plan()
    assert p.steps.tolist() == [9, 6, 3]
    assert [p.active(t) for t in range(9)] == [3] * 3 + [2] * 3 + [1] * 3
    with pytest.raises(ValueError, match="longest training first"):
        BatchPlan(NAMES, COUNTS[::-1], 4, 1, 0, "train", 0)


def test_batches_of_one_size_come_together() -> None:
    groups = [[(rows.tolist(), size) for rows, size in plan().alike(t)] for t in range(3)]
    first = [([0, 1], 4), ([2], 3)]
    assert groups == [first, first, [([1], 4), ([0, 2], 3)]]


def test_a_silos_order_does_not_depend_on_who_else_takes_part() -> None:
    p = plan()
    for row, name in enumerate(NAMES):
        alone = BatchPlan((name,), COUNTS[row : row + 1], 4, 3, 0, "train", 0)
        steps = p.steps[row]
        assert np.array_equal(alone.order[0], p.order[row, :steps])
        assert np.array_equal(alone.noise()[0], p.noise()[row, :steps])


@pytest.mark.parametrize("other", [(1, "train", 0), (0, "finetune", 0), (0, "train", 1)])
def test_the_order_goes_by_seed_purpose_round_and_name(other: tuple[object, ...]) -> None:
    assert np.array_equal(plan().order, plan(0, "train", 0).order)
    assert not np.array_equal(plan().order, plan(*other).order)  # type: ignore[arg-type]
    assert not np.array_equal(plan().noise(), plan(*other).noise())  # type: ignore[arg-type]
    renamed = BatchPlan(("z", "b", "c"), COUNTS, 4, 3, 0, "train", 0)
    assert not np.array_equal(renamed.order[0], plan().order[0])
    assert np.array_equal(renamed.order[1:], plan().order[1:])


def test_every_step_has_noise_of_its_own() -> None:
    noise = plan().noise()
    drawn = np.concatenate([noise[row, :steps] for row, steps in enumerate((9, 6, 3))])
    assert len(np.unique(drawn)) == 18


def test_a_shorter_plan_keeps_its_proportions() -> None:
    p = plan()
    p.shorten(2)
    assert p.steps.tolist() == [2, 2, 1]
    assert [p.active(t) for t in range(3)] == [3, 2, 0]


def test_a_plan_is_never_made_longer() -> None:
    p = plan()
    steps = p.steps.tolist()
    p.shorten(max(steps) + 1)
    assert p.steps.tolist() == steps
