"""Parts of a run that do not need each other, side by side in processes, where that changes no result.

What is too small to be shared out among threads leaves all cores but one idle. So such parts are worked on with one
thread each, in as many processes as PyTorch has threads. A process reports how it stands and leaves its results on the
disk, from where its part also goes on: what goes wrong in it is done again here, where errors are put in words.
"""

import ctypes
import io
import json
import os
import selectors
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn, TypeVar

import torch

T = TypeVar("T")
Report = dict[str, Any]  # as JSON has it
Tell = Callable[[Report], None]
WORTH = 3.0  # seconds that are left, by the slowest part so far: starting a process costs some hundredths of one
DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux's prctl
PRINTED = "printed"


class _Printed(io.TextIOBase):
    """What a process prints, which its parent shows."""

    def __init__(self, tell: Tell) -> None:
        self._hand_on = tell

    def write(self, text: str) -> int:
        self._hand_on({PRINTED: text})
        return len(text)


def spread(
    parts: Sequence[T],
    work: Callable[[T, Tell], None],
    on_report: Callable[[T, Report], None],
    thin: bool,
    weight: Callable[[T], float] = lambda part: 1.0,
) -> None:
    """Work on every part and take its reports; `thin`: whether one thread is as fast, so that parts may go apart.

    The heaviest then begin first.
    """
    waiting, slowest = list(parts), 0.0
    apart, before = thin and _may_fork(), torch.get_num_threads()
    while waiting:
        if apart and min(len(waiting), before) > 1 and slowest * len(waiting) >= WORTH:
            waiting, apart = _forked(sorted(waiting, key=weight, reverse=True), work, on_report, before), False
            continue
        part, began = waiting.pop(0), time.monotonic()
        try:
            torch.set_num_threads(1 if thin else before)
            work(part, partial(on_report, part))
        finally:
            torch.set_num_threads(before)
        slowest = max(slowest, time.monotonic() - began)


def _may_fork() -> bool:
    """Whether a process can be copied with all that it holds: on Linux, without a GPU and its threads."""
    main = threading.current_thread() is threading.main_thread()  # which signals are for
    return sys.platform == "linux" and main and not torch.cuda.is_available()


def _forked(
    parts: Sequence[T], work: Callable[[T, Tell], None], on_report: Callable[[T, Report], None], at_once: int
) -> list[T]:
    """Work on parts in a process each, so many at once; those that are left when one of them fails."""
    waiting, running = list(parts), dict[int, tuple[int, T, bytes]]()  # by pipe: process, part, half a line
    ready = selectors.DefaultSelector()
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                pipe, child = _started(waiting[0], work)
                running[pipe] = child, waiting.pop(0), b""
                ready.register(pipe, selectors.EVENT_READ)
            for key, _ in ready.select():
                child, part, half = running[key.fd]
                got = os.read(key.fd, 1 << 16)
                *lines, half = (half + got).split(b"\n")
                running[key.fd] = child, part, half
                for report in map(json.loads, lines):
                    sys.stderr.write(report[PRINTED]) if PRINTED in report else on_report(part, report)
                if not got:
                    ready.unregister(key.fd)
                    del running[key.fd]
                    os.close(key.fd)
                    if os.waitpid(child, 0)[1]:
                        left = [part, *(each for _, each, _ in running.values()), *waiting]
                        return [each for each in parts if each in left]
        return []
    finally:
        ready.close()
        for pipe, (child, _, _) in running.items():
            os.close(pipe)
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _started(part: T, work: Callable[[T, Tell], None]) -> tuple[int, int]:
    """A process that works on a part: the pipe that it reports by, and its number."""
    here, there = os.pipe()
    parent = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads: the copy calls nothing that they could hold
        child = os.fork()
    if not child:
        _work_and_exit(part, work, there, parent)
    os.close(there)
    return here, child


def _work_and_exit(part: T, work: Callable[[T, Tell], None], pipe: int, parent: int) -> NoReturn:
    """All that a process does; nothing of its parent's is tidied up by it."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)  # which would be the parent's
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal asks all its processes; the parent answers
        ctypes.CDLL(None).prctl(DIES_WITH_PARENT, signal.SIGKILL)
        if os.getppid() == parent:
            torch.set_num_threads(1)  # a copy has lost its threads, and would wait for them
            with open(pipe, "w", encoding="utf-8") as line:

                def tell(report: Report) -> None:
                    line.write(json.dumps(report) + "\n")
                    line.flush()

                sys.stdout = sys.stderr = _Printed(tell)  # the parent's screen may be in the middle of something
                work(part, tell)
            code = 0
    finally:
        os._exit(code)
