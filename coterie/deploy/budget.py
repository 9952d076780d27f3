"""What a silo has answered over all runs, methods and seeds, and how much of its privacy that has spent."""

import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from coterie.deploy.home import json_table, write_whole
from coterie.deploy.ledger import FILE as LEDGER
from coterie.deploy.messages import Request
from coterie.deploy.policy import Policy, Refused
from coterie.errors import BadInput
from coterie.measure.gaussian import gaussian_epsilon
from coterie.methods.wrappers.accounting import composed
from coterie.methods.wrappers.spent import privacy_of
from coterie.options import option, parse
from coterie.wire import Up

FILE = "spent.json"  # beside the ledger and not in `state/`: a backup that is restored there must not undo it
TRAINED = ("train", "adapt")


@dataclass(frozen=True)
class Spent:
    """So far."""

    answers: int = option(0, "answers of any kind", low=0)
    squares: float = option(0.0, "of uploads with noise: the sum of squared ratios of sensitivity to noise", low=0)
    bare: int = option(0, "uploads without noise", low=0)
    steps: tuple[tuple[float, ...], ...] = option(
        (), "of uploads that hide each record: q, the noise, and how many steps had them", low=0
    )

    def epsilon(self, delta: float, hides: str = "silo") -> float:
        """ε of all uploads together, for all data of the silo or for each record."""
        if self.bare or (self.steps and hides == "silo"):
            return math.inf
        if not self.steps:
            return gaussian_epsilon(self.squares, delta)
        whole = Counter({(1.0, self.squares**-0.5): 1} if self.squares else {})
        whole.update({(q, noise): int(times) for q, noise, times in self.steps})
        return composed(whole, delta)

    def with_steps(self, q: float, noise: float, times: int) -> "Spent":
        """The same after so many more steps."""
        known = {(each[0], each[1]): each[2] for each in self.steps}
        known[q, noise] = known.get((q, noise), 0) + times
        return replace(self, steps=tuple((*key, float(count)) for key, count in sorted(known.items())))


def has_left(folder: Path) -> bool:
    """Whether the ledger of a silo's folder holds anything."""
    path = folder / LEDGER
    return path.exists() and path.stat().st_size > 0


class Budget:
    """A silo's policy over all runs, and what its folder remembers of them."""

    def __init__(self, folder: Path, policy: Policy, samples: Callable[[], int] = lambda: 0) -> None:
        """`samples`: how many this silo would train on."""
        self.path, self.policy, self.samples = folder / FILE, policy, samples

    def spent(self) -> Spent:
        """What all answers so far have spent."""
        if not self.path.exists():
            if has_left(self.path.parent):
                raise BadInput(f"{self.path}: missing, though the ledger is not; see `coterie silo repair`")
            return Spent()
        return parse(Spent, json_table(self.path, "restore the newest copy of it"), str(self.path))

    def judge(self, request: Request) -> None:
        """Refuse a request whose answer would be more than the policy allows."""
        before, policy = self.spent(), self.policy
        after = self._after(before, request, leaves=True)
        if after.answers > policy.answers:
            raise Refused(f"this silo has given {before.answers} answers over all runs; allowed: {policy.answers}")
        if policy.demanded == "none" or request.job is None:
            return
        if before.bare:
            raise Refused(f"{before.bare} uploads left this silo without noise before, which no epsilon covers")
        if after.bare:
            raise Refused("this silo demands privacy, and what is trained would leave without noise")
        if policy.demanded == "silo" and after.steps:
            raise Refused("this silo demands privacy of all its data, and noise of level record hides single records")
        if (epsilon := after.epsilon(policy.delta, policy.demanded)) > policy.epsilon:
            total = f"ε would be {epsilon:.4g} over all runs"
            raise Refused(f"{total}, for δ = {policy.delta:g}; allowed: {policy.epsilon:g}")

    def spend(self, request: Request, up: Up) -> None:
        """Write down what an answer spends, before it leaves."""
        before = self.spent()
        after = self._after(before, request, leaves=bool(up.tensors()))
        if after != before or not self.path.exists():  # once anything is in the ledger, there is a count
            write_whole(self.path, json.dumps(asdict(after)).encode())

    def _after(self, spent: Spent, request: Request, leaves: bool) -> Spent:
        """What is spent once a request is answered; `leaves`: whether what was trained is in the answer."""
        job, spent = request.job, replace(spent, answers=spent.answers + 1)
        if job is None or request.kind not in TRAINED or not leaves or not fields((method := job.made()).up):
            return spent
        privacy = privacy_of(method)
        if privacy is None or privacy.noise == 0:
            return replace(spent, bare=spent.bare + 1)
        training = job.training
        samples = self.samples() if privacy.level == "record" else 0
        plan = (training.batch_size, training.local_epochs, training.rounds)
        (q, ratio), times = privacy.mechanism(samples, *plan)
        if privacy.level == "record":
            return spent.with_steps(q, ratio, times)
        return replace(spent, squares=spent.squares + ratio**-2)
