"""Flower's SuperExec at a silo: it has everything imported and forks for each message; what a run ships never runs.

A new interpreter would spend some five seconds of a processor on imports for every message.
"""

import os
import signal
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from flwr.supercore.constant import TaskType
from flwr.supercore.exit import exit_handler
from flwr.supercore.superexec.executor import factory
from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
from flwr.supercore.superexec.executor.types import ExecutionSpec, LaunchResult
from flwr.supercore.tls import validate_and_resolve_root_certificates
from flwr.supernode.runtime import run_clientapp

from coterie.deploy.flower.client_app import app
from coterie.deploy.flower.commands import TRAINING


class Forking(SubprocessExecutor):
    """Starts the silo's app by a fork, and nothing else ever."""

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """Start a process for one message."""
        if spec.task_type != TaskType.CLIENT_APP:
            return LaunchResult.failed("a silo runs no such program")
        if os.fork() == 0:
            answer_one(spec)
        return LaunchResult.accepted()


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

    flower: Any = run_clientapp
    flower.install_from_fab = lambda *given, **named: None
    flower.get_project_dir = lambda *given, **named: Path()
    flower.get_load_client_app_fn = lambda **named: lambda *given: app
    setattr(factory, "SubprocessExecutor", Forking)  # noqa: B010
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # those that have ended leave no trace
    flower_superexec()
