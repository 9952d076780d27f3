"""What a silo has answered over all runs, methods and seeds, and how much of its privacy that has spent."""

import json
import math
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from coterie.deploy.home import json_table, write_whole
from coterie.deploy.messages import Request
from coterie.deploy.policy import Policy, Refused
from coterie.measure.gaussian import gaussian_epsilon
from coterie.methods.wrappers.spent import privacy_of
from coterie.options import option, parse
from coterie.wire import Up

FILE = "spent.json"  # beside the ledger and not in `state/`: a backup that is restored there must not undo it
ABOUT_DATA = ("train", "adapt", "measure")  # requests whose answers are computed from the silo's rows
TRAINED = ("train", "adapt")


@dataclass(frozen=True)
class Spent:
    """So far."""

    answers: int = option(0, "answers about the silo's data", low=0)
    squares: float = option(0.0, "of uploads with noise: the sum of squared ratios of sensitivity to noise", low=0)
    bare: int = option(0, "uploads without noise", low=0)

    def epsilon(self, delta: float) -> float:
        """ε of all uploads together."""
        return math.inf if self.bare else gaussian_epsilon(self.squares, delta)


class Budget:
    """A silo's policy over all runs, and what its folder remembers of them."""

    def __init__(self, folder: Path, policy: Policy) -> None:
        self.path, self.policy = folder / FILE, policy

    def spent(self) -> Spent:
        """What all answers so far have spent."""
        if not self.path.exists():
            return Spent()
        return parse(Spent, json_table(self.path, "restore the newest copy of it"), str(self.path))

    def judge(self, request: Request) -> None:
        """Refuse a request whose answer would be more than the policy allows."""
        before, policy = self.spent(), self.policy
        after = _after(before, request, leaves=True)
        if after.answers > policy.answers:
            raise Refused(f"this silo has given {before.answers} answers over all runs; allowed: {policy.answers}")
        if policy.epsilon == math.inf or after == before:
            return
        if before.bare:
            raise Refused(f"{before.bare} uploads left this silo without noise before, which no epsilon covers")
        if after.bare:
            raise Refused("this silo demands privacy, and what is trained would leave without noise")
        if after.epsilon(policy.delta) > policy.epsilon:
            total = f"ε would be {after.epsilon(policy.delta):.4g} over all runs"
            raise Refused(f"{total}, for δ = {policy.delta:g}; allowed: {policy.epsilon:g}")

    def spend(self, request: Request, up: Up) -> None:
        """Write down what an answer spends, before it leaves."""
        before = self.spent()
        after = _after(before, request, leaves=bool(up.tensors()))
        if after != before:
            write_whole(self.path, json.dumps(asdict(after)).encode())


def _after(spent: Spent, request: Request, leaves: bool) -> Spent:
    """What is spent once a request is answered; `leaves`: whether what was trained is in the answer."""
    if request.job is None or request.kind not in ABOUT_DATA:
        return spent
    spent, method = replace(spent, answers=spent.answers + 1), request.job.made()
    if request.kind not in TRAINED or not fields(method.up) or not leaves:
        return spent
    privacy = privacy_of(method)
    if privacy is None or not privacy.noise:
        return replace(spent, bare=spent.bare + 1)
    # Replacing all data turns a change of length C around at most: 2 C, under noise of deviation z C.
    return replace(spent, squares=spent.squares + (2 / privacy.noise) ** 2)
