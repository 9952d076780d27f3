"""A fuzz test: so many generated inputs, each within seconds and megabytes, each answered or refused in one line."""

import functools
import os
import resource
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings

from coterie.errors import BadInput

SCALE = float(os.environ.get("FUZZ", "0"))  # 0: the same inputs every time; below 1: a share; N: N times, drawn anew
SECONDS = 60  # that one input may take on a machine that is busy with something else
MEMORY = 1 << 30  # bytes that one input may make the process grow by
LONGEST = 20_000  # characters of an error
RAM = Path("/dev/shm")

PLANNED: dict[str, int] = {}
DONE: Counter[str] = Counter()


class Hang(BaseException):
    """An input that took too long; no `except Exception` swallows it."""


def fuzz(inputs: int, *strategies: Any, memory: int = MEMORY) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test on so many generated inputs (`FUZZ=N`: on N times as many, at random; `FUZZ=0.2`: on a fifth)."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        name = f"{test.__module__}.{test.__name__}"
        PLANNED[name] = inputs

        @functools.wraps(test)
        def counted(*args: Any, **kwargs: Any) -> None:
            DONE[name] += 1
            with within(SECONDS), bounded(memory):
                test(*args, **kwargs)

        chosen = settings(
            max_examples=round(inputs * (SCALE or 1)),
            derandomize=SCALE < 1,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.explicit, Phase.generate, Phase.shrink],
        )
        made: Callable[..., None] = chosen(given(*strategies)(counted))
        return made

    return decorate


def survives(act: Callable[[], Any]) -> Any:
    """What it makes of its input, or None where it is refused with a line for people; any other error fails."""
    try:
        return act()
    except BadInput as error:
        said = str(error)
        assert said.strip() and len(said) <= LONGEST
        return None


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise where it takes longer."""

    def ring(*_: object) -> None:
        raise Hang(f"took more than {seconds} seconds")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def bounded(growth: int) -> Iterator[None]:
    """An allocation that would make this process grow by more fails, whether or not it would ever be touched."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + growth, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder that is gone afterwards; in memory where the system has such a place, since there are thousands."""
    with tempfile.TemporaryDirectory(prefix="coterie-fuzz-", dir=RAM if RAM.is_dir() else None) as folder:
        yield Path(folder)
