"""The outcome of a study at the end of a terminal: the table, then the verdict."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from coterie.measure.verdict_words import compact
from coterie.report.notes import notes
from coterie.report.table import summary_table


def show_outcome(summary: Mapping[str, Any], console: Console) -> None:
    """From what `summary.json` holds."""
    methods, verdict = summary["methods"], summary["verdict"]
    reference = verdict["alone"] or next(iter(methods))
    pairs, own = summary["significance"], "data" in summary
    console.print(summary_table(methods, console.width, pairs, reference, verdict, own))
    for line in notes(methods, summary.get("privacy")):
        console.print(Text(line))
    console.print()
    for i, line in enumerate(compact(verdict)):
        console.print(Text(line, "bold" if i == 0 else ""))
    console.print()
