"""Studies that a silo's owner has approved: each by a hash of all that decides what is computed on the silo's data."""

import getpass
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from coterie.data.own.schema import Schema
from coterie.deploy.home import json_table, write_whole
from coterie.deploy.messages import AWAITS, Job, check_depth
from coterie.deploy.policy import MOST_PROPOSED, Refused
from coterie.errors import BadInput
from coterie.options import parse

PROPOSED, APPROVED = "proposed", "approved"  # in a silo's folder
ROOM = 100 << 20  # bytes of all studies that wait to be approved; one of 6,000 columns has 1 MB
SHOWN = 16  # digits of a hash that people compare
ROSTER = ("seed", "names", "sizes", "validation")  # of a job: what does not change what one silo computes and sends
CANDIDATES = ("rates", "going")  # of a job: what a search tries of what its rounds (`tuning`) allow
SEARCHED = ("lr", "optimizer")  # of its training: what a search on the silos' own data may choose, where there is one
NAMES = 3  # of a run's: its own, and those of two searches
EACH_ROUND, BESIDE = 4, 8  # answers of a run: to train, confirm, measure, and once more; to keep its model and others


@dataclass(frozen=True)
class Proposal:
    """A study that waits for its approval."""

    digest: str
    job: Job
    run: str
    given: int | None = None  # answers since an approval before


class Approvals:
    """What was proposed to a silo and what its owner has approved, as its folder holds them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def judge(self, jobs: Sequence[Job], run: str, runs: int, only_proposed: bool) -> None:
        """Refuse jobs that are not approved, or whose answers are given, and keep them for the owner to look at."""
        waiting = list[str]()
        for job in jobs:
            given, names = self._known(digest := study_hash(job))
            many = not only_proposed and run not in names and len(names) >= NAMES * runs
            if given is None or given >= runs * answers_of_a_run(job) or many:
                self._propose(job, run)
                again = "" if given is None else f" (again: {given} answers were given to it, in {len(names)} runs)"
                waiting.append(f"{job.method} {digest[:SHOWN]}{again}")
        if waiting:
            named = f"study '{jobs[0].study}', {', '.join(waiting)}"
            raise Refused(f"{AWAITS} by the silo's owner (`coterie silo approve`): {named}")

    def given(self, digest: str) -> int | None:
        """How many answers an approved study was given since then; None: it is not approved, or nobody knows."""
        return self._known(digest)[0]

    def count(self, job: Job, run: str) -> None:
        """Note one more answer to an approved study, before it leaves."""
        given, names = self._known(digest := study_hash(job))
        write_whole(self._count(digest), "\n".join([str((given or 0) + 1), *dict.fromkeys([*names, run])]).encode())

    def _known(self, digest: str) -> tuple[int | None, list[str]]:
        """How many answers an approved study was given, and in which runs: a silo keeps something of each."""
        path = self._count(digest)
        if not (path.exists() and self._path(APPROVED, digest).exists()):
            return None, []
        try:
            given, *names = path.read_text("utf-8").split("\n")
            return int(given), names
        except ValueError:
            raise BadInput(f"{path}: damaged; remove {digest}.json beside it, and approve that study again") from None

    def proposals(self) -> list[Proposal]:
        """Those that wait."""
        return [each for each in self.waiting() if isinstance(each, Proposal)]

    def waiting(self) -> Iterator[Proposal | BadInput]:
        """Those that wait, or why one cannot be read: that keeps nobody from the others."""
        for path in sorted((self.folder / PROPOSED).glob("*.json")):
            try:
                yield self._proposal(path)
            except BadInput as error:
                yield error

    def _proposal(self, path: Path) -> Proposal:
        table = json_table(path, "remove it")
        check_depth(table, str(path))
        job = parse(Job, table.get("job", {}), str(path))
        digest = study_hash(job)
        return Proposal(digest, job, str(table.get("run")), self.given(digest))

    def approve(self, given: str) -> Proposal:
        """Approve the study whose hash begins so; from now on it runs, under whichever seeds."""
        found = [each for each in self.proposals() if each.digest.startswith(given)]
        if len(given) < SHOWN or len(found) != 1:
            raise BadInput(f"'{given}': no such study waits to be approved; give {SHOWN} digits of its hash or more")
        (each,) = found
        about = {"time": f"{datetime.now():%Y-%m-%d %H:%M:%S}", "by": getpass.getuser()}
        write_whole(self._count(each.digest), b"0")
        write_whole(self._path(APPROVED, each.digest), _written(about | {"run": each.run, "job": asdict(each.job)}))
        self._path(PROPOSED, each.digest).unlink(missing_ok=True)
        return each

    def _propose(self, job: Job, run: str) -> None:
        path, content = self._path(PROPOSED, study_hash(job)), _written({"run": run, "job": asdict(job)})
        if path.exists():
            return
        if job.schema:
            Schema.read(job.schema, "the run's schema")  # its owner is to be shown what it names
        waiting = [each.stat().st_size for each in path.parent.glob("*")]
        if len(waiting) >= MOST_PROPOSED or sum(waiting) + len(content) > ROOM:
            raise Refused(f"a study of {len(content)} bytes beside {len(waiting)} others that wait to be approved")
        write_whole(path, content)

    def _path(self, kind: str, digest: str) -> Path:
        return self.folder / kind / f"{digest}.json"

    def _count(self, digest: str) -> Path:
        return self.folder / APPROVED / f"{digest}.answers"


def answers_of_a_run(job: Job) -> int:
    """How many answers one run of a study needs, generously: replies are lost, and silos come late."""
    return EACH_ROUND * (job.training.rounds + job.tuning) + BESIDE


def study_hash(job: Job) -> str:
    """The same for every seed and whoever takes part; any other schema, model, method or training has another."""
    table: dict[str, Any] = {key: value for key, value in asdict(job).items() if key not in (*ROSTER, *CANDIDATES)}
    table["train"] = {key: value for key, value in job.train.items() if not (job.tuning and key in SEARCHED)}
    if "of" in job.options:  # a stack, whose members take what a search finds for the same methods of the study
        table["options"] = table["options"] | {"of": [_unsearched(each, job.train) for each in job.options["of"]]}
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()


def _unsearched(member: Any, train: Mapping[str, Any]) -> dict[str, Any]:
    """A member of a stack without what a search may choose of its training, and what is as in the study's anyway."""
    table: dict[str, Any] = {"method": member} if isinstance(member, str) else dict(member)
    given = table.pop("train", {})
    own = {key: value for key, value in given.items() if key not in SEARCHED and value != train.get(key)}
    return table | ({"train": own} if own else {})


def _written(table: dict[str, Any]) -> bytes:
    return json.dumps(table, indent=1).encode()
