"""How much memory a run will need at its peak: two rounds of two steps are tried before it begins."""

import copy
import sys

import torch

from coterie.engine.method import Cohort
from coterie.engine.rounds import Outcome, draw_cohort, exchange, measure
from coterie.engine.simulate import Simulator


@torch.no_grad()
def peak_memory(engine: Simulator) -> int:
    """Bytes at the peak of a round, on the GPU or (of the whole process) on a CPU; the engine stays as it was.

    Rounds are gone through whole: what the server keeps and sends, local training with its optimiser, what leaves, what
    the server makes of it, measuring, the models of a picked round. The first step is the largest, so more of them take
    no more memory.
    """
    trial, device = copy.copy(engine), engine.model.device
    trial.most_steps = 2
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    method, roster = trial.method, trial.roster
    everyone = torch.arange(len(roster), device=device)
    outcome = Outcome(method.open(roster, trial.model))
    for round in range(2):  # the second meets what the first left
        cohort, _ = draw_cohort(Cohort(everyone, round, roster, trial.model), trial.training)
        if len(cohort.ids):
            exchange(outcome, method, trial, cohort, trial.training)
        measure(outcome, method, trial, Cohort(everyone, round, roster, trial.model), trial.training, round + 1)
    engine.rows = trial.rows  # fewer, where memory did not hold so many
    return held_at_peak(device)


def held_at_peak(device: torch.device) -> int:
    """The most bytes that were held at once: on a GPU since that was last reset, on a CPU since the process began.

    0 where the system does not count them.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "win32":
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
