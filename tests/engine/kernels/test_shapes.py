"""A compiled program meets few different shapes, and what it gives does not depend on them."""

import pytest
import torch
from torch import Tensor, nn

from coterie.engine.kernels.shapes import Shapes
from coterie.engine.rows import Model


def test_whole_cohorts_keep_their_number_and_what_is_left_of_them_is_rounded_up() -> None:
    shapes = Shapes()
    assert [shapes.fitting(rows, 10) for rows in (100, 300, 100, 61, 40, 33, 300)] == [100, 300, 100, 64, 40, 40, 300]


def test_every_number_of_rows_makes_few_shapes_that_are_little_larger() -> None:
    shapes = Shapes()
    found = {rows: shapes.fitting(rows, 10) for rows in range(1000, 1, -1)}
    assert len(set(found.values())) < 40
    assert all(fit is not None and rows <= fit <= 1.25 * rows for rows, fit in found.items())


def test_batches_of_another_size_than_the_first_are_not_worth_a_program() -> None:
    shapes = Shapes()
    assert [shapes.fitting(5, batch) for batch in (10, 3, 10)] == [5, None, 5]


@pytest.mark.parametrize("norm", [nn.Identity(), nn.BatchNorm1d(6)], ids=["plain", "batchnorm"])
def test_added_rows_change_nothing(norm: nn.Module) -> None:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(4, 6), norm, nn.ReLU(), nn.Linear(6, 3))
    plain, programmed = (Model(made, 3, dtype=torch.float64) for _ in range(2))
    met = []

    def program(
        tensors: dict[str, Tensor], x: Tensor, keys: Tensor, training: bool
    ) -> tuple[Tensor, dict[str, Tensor]]:
        met.append(len(x))
        return programmed._way(tensors, x, keys, training)

    for model in (plain, programmed):
        model.probe(torch.randn(2, 4, dtype=torch.float64))
    programmed._fused = program
    for k in (20, 9):
        rows = torch.randn(k, plain.width, dtype=torch.float64)
        rows[:, plain.layout.trained :].abs_()  # variances
        x, y = torch.randn(k, 5, 4, dtype=torch.float64), torch.randint(3, (k, 5))
        share = torch.full((k, 5), 0.2, dtype=torch.float64)
        for ours, theirs in zip(programmed.gradient(rows, x, y, share), plain.gradient(rows, x, y, share), strict=True):
            assert (ours is None) == (theirs is None)
            if ours is not None and theirs is not None:
                torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    assert met == [20, 10]
