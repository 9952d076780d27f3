"""How many seeds: three where a study leaves their number open and all of it takes less than a minute, else one.

What it takes is counted, not timed: else the load of the machine would decide, and the answer might be another one.
"""

from dataclasses import replace

from coterie.engine.method import Method
from coterie.engine.simulate import work_of
from coterie.methods.stack import Stack
from coterie.methods.wrappers.spent import privacy_of
from coterie.run.assembly import Assembly
from coterie.studies.study import Study

MINUTE = 60.0  # seconds that a study may take with all its seeds
COUNT = 3
SEARCH = 0.3  # of what the training of a seed takes, for the search before it
PATIENT = 40  # rounds that a method trains for where it ends once validation data see nothing better
# Of one core of a laptop:
CALL, MULTIPLIED = 1.5e-3, 5e9  # seconds for a call of the model, and multiply-adds in a second
MEASURED, SILO = 5e-3, 1e-3  # seconds to measure a round, and more of them for each silo


def with_seeds(study: Study, federation: Assembly) -> tuple[Study, str]:
    """The study with its seeds, and why it has so many."""
    if any(privacy_of(method) for method in study.methods.values()):
        return study, "1 seed, because the uploads of every seed add to ε; give seeds 0,1,2 to have more"
    each = seconds(study, federation)
    more = (COUNT - 1) * each
    about = f"{more:.0f} s" if more < 60 else f"{more / 60:.0f} min"
    if (COUNT + SEARCH) * each > MINUTE:
        return study, f"1 seed, because two more take about {about}; give seeds 0,1,2 to have them"
    return replace(study, seeds=tuple(range(COUNT))), f"{COUNT} seeds, because two more take about {about}"


def seconds(study: Study, federation: Assembly) -> float:
    """What one seed is likely to take."""
    total, silos = 0.0, len(federation.members)
    largest = max(len(silo.train) for silo in federation.members)
    for label, method in study.methods.items():
        training = study.training_of(label)
        rounds = min(training.rounds, PATIENT) if training.patience else training.rounds
        calls = training.local_epochs * -(-training.taken(largest) // training.batch_size)
        round = calls * (CALL + work_of(silos, training, federation.model) / MULTIPLIED)
        total += models_of(method) * rounds * (round + (MEASURED + SILO * silos) / training.measure_every)
    return total


def models_of(method: Method) -> int:
    """How many models a method trains in a silo, as if each took as long."""
    return len(method.of) if isinstance(method, Stack) else 1
