"""Notices a SuperNode that waits for a reply which nobody will give.

Flower answers for a training process that dies over a message, but not for one that dies before it has read it: its
SuperNode would wait for ever, connected and deaf.
"""

import os
from time import monotonic

from coterie.deploy.flower import commands
from coterie.deploy.flower.programs import Program, in_session

IDLE_SECONDS = 90  # Flower itself needs a minute to notice that a process died over a message


class Watchdog:
    """Looks at one start of a SuperNode from outside: its log and its processes."""

    def __init__(self, program: Program) -> None:
        self.program, self.read = program, program.before  # how far its log is read
        self.held, self.since = commands.Unanswered(), monotonic()

    def wedged(self) -> bool:
        """Whether it has held a message for long on which no process works."""
        if not self.held.after(self._new_lines()) or works(self.program):
            self.since = monotonic()
        return monotonic() - self.since > IDLE_SECONDS

    def _new_lines(self) -> str:
        with self.program.log.open("rb") as file:
            if file.seek(0, os.SEEK_END) < self.read:  # it was moved on
                self.read = 0
            file.seek(self.read)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self.read += len(whole)
        return whole.decode(errors="replace")


def works(program: Program) -> bool:
    """Whether a training process of a SuperNode is there."""
    return program.process is not None and in_session(program.process.pid, commands.TRAINING)
