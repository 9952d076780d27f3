"""Of data split by time, what is saved: a method is judged on the last rows, and then trained again with these added.

In use a model is as much older than the rows it meets as it was when it was tested, so its scores hold for what
follows. Validation rows stay held out: they pick the round and calibrate, as before.
"""

from collections.abc import Callable
from dataclasses import fields, replace

import numpy as np

from coterie.data.mapped import end_to_end, holding
from coterie.data.silo import Part, Silo
from coterie.engine import ranks
from coterie.engine.rounds import Outcome, Progress
from coterie.methods.wrappers.spent import privacy_of
from coterie.run.assembly import Assembly
from coterie.run.finished import calibrate
from coterie.studies.study import Study


def refits(study: Study, name: str) -> bool:
    """Whether a method is trained again: not where its uploads would add to ε, nor over several processes.

    A process has the samples of its own silos alone, and with more rows others would be its own.
    """
    return bool(study.data.get("time")) and privacy_of(study.methods[name]) is None and ranks.count() == 1


def refit(
    study: Study, name: str, judged: Assembly, on_round: Callable[[Progress], None] = lambda progress: None
) -> Outcome:
    """A method trained on training and test rows, its models calibrated."""
    with holding(study.machine.in_memory):
        return _refitted(study, name, judged, on_round)


def _refitted(study: Study, name: str, judged: Assembly, on_round: Callable[[Progress], None]) -> Outcome:
    machine = study.machine
    federation = Assembly(
        [_with_test_rows(silo) for silo in judged.silos], judged.model, judged.model.classes, judged.training,
        judged.seed, machine.device, machine.rows, machine.precision, judged.data,
    )  # fmt: skip
    outcome = federation.train(study.methods[name], on_round, study.training_of(name))
    calibrate(outcome, {silo.name: silo for silo in federation.members}, study.training.positive)
    return outcome


def _with_test_rows(silo: Silo) -> Silo:
    """A silo that trains on its test rows too; what is measured on them from then on is not looked at."""
    names = [f.name for f in fields(Part) if getattr(silo.train, f.name) is not None]
    both = {name: [getattr(silo.train, name), getattr(silo.test, name)] for name in names}
    joined = {name: end_to_end(parts) if name == "x" else np.concatenate(parts) for name, parts in both.items()}
    return replace(silo, train=Part(**joined))
