"""A command, and the most memory that it and all processes it starts hold at once."""

import os
import subprocess
import tempfile
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MARK = "PEERS_RUN"  # in the environment of a run's processes, also of those that outlive who started them
EVERY = 0.3  # seconds between two looks
OWN = ("Pss_Anon:", "Pss_Shmem:")  # shared pages by their share; without the files of libraries, which others map too


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int | None  # None: it took too long
    out: str
    err: str
    memory: int  # bytes of the machine's memory
    gpu: int | None  # bytes of the GPU's, over what was taken before; None: without a GPU


def run(command: list[object], environment: dict[str, str], patience: float, device: str) -> Done:
    """Run it to its end, or end it and what it has started after so many seconds."""
    mark, memory, began = uuid.uuid4().hex, 0, time.monotonic()
    gpu = _Gpu() if device == "cuda" else None
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(
            [str(part) for part in command], stdout=out, stderr=err, env=environment | {MARK: mark}
        )
        while process.poll() is None and time.monotonic() - began < patience:
            memory = max(memory, sum(_held(pid) for pid in _marked(mark)))
            with suppress(subprocess.TimeoutExpired):
                process.wait(EVERY)
        code = process.poll()
        for pid in _marked(mark):
            with suppress(ProcessLookupError):
                os.kill(pid, 9)
        process.wait()
        out.seek(0), err.seek(0)
        return Done(code, out.read(), err.read(), memory, gpu.end() if gpu else None)


def _marked(mark: str) -> list[int]:
    """The processes of a run."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


def _held(pid: int) -> int:
    """Bytes that a process holds."""
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(OWN))
    return 0


class _Gpu:
    """What is taken of the first GPU's memory, by whomever."""

    def __init__(self) -> None:
        look = ["nvidia-smi", "-i", "0", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--loop-ms=200"]
        self.looking = subprocess.Popen(look, stdout=subprocess.PIPE, text=True)
        self.before = int(self.looking.stdout.readline())

    def end(self) -> int:
        """The most so far over what was taken at the start, in bytes."""
        self.looking.terminate()
        return (max(map(int, self.looking.communicate()[0].split()), default=self.before) - self.before) << 20
