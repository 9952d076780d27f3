"""The figures of a run as files for papers and pages, drawn with matplotlib in the report's colours."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from pandas import Series

from coterie.errors import BadInput
from coterie.measure.measures import measure_of
from coterie.measure.metrics import main_measure
from coterie.measure.significance import ALPHA
from coterie.measure.verdict_words import ranked, unit
from coterie.personal.export import file_name
from coterie.report.clusters import Array, network, together
from coterie.report.collaboration import largest_between
from coterie.report.figures import COLOURS
from coterie.report.pairs import less_is_better, marked, matrix
from coterie.report.series import class_counts, curve
from coterie.report.table import judged_scores, method_scores
from coterie.report.theme import PALETTE, Ink, group_colour, inks
from coterie.report.trajectories import Trajectory, trajectories
from coterie.runs.read import Run

FORMATS = ("svg", "png", "pdf")
DASHES = {"solid": "-", "dot": ":", "dashdot": "-.", "longdash": (0, (7, 3))}
STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e8ea",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "coterie",  # the same run, the same bytes
    "savefig.dpi": 200,
    "savefig.bbox": "tight",
    "figure.constrained_layout.use": True,
}
UNDATED: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
MANY_SILOS = 50  # whose points are a picture: as shapes they make files large
MOST_TICKS = 40
Draw = Callable[[Any], None]  # draws on a matplotlib Axes


def draw_all(run: Run, folder: Path, kind: str, only: Sequence[str] | None = None) -> list[Path]:
    """Every figure that a run has something for, or those of these names; the files that were written."""
    if not run.methods:
        raise BadInput("there are no results yet; figures need those of at least one method")
    found = figures(run)
    if unknown := [name for name in only or () if name not in found]:
        raise BadInput(f"--only {unknown[0]}: this run has no such figure; it has {', '.join(found)}")
    chosen = found if only is None else {name: found[name] for name in only}
    return [saved(folder / f"{name}.{kind}", size, draw) for name, (size, draw) in chosen.items()]


def figures(run: Run) -> dict[str, tuple[tuple[float, float], Draw]]:
    """What a run has something for: names, sizes in inches, and how to draw them."""
    return {name: (size, draw) for name, size, draw in _figures(run)}


def _figures(run: Run) -> Iterator[tuple[str, tuple[float, float], Draw]]:
    """Names, sizes in inches, and how to draw them."""
    colours, count, plain = inks(run.methods), len(run.methods), main_measure(run.results)
    for split, what in dict.fromkeys([("test", run.by or plain), ("test", plain), ("train", "loss"), ("test", "loss")]):
        if ((run.results["split"] == split) & (run.results["measure"] == what)).any():
            yield f"{split}-{what}", (5.6, 3.4), partial(_curves, run=run, measure=what, split=split, colours=colours)
    yield "bars", (1.2 + 0.42 * count, 3.2), lambda axes: _bars(axes, run, colours)
    yield "silos", (5.2, 0.8 + 0.3 * count), lambda axes: _distribution(axes, run, colours)
    if run.verdict is not None and run.verdict["silos"]:
        found = run.verdict
        yield "gains", (5.2, 0.8 + 0.18 * len(found["silos"])), partial(_gains, found=found)
    if run.labels is not None and len(run.labels):
        labels = run.labels
        yield "labels", (6.4, 3.0), lambda axes: _labels(axes, class_counts(labels))
    if run.significance is not None and len(run.significance):
        side = 1.6 + 0.3 * count
        better, p = matrix(run.significance, list(run.methods), less_is_better(run))
        yield "significance", (side + 0.6, side), lambda axes: _significance(axes, better, p, list(run.methods))
    for method, trace in run.traces.items():
        yield from weight_figures(file_name(method), trace)


def weight_figures(name: str, trace: Mapping[str, Array]) -> Iterator[tuple[str, tuple[float, float], Draw]]:
    """Who learns from whom, and what a method adjusts over the rounds; `name` is the method's."""
    silos = [str(silo) for silo in trace["silos"]]
    if "collaboration" in trace:
        last, groups = trace["collaboration"][-1], trace.get("groups", np.zeros(len(silos)))
        yield f"heat-map-{name}", (4.6, 3.8), lambda axes: _heat_map(axes, last, silos, groups)
        yield f"graph-{name}", (4.4, 4.0), lambda axes: _graph(axes, last, silos)
    if "rounds" in trace:
        for i, found in enumerate(trajectories(trace), 1):
            yield f"trajectory-{name}-{i}", (4.8, 3.0), partial(_trajectory, each=found)


