"""How many rows a compiled program is given: a few different numbers, because each of them is compiled anew."""


class Shapes:
    """The sizes that a program has been called with."""

    def __init__(self) -> None:
        self.rows: set[int] = set()
        self.batch: int | None = None

    def fitting(self, rows: int, batch: int) -> int | None:
        """So many rows or a few more; None where no program is worth making.

        Whole cohorts, each larger than what came before, keep their number; what is left of them when small silos have
        finished is rounded up. Batches of another size than the first are the last ones of an epoch: too few of each.
        """
        self.batch = self.batch or batch
        if batch != self.batch:
            return None
        if rows < max(self.rows, default=0) and rows not in self.rows:
            rows = _rounded_up(rows)
        self.rows.add(rows)
        return rows


def _rounded_up(rows: int) -> int:
    """The next number whose binary digits after the third are zero: at most a quarter more, a tenth in the mean."""
    step = 1 << max(0, rows.bit_length() - 3)
    return -(-rows // step) * step
