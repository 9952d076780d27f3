"""A progress bar for downloads: file, bytes, speed, time left."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import TransferSpeedColumn as Speed

from coterie.data.fetch import Watch


@contextmanager
def shown(console: Console) -> Iterator[Watch]:
    """What to call as bytes arrive."""
    columns = (TextColumn("{task.description}"), BarColumn(20), DownloadColumn(), Speed(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        jobs: dict[str, TaskID] = {}

        def watch(file: str, have: int, total: int | None) -> None:
            if file not in jobs:
                jobs[file] = bar.add_task(file, total=total)
            bar.update(jobs[file], completed=have, total=total)

        yield watch
