"""Models that keep something of each sample have one form in every process, whichever silos it holds."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from coterie.conformance import Ground, small_silos
from coterie.data.silo import Part, Silo
from coterie.engine.method import Cohort
from coterie.engine.simulate import Simulator
from coterie.methods import make


class Holds(Simulator):
    """The second silo alone, as a process among several may."""

    def held(self, silos: Sequence[Silo]) -> list[int]:
        return [1]


def fewer(part: Part, count: int) -> Part:
    return replace(part, x=part.x[:count], y=part.y[:count])


@pytest.mark.parametrize(("name", "options"), [("stack", {"of": ["separate", "fedavg"]}), ("knn-per", {})])
def test_a_silo_with_few_samples_has_a_model_as_wide_as_the_others(name: str, options: dict[str, object]) -> None:
    silos = [
        replace(silo, train=fewer(silo.train, 5 - i), validation=fewer(silo.validation, 4 - i))
        for i, silo in enumerate(small_silos())
    ]
    ground = Ground(make(name, options), silos=silos)
    whole, part = ground.engine(), ground.engine(kind=Holds)
    everyone = Cohort.everyone(whole.roster, whole.model, 0)
    down = ground.method.send(ground.method.open(whole.roster, whole.model), everyone)
    every, one = (
        ground.method.personal(engine.task(ids, 0), down.take(ids), engine.private())
        for engine, ids in ((whole, torch.arange(4)), (part, torch.tensor([1])))
    )
    for key, value in every.tensors().items():
        torch.testing.assert_close(one.tensors()[key], value[1:2] if len(value) > 1 else value)