def _curves(axes: Any, run: Run, measure: str, split: str, colours: Mapping[str, Ink]) -> None:
    curves = {
        (method, suffix): found
        for method, suffix in product(colours, ("", "_cloud"))
        if not (found := curve(run.results, method, measure + suffix, split)).empty
    }
    means = [found["mean"] for found in curves.values()]
    floor = _floor(means) if measure == "accuracy" else -np.inf
    for (method, suffix), found in curves.items():
        ink, name = colours[method], method + (" (cloud)" if suffix else "")
        style = line(ink) if not suffix else {**line(ink), "linestyle": "--", "linewidth": 0.9}
        unseen = bool(found["mean"].max() < floor)
        axes.plot(found.index, found["mean"], label=name + " (below)" * unseen, **style)
        if (found["high"] > found["low"]).any() and not suffix:
            axes.fill_between(found.index, found["low"], found["high"], color=ink.colour, alpha=0.15, linewidth=0)
    if measure == "accuracy":
        top = max(found.max() for found in means)
        axes.set_ylim(floor, top + 0.05 * (top - floor))
    axes.set_xlabel("round")
    title = measure if measure == "loss" else measure_of(measure).title
    axes.set_ylabel(f"{'training' if split == 'train' else split} {title}{', %' * (measure == 'accuracy')}")
    legend(axes, len(colours))


def _floor(curves: Sequence[Series]) -> float:
    """Where an axis of accuracies begins, lest the first rounds or one poor method flatten all the rest.

    Of the later half of the rounds, what is much farther below the middle than the best is above it is cut off.
    """
    late = np.concatenate([found[found.index >= found.index.max() / 2].dropna() for found in curves])
    middle = float(np.median(late))
    least = late[late >= middle - 3 * max(late.max() - middle, 1)].min()
    return float(least - 0.1 * (late.max() - least) - 0.5)


def _bars(axes: Any, run: Run, colours: Mapping[str, Ink]) -> None:
    scores, deviations, title = method_scores(run.methods, run.by)
    places = np.arange(len(run.methods))
    spread = [each or 0 for each in deviations.values()]
    heights = [np.nan if each is None else each for each in scores.values()]
    shades = [colours[method].colour for method in run.methods]
    axes.bar(places, heights, color=shades, yerr=spread if any(spread) else None, capsize=3)
    published = [(i, s["published"]) for i, s in enumerate(run.methods.values()) if s.get("published") is not None]
    if published:
        axes.plot(*zip(*published, strict=True), "D", color="white", markeredgecolor="black", label="paper")
        legend(axes, 1)
    axes.set_xticks(places, list(run.methods), rotation=45, ha="right", rotation_mode="anchor")
    axes.grid(axis="x", visible=False)
    axes.set_ylabel(title)


def _distribution(axes: Any, run: Run, colours: Mapping[str, Ink]) -> None:
    rng = np.random.default_rng(0)
    scored, title, _ = judged_scores(run.methods, run.by)
    for i, (method, silos) in enumerate(scored.items()):
        values = [value for value in silos.values() if np.isfinite(value)]
        colour = colours[method].colour
        axes.boxplot(
            values, positions=[i], orientation="horizontal", widths=0.55, showfliers=False,
            boxprops={"color": colour}, whiskerprops={"color": colour}, capprops={"color": colour},
            medianprops={"color": colour, "linewidth": 2},
        )  # fmt: skip
        places = i + rng.uniform(-0.16, 0.16, len(values))
        many = len(values) > MANY_SILOS
        axes.plot(values, places, "o", color=colour, markersize=2.5, alpha=0.7, rasterized=many)
    axes.set_yticks(range(len(run.methods)), list(run.methods))
    axes.invert_yaxis()
    axes.set_xlabel(title)


def _gains(axes: Any, found: Mapping[str, Any]) -> None:
    shown = [each for each in ranked(found["silos"]) if each["gain"] is not None]
    for i, each in enumerate(shown):
        colour = COLOURS[each["outcome"]]
        ends = [each["gain"] if each[end] is None else each[end] for end in ("low", "high")]
        axes.plot(ends, [i, i], color=colour, linewidth=1.2)
        axes.plot(each["gain"], i, "o", color=colour, markersize=4)
    axes.axvline(0, color="#5b6570", linewidth=0.8)
    ticks(axes, "y", [each["silo"] for each in shown])
    axes.invert_yaxis()
    axes.set_xlabel(f"gain of {found['judged']} over {found['alone']}{',' * bool(unit(found))}{unit(found)}")


def _labels(axes: Any, counts: Any) -> None:
    cells, names = counts.to_numpy(dtype=float).T, [str(name) for name in counts.columns]
    silos = [str(silo) for silo in counts.index]
    image(axes, cells, silos, names, "training samples", aspect="auto", cmap="viridis")
    axes.set_ylabel("label")


