"""Flower's SuperExec at a silo: from a run's first message on it has everything imported and forks for each; what a run
ships never runs.

A new interpreter would spend some five seconds of a processor on imports for every message. Once no message has come
for long, the program begins anew, without them: PyTorch is most of what a silo that waits would hold in memory.
"""

import gc
import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from flwr.clientapp import ClientApp
from flwr.supercore.constant import TaskType
from flwr.supercore.exit import exit_handler
from flwr.supercore.superexec.executor import factory
from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
from flwr.supercore.superexec.executor.types import ExecutionSpec, LaunchResult
from flwr.supercore.tls import validate_and_resolve_root_certificates
from flwr.supernode.runtime import run_clientapp

from coterie.deploy.flower.commands import TRAINING
from coterie.deploy.flower.pace import Pace, hurry

REST = 600.0  # seconds after a message, until what it needed is given back
PACE = Pace()


class Forking(SubprocessExecutor):
    """Starts the silo's app by a fork, and nothing else ever."""

    launched: float | None = None  # when the last message came

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """Start a process for one message."""
        if spec.task_type != TaskType.CLIENT_APP:
            return LaunchResult.failed("a silo runs no such program")
        gc.freeze()  # what is there stays one copy: a collection would write to every object's page
        if os.fork() == 0:
            answer_one(spec)
        self.launched = time.monotonic()
        PACE.again()
        # The first process imports it itself, and says all the while that it is alive: Flower gives it half a minute.
        silo_app()
        return LaunchResult.accepted()

    def reconcile(self) -> None:
        """Between two looks for messages."""
        if self.launched is not None and time.monotonic() - self.launched > REST:
            os.execv(sys.executable, [sys.executable, *sys.argv])
        super().reconcile()


def silo_app() -> ClientApp:
    """What answers messages; with it comes PyTorch."""
    from coterie.deploy.flower.client_app import app

    return app


def answer_one(spec: ExecutionSpec) -> NoReturn:
    """The forked process: Flower's own code around the silo's own app, whatever the run ships."""
    code = 1
    try:
        with suppress(OSError):
            Path("/proc/self/comm").write_text(TRAINING)
        sys.argv[0] = TRAINING
        for each in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_DFL)
        exit_handler.registered_exit_handlers.clear()  # those of the SuperExec
        run_clientapp.run_clientapp(
            runtime_api_address=spec.runtime_api_address,
            token=spec.token,
            insecure=spec.insecure,
            certificates=validate_and_resolve_root_certificates(spec.root_certificates_path, spec.insecure),
            parent_pid=spec.parent_pid,
        )
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # and not up the stack, which is the SuperExec's


def main() -> None:
    """Stands for Flower's program of that name at a silo."""
    from flwr.supercore.cli import flower_superexec

    hurry()
    loop: Any = import_module("flwr.supercore.superexec.run_superexec")
    loop.time = SimpleNamespace(sleep=PACE.sleep)
    flower: Any = run_clientapp
    flower.install_from_fab = lambda *given, **named: None
    flower.get_project_dir = lambda *given, **named: Path()
    flower.get_load_client_app_fn = lambda **named: lambda *given: silo_app()
    setattr(factory, "SubprocessExecutor", Forking)  # noqa: B010
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # those that have ended leave no trace
    flower_superexec()
