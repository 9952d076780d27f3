"""How a run between real silos looks while it goes on: in place on a terminal, a line for every change elsewhere."""

import time
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from coterie.deploy.flower.monitoring import reply, silent
from coterie.measure.measures import shown_score

STYLES = {"no answer yet": "yellow", "asked …": "dim", "replied": "green"}


class View:
    """Shows what is in `progress.json`."""

    def __init__(self, console: Console) -> None:
        self.console, self.last, self.began = console, "", time.monotonic()
        self.live = Live(console=console, auto_refresh=False) if console.is_terminal else None

    def __enter__(self) -> "View":
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.live is not None:
            self.live.stop()

    def __call__(self, news: dict[str, Any], connections: dict[str, str] | None = None) -> None:
        """Show the latest."""
        if self.live is not None:
            self.live.update(picture(news, connections or {}, time.monotonic() - self.began), refresh=True)
            return
        shown = "\n".join([*(f"{name}: {state}" for name, state in (connections or {}).items()), line(news)])
        if shown != self.last:
            self.console.print(shown, highlight=False, markup=False, soft_wrap=True)
            self.last = shown


def picture(news: dict[str, Any], connections: dict[str, str], seconds: float) -> RenderableType:
    """Where the run is, and every silo."""
    parts: list[RenderableType] = []
    if news:
        head = Table.grid(padding=(0, 2))
        cells: list[RenderableType] = [escape(_what(news))]
        if "rounds" in news:
            cells += [ProgressBar(total=news["rounds"], completed=news["round"], width=20)]
            cells += [f"{news['round']}/{news['rounds']} rounds"]
        minutes, rest = divmod(int(seconds), 60)
        cells += [escape(str(news.get("state", "asked"))), _score(news), f"{minutes}:{rest:02}"]
        head.add_row(*(cell for cell in cells if cell))
        parts.append(head)
    names = dict.fromkeys([*connections, *news.get("silos", {}), *news.get("absent", {})])
    if names:
        table = Table(box=None, pad_edge=False)
        for heading in ("silo", *(["connection"] if connections else []), *(["this round"] if news else [])):
            table.add_column(heading)
        for name in names:
            cells = [escape(name)]
            cells += [escape(connections.get(name, ""))] if connections else []
            cells += [_reply(news, name)] if news else []
            table.add_row(*cells)
        parts.append(table)
    return Group(*parts)


def line(news: dict[str, Any]) -> str:
    """All of it in one line."""
    parts = [str(news.get("state", "asked"))]
    if "method" in news:
        parts.append(f"{_what(news)}, round {news['round']}/{news['rounds']}")
    if _score(news):
        parts.append(_score(news))
    silos = news.get("silos", {})
    missing = {name: why for name, why in silos.items() if why}
    if silos:
        parts.append(f"{len(silos) - len(missing)} of {len(silos)} silos replied")
    parts += [f"{name}: {why}" for name, why in (missing | news.get("absent", {})).items()]
    if silent(news):
        parts.append(f"no answer yet from {', '.join(silent(news))}")
    if news.get("restarts"):
        parts.append(f"restarted {news['restarts']}×")
    return " · ".join(parts)


def _what(news: dict[str, Any]) -> str:
    return f"{news['method']}, seed {news['seed']}" if "method" in news else "run"


def _score(news: dict[str, Any]) -> str:
    """The latest mean over silos on test data."""
    return shown_score(news.get("measure", ""), news.get("score"))


def _reply(news: dict[str, Any], name: str) -> Text:
    """What a silo did when last asked."""
    text = reply(news, name)
    return Text(text, STYLES.get(text, "red" if text else ""))