def _significance(axes: Any, better: Any, p: Any, methods: list[str]) -> None:
    shown, largest = marked(better, p)
    image(axes, shown, methods, methods, "row over column", 0.8, cmap="RdBu", vmin=-largest, vmax=largest)
    for i, j in zip(*np.nonzero(p < ALPHA), strict=True):
        axes.text(j, i, "+" if better[i, j] > 0 else "−", ha="center", va="center")


def _heat_map(axes: Any, weights: Array, silos: list[str], groups: Array) -> None:
    """Silos that weigh each other most stand together; where their true groups are known, these come first."""
    from matplotlib.colors import Normalize, PowerNorm

    order = sorted(together(weights), key=lambda silo: groups[silo])
    most, signed = largest_between(weights[None])
    norm = (
        Normalize(-most, most) if signed else PowerNorm(0.5, 0, most)
    )  # a root, for those that are weak beside a pair
    names = [silos[i] for i in order]
    image(axes, weights[order][:, order], names, names, "weight", 0.85, cmap="RdBu" if signed else "viridis", norm=norm)
    for end in np.flatnonzero(np.diff(groups[order])):
        axes.axhline(end + 0.5, color="white", linewidth=0.6)
        axes.axvline(end + 0.5, color="white", linewidth=0.6)
    axes.set_xlabel(f"from {axes.get_xlabel()}".rstrip())
    axes.set_ylabel(f"to {axes.get_ylabel()}".rstrip())


def _graph(axes: Any, weights: Array, silos: list[str]) -> None:
    found = network(weights)
    for i, j, weight in found.edges:
        axes.plot(*found.places[[i, j]].T, color="#808890", alpha=0.5, linewidth=0.6 + 4 * weight, zorder=1)
    colours = [group_colour(group) for group in found.groups]
    axes.scatter(*found.places.T, c=colours, s=60, zorder=2, edgecolors="white")
    if len(silos) <= MOST_TICKS:
        for place, name, above in zip(found.places, silos, found.named_above(), strict=True):
            beside = {"xytext": (0, 6 if above else -6), "va": "bottom" if above else "top", "ha": "center"}
            axes.annotate(text(name), place, textcoords="offset points", fontsize=7, **beside)
    axes.set_axis_off()
    axes.set_aspect("equal")


def _trajectory(axes: Any, each: Trajectory) -> None:
    shown = [(name, values) for name, values, silo in each.lines if silo in (None, 0)]
    for i, (name, values) in enumerate(shown):
        axes.plot(each.rounds, values, color=PALETTE[i % len(PALETTE)], linewidth=1.2, label=text(name))
    axes.set_xlabel("round")
    axes.set_title(each.title + (f" ({text(each.silos[0])})" if each.silos else ""), fontsize=9, loc="left")
    if each.silos:
        axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0)


def ticks(axes: Any, side: str, names: Sequence[str]) -> None:
    """Names along an axis; of too many none, but how many there are."""
    put = axes.set_xticks if side == "x" else axes.set_yticks
    if len(names) > MOST_TICKS:
        put([])
        (axes.set_xlabel if side == "x" else axes.set_ylabel)(f"{len(names)} silos")
    else:
        put(range(len(names)), [text(name) for name in names], rotation=90 if side == "x" else 0, fontsize=7)


def image(
    axes: Any, cells: Array, across: Sequence[str], down: Sequence[str], of: str, shrink: float = 1, **style: Any
) -> None:
    """A cell for each pair of names, and beside it what its colours are of."""
    drawn = axes.imshow(cells, **style)
    axes.figure.colorbar(drawn, ax=axes, label=of, pad=0.02, shrink=shrink)
    ticks(axes, "x", across)
    ticks(axes, "y", down)
    axes.grid(visible=False)


def text(name: str) -> str:
    """A name that matplotlib does not read as mathematics, cut when very long."""
    return (name if len(name) <= 24 else name[:23] + "…").replace("$", r"\$")


def line(ink: Ink) -> dict[str, Any]:
    return {"color": ink.colour, "linestyle": DASHES[ink.dash], "linewidth": 1.5}


def legend(axes: Any, count: int) -> None:
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0, fontsize=8, ncols=1 + count // 16)


def saved(path: Path, size: tuple[float, float], draw: Draw) -> Path:
    """Draw a figure to a file: without a window, and without a trace in the user's settings."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise BadInput("figures need matplotlib, which is not installed here: pip install matplotlib") from None
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=size)
        draw(figure.add_subplot())
        path.parent.mkdir(parents=True, exist_ok=True)  # not before: what is refused leaves no folder
        figure.savefig(path, metadata=UNDATED[path.suffix[1:]])
    return path
