"""A federation of two groups that contradict each other."""

import numpy as np

from coterie.data.silo import Part, Silo
from coterie.keys import generator

FEATURES, CLASSES = 5, 3


def two_groups(silos: int = 6) -> list[Silo]:
    """Silos of even and of odd place, who give the same inputs different labels."""
    rule = generator(0, "rule").normal(size=(FEATURES, CLASSES))
    made = []
    for i in range(silos):
        draw = generator(0, "conflict", i)

        def part(count: int, draw: np.random.Generator = draw, turn: int = i % 2) -> Part:
            x = draw.normal(size=(count, FEATURES))
            return Part(x.astype(np.float32), ((x @ rule).argmax(1) + turn) % CLASSES)

        made.append(Silo(f"s{i}", part(40), part(10), part(10)))
    return made
