"""Ctrl-C and SIGTERM end a run between two steps of it; where that takes long, or at the second of them, at once."""

import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

STOPPED = 130  # the exit code of a command that was stopped
PATIENCE = 1.5  # seconds: a call of the model may take longer, and Python hears of a signal only after it
SHOW_CURSOR = "\x1b[?25h"  # which a progress bar hides


@contextmanager
def promptly(farewell: str) -> Iterator[None]:
    """Work that may be ended at any moment, since what it has done is on disk; `farewell` is what is then printed."""
    signals, sent = socket.socketpair()
    sent.setblocking(False)
    before = signal.set_wakeup_fd(sent.fileno(), warn_on_full_buffer=False)
    Thread(target=_listen, args=(signals, farewell), daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        sent.close()


def _listen(signals: socket.socket, farewell: str) -> None:
    with signals:
        if not signals.recv(1):
            return  # the work has ended, and nobody asked
        signals.settimeout(PATIENCE)
        try:
            if not signals.recv(1):
                return  # it has ended by itself
        except TimeoutError:
            pass
        cursor = SHOW_CURSOR if sys.stderr.isatty() else ""
        os.write(2, f"{cursor}coterie: {farewell}\n".encode())
        os._exit(STOPPED)
