"""The scores of several runs against what their studies have different, as a file."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie import toml
from coterie.errors import BadInput
from coterie.personal.export import file_name
from coterie.report.static import legend, line, saved
from coterie.report.table import method_scores
from coterie.report.theme import inks
from coterie.runs.read import Run


def draw_sweep(runs: Sequence[Run], key: str, folder: Path, kind: str) -> Path:
    """The score of each method against a key of the runs' studies, with its spread over seeds."""
    points = sorted(((_looked_up(run.study, key), run) for run in runs), key=lambda point: point[0])
    if len({x for x, _ in points}) < 2:
        raise BadInput(f"--sweep {key}: it is {points[0][0]:g} in every run; give runs that differ in it")
    methods = inks(dict.fromkeys(method for _, run in points for method in run.methods))
    scored = [(x, *method_scores(run.methods, run.by)[:2]) for x, run in points]
    title = method_scores(points[0][1].methods, points[0][1].by)[2]

    def draw(axes: Any) -> None:
        for method, ink in methods.items():
            found = [
                (x, scores[method], spread[method] or 0)
                for x, scores, spread in scored
                if scores.get(method) is not None
            ]
            axes.errorbar(
                *([each[i] for each in found] for i in range(3)),
                label=method,
                marker="o",
                markersize=3.5,
                capsize=2,
                **line(ink),
            )
        axes.set_xticks(sorted({x for x, _ in points}))
        axes.set_xlabel(key)
        axes.set_ylabel(title)
        legend(axes, len(methods))

    return saved(folder / f"sweep-{file_name(key)}.{kind}", (5.2, 3.4), draw)


def _looked_up(study: Mapping[str, Any], key: str) -> float:
    value = toml.flat(study).get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadInput(f"--sweep {key}: the study of a run has no such number; give a key, e.g. train.participation")
    return float(value)
