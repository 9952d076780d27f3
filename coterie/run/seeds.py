"""How many seeds: three where a study leaves their number open and all of it takes less than a minute, else one."""

from dataclasses import replace

from coterie.methods.wrappers.spent import privacy_of
from coterie.studies.study import Study

MINUTE = 60.0  # seconds that a study may take with all its seeds
COUNT = 3
SEARCHES = 3.0  # how many times its search the training of a seed takes, with what is measured in every round
SEARCHED = 40  # rounds that a search goes on for


def with_seeds(study: Study, searched: float, before: float) -> tuple[Study, str]:
    """The study with its seeds, and why it has so many; its search took `searched` of the seconds `before` now."""
    if any(privacy_of(method) for method in study.methods.values()):
        return study, "1 seed, because the uploads of every seed add to ε; give seeds 0,1,2 to have more"
    training = study.training
    longer = 1.0 if training.patience else max(1.0, training.rounds / SEARCHED)
    each = SEARCHES * longer * searched
    more = (COUNT - 1) * each
    about = f"{more:.0f} s" if more < 60 else f"{more / 60:.0f} min"
    if before + each + more > MINUTE:
        return study, f"1 seed, because two more take about {about}; give seeds 0,1,2 to have them"
    return replace(study, seeds=tuple(range(COUNT))), f"{COUNT} seeds, because two more take about {about}"
