"""Robust averages: one rogue silo, or a few, cannot carry the mean of all away.

The server hands the method uploads of which every weighted mean is the robust one, so any method that averages takes
it in unchanged. `median`: the median of each coordinate (Yin et al., "Byzantine-Robust Distributed Learning", ICML
2018). `clipped`: the mean after every upload was drawn back to the median distance from that median (norm clipping, Sun
et al., "Can You Really Backdoor Federated Learning?", 2019, about the median as centre). `krum`: the mean of the
n − f uploads that lie nearest to their n − f − 2 nearest (Multi-Krum of Blanchard et al., "Machine Learning with
Adversaries", NeurIPS 2017; `keep = 1` is Krum). Fields of an upload are treated one by one, and whole: distances count
BatchNorm's statistics too, for a rogue could hide in numbers that are averaged and not looked at.

Median and Krum count every silo alike, whatever its samples: a rogue silo may declare as many as it likes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from coterie.engine.method import Cohort, Method, Model, Roster
from coterie.engine.wrapper import Wrapper
from coterie.methods.parts.attention import BLOCK, squared_distances
from coterie.options import option


@dataclass(frozen=True)
class Robustness:
    """`robust = {rule = "median"}` in a method's table."""

    rule: Literal["median", "clipped", "krum"] = option("median", "how uploads are averaged")
    rogue: int = option(1, "f, rogue silos that krum expects", low=0)
    keep: int | None = option(None, "uploads that krum averages; none: all but f", low=1)


@dataclass(frozen=True, repr=False)
class WithRobustness(Wrapper):
    """Any method whose server averages uploads."""

    method: Method
    options: Robustness

    def receive(self, server: Any, cohort: Cohort, up: Any) -> Any:
        o = self.options
        rules: dict[str, Callable[[Tensor], Tensor]] = {
            "median": median, "clipped": clipped, "krum": lambda rows: krum(rows, o.rogue, o.keep),
        }  # fmt: skip

        def averaged(rows: Tensor) -> Tensor:
            flat = rows.flatten(1)
            return rules[o.rule](flat).expand_as(flat).reshape(rows.shape)

        return self.method.receive(server, cohort, up.map(averaged))

    def refusal(self, roster: Roster, model: Model) -> str | None:
        o = self.options
        if not self.method.averages:
            return "robust: its server does not average uploads, so there is no average to make robust"
        if o.rule == "krum" and len(roster) < 2 * o.rogue + 3:
            return f"robust: krum needs 2 f + 3 silos, {2 * o.rogue + 3} for f = {o.rogue}, and there are {len(roster)}"
        return self.method.refusal(roster, model)


def median(rows: Tensor) -> Tensor:
    """The median of each column of (k, d); of an even number the mean of the middle two."""
    k = len(rows)
    parts = []
    for block in rows.split(BLOCK, 1):  # type: ignore[no-untyped-call]
        lower, upper = (block.kthvalue(place, 0).values for place in ((k + 1) // 2, k // 2 + 1))
        parts.append((lower + upper) / 2)
    return torch.cat(parts)


def clipped(rows: Tensor) -> Tensor:
    """Rows (k, d), those farther from their median than half of them are drawn back to that distance."""
    centre = median(rows)
    apart = rows - centre
    lengths = apart.norm(dim=1, keepdim=True)
    radius = median(lengths)
    return torch.where(lengths > radius, centre + apart * (radius / lengths.clamp_min(1e-30)), rows)


def krum(rows: Tensor, rogue: int, keep: int | None = None) -> Tensor:
    """The mean of the `keep` rows (none: k − f) with the least Σ ‖w_i − w_j‖² over the k − f − 2 nearest to w_i."""
    k = len(rows)
    near = max(1, k - rogue - 2)  # of too few replies, the nearest one
    distances = squared_distances(rows).fill_diagonal_(torch.inf)
    scores = distances.sort(1).values[:, :near].sum(1)
    best = scores.argsort(stable=True)[: keep or max(1, k - rogue)]
    return rows[best].mean(0)
