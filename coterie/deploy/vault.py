"""What a silo keeps on its disk: its private state, the committed version and the tentative one of a reply under way.

A reply that the server never got must leave no trace. So training writes a tentative version, and the next request,
which names the last round the server has received, decides: that round is committed, any other is rolled back.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import safetensors.torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from coterie.codec import built, check, storable
from coterie.deploy.home import set_aside, sync, write_whole
from coterie.engine.predictors import restored
from coterie.errors import BadInput
from coterie.personal.export import file_name
from coterie.wire import Deployable, Predictor, Private, every_field

P = TypeVar("P", bound=Private)
DAMAGED = (SafetensorError, OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError)
COMMITTED, TENTATIVE = "committed.safetensors", "tentative.safetensors"
CONFIRMED = "confirmed"  # for which uploads of which round shares were revealed
PINNED = "job"  # the digest of the one job of a run whose models are hidden
ASKED = "asked"  # what the upload of which round was asked for
RESERVED = {  # what else lies beside the folders of runs, by what comes before its first dot; a backup leaves some out
    "alive", "allowed", "connected", "data", "examined", "nodes", "programs", "secret", "source", "superlink",
}  # fmt: skip
DESCRIBED = "data.described"  # beside the folders of runs: what it describes of its data, the same for all of them
REJOINS = "rejoins"  # its owner lets this run go on from a state that is not the server's last


def is_reserved(run: str) -> bool:
    """Whether a run of this name would lie where a silo keeps something else."""
    return file_name(run).partition(".")[0].casefold() in RESERVED


class Vault:
    """One silo's private state in one run."""

    def __init__(self, folder: Path, run: str) -> None:
        self.folder = folder / file_name(run)

    @contextmanager
    def unless_refused(self) -> Iterator[None]:
        """Of a run that is refused at its first request nothing is kept: ever new names would fill a disk."""
        known = self.folder.exists()
        try:
            yield
        except Exception:
            if not known:
                shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def settle(self, received: int, round: int) -> None:
        """Commit the tentative version if the server has that round's reply, roll it back otherwise.

        `round` is that of the request. One that was overtaken on its way may not undo what came after it.
        """
        tentative, committed = self.round(TENTATIVE), self.round(COMMITTED)
        if tentative is not None and round < tentative:
            raise BadInput(f"a request of round {round + 1} came late: this silo has answered round {tentative + 1}")
        if tentative is not None and tentative == received:
            (self.folder / TENTATIVE).replace(self.folder / COMMITTED)
            (self.folder / REJOINS).unlink(missing_ok=True)
            sync(self.folder)
        elif (-1 if committed is None else committed) != received and not (self.folder / REJOINS).exists():
            kept = "no state" if committed is None else f"the state after round {committed + 1}"
            raise BadInput(
                f"the server counts on the state after round {received + 1}, this silo's disk has {kept} of this run; "
                "restore it from a backup, or go on from what is there with `coterie silo rejoin`"
            )
        elif tentative is not None:
            (self.folder / TENTATIVE).unlink()
            sync(self.folder)

    def rejoin(self) -> None:
        """Let the next round go on from the committed state, of whichever round it is, or anew where there is none."""
        write_whole(self.folder / REJOINS, b"")

    def mend(self) -> list[str]:
        """Set aside what cannot be read, and go on from what is left; what was done."""
        done = []
        for path in sorted(self.folder.glob("*.safetensors")):
            try:
                safetensors.torch.load(path.read_bytes())
                if path.name in (COMMITTED, TENTATIVE):
                    self.round(path.name)
            except (*DAMAGED, BadInput):
                done.append(f"{path.parent.name}/{path.name}: damaged, set aside as {set_aside(path).name}")
                if path.name == COMMITTED:
                    self.rejoin()
                    done.append(f"{path.parent.name}: this silo goes on in that run as one that missed its rounds")
        return done

    def clear(self) -> None:
        """Forget everything: a newcomer begins anew."""
        for which in (TENTATIVE, COMMITTED):
            (self.folder / which).unlink(missing_ok=True)

    def load(self, template: Private) -> Private:
        """The committed private state; before the first round the template is that."""
        path = self.folder / COMMITTED
        if not path.exists():
            return template
        try:
            return rebuilt(template, safetensors.torch.load(path.read_bytes()))
        except (*DAMAGED, BadInput) as error:
            raise BadInput(f"{path}: damaged ({error}); restore it from a backup") from None

    def keep(self, private: Private, round: int) -> None:
        """Write the tentative version of a round."""
        content = safetensors.torch.save(storable(private.tensors()), {"round": str(round)})
        write_whole(self.folder / TENTATIVE, content)

    def round(self, which: str) -> int | None:
        """The round after which a version was kept; None where there is none."""
        path = self.folder / which
        if not path.exists():
            return None
        try:
            with safe_open(path, "pt") as file:
                return int(file.metadata()["round"])
        except DAMAGED as error:
            raise BadInput(f"{path}: damaged ({error}); restore it from a backup") from None

    def confirm(self, round: int, question: str) -> None:
        """Note which question of a round is answered; any other of that round, or of one before, is refused."""
        path = self.folder / CONFIRMED
        last, known = path.read_text("ascii").split() if path.exists() else ("-1", "")
        if round < int(last) or (round == int(last) and question != known):
            raise BadInput(f"this silo has revealed its shares of round {int(last) + 1} for other uploads; not again")
        write_whole(path, f"{round} {question}".encode())

    def pin(self, job: str) -> None:
        """Take part in a run for this job alone: of many jobs' answers a server could solve for what hides models."""
        path = self.folder / PINNED
        if not path.exists():
            write_whole(path, job.encode())
        elif path.read_text("ascii") != job:
            raise BadInput("this run hides models, and this silo takes part in it for another job; start a new run")

    def ask(self, round: int, context: bytes) -> None:
        """Note what a round's upload was asked for."""
        write_whole(self.folder / ASKED, f"{round} {context.hex()}".encode())

    def asked(self, round: int) -> bytes:
        """What a round's upload was asked for, which its secrets go by."""
        with suppress(OSError, ValueError):
            last, context = (self.folder / ASKED).read_text("ascii").split()
            if int(last) == round:
                return bytes.fromhex(context)
        raise BadInput(f"this silo has sent no upload of round {round + 1} to be summed: nothing revealed")

    # The model of every measured round is held until it is known which round is picked.

    def hold(self, model: Deployable, rounds: tuple[int, ...]) -> None:
        """Write the model of the last of these rounds, and forget those that none of them asks for, but the newest."""
        content = safetensors.torch.save(storable(model.tensors()), {"kind": json.dumps(model.form)})
        write_whole(self._model(rounds[-1]), content)
        held = self._held()
        wanted = {max(held), *map(self._newest, rounds)}  # the newest came after a request that was overtaken
        for round in held:
            if round not in wanted:
                self._model(round).unlink()

    def held(self, round: int) -> tuple[int, Deployable] | None:
        """The model of a round or, of a silo that was away then, the newest before it, and of which round it is."""
        found = self._newest(round)
        if found is None:
            return None
        try:
            with safe_open(self._model(found), "pt") as file:
                form = json.loads((file.metadata() or {}).get("kind", f'"{Predictor.kind}"'))
            return found, restored(form, safetensors.torch.load(self._model(found).read_bytes()))
        except DAMAGED as error:
            raise BadInput(f"{self._model(found)}: damaged ({error}); restore it from a backup") from None

    def _newest(self, round: int) -> int | None:
        return max((each for each in self._held() if each <= round), default=None)

    def _held(self) -> list[int]:
        return [int(path.stem.partition("-")[2]) for path in self.folder.glob("model-*.safetensors")]

    def _model(self, round: int) -> Path:
        return self.folder / f"model-{round}.safetensors"

    # Requests are answered once: the same question again gets the same bytes again.

    def answered(self, kind: str, digest: str) -> bytes | None:
        """The answer already given to this very request."""
        path = self.folder / f"answer-{kind}"
        with suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
            head, _, body = path.read_bytes().partition(b"\n")
            about = json.loads(head)
            if about["request"] != digest:
                return None
            if kind != "describe":
                return body
            body = (self.folder.parent / DESCRIBED).read_bytes()
            if hashlib.sha256(body).hexdigest() == about["sha256"]:  # else its data have changed: another answer
                return body
        return None

    def answer(self, kind: str, digest: str, body: bytes) -> None:
        """Remember an answer; what is described of many levels is large, so it is kept once for all runs."""
        about = {"request": digest}
        if kind == "describe":
            write_whole(self.folder.parent / DESCRIBED, body)
            about, body = about | {"sha256": hashlib.sha256(body).hexdigest()}, b""
        write_whole(self.folder / f"answer-{kind}", json.dumps(about).encode() + b"\n" + body)


def rebuilt(template: P, named: Mapping[str, Tensor]) -> P:
    """A record like the template, with these tensors."""
    record = built(template, named)
    about, tensors = every_field(template), template.tensors()
    widths = {tensor.shape[-1] for name, tensor in tensors.items() if about[name].has_columns}
    sizes = {"d": widths.pop()} if widths else {}
    check(record, None, rows=1, **sizes)
    return record
