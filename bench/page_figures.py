"""The figures of a page of results, each with its caption and the command that draws it again."""

from collections.abc import Sequence
from pathlib import Path

from finished_runs import Cell

from coterie.report.static import draw_all, figures
from coterie.report.static_sweep import draw_sweep
from coterie.runs.joined import differing, joined
from coterie.runs.read import read_run

FIGURES = Path("docs/results/figures")  # where the commands on pages draw, wherever the pages are written
SWEEPS = {"amp-dirty": "data.dirty_labels", "amp-dropped": "train.drop", "em-participation": "train.participation"}
BARS = {"acs-figure1", "em-components"}  # figures that are bars, or may be
TRAJECTORIES = {"apple-figure3"}  # figures of all rounds
CAPTIONS = {
    "test-accuracy": "Test accuracy over the rounds, mean over silos",
    "bars": "The score that the paper reports, beside the paper's",
    "silos": "Test accuracy of every silo at the best round",
}


def pictures(name: str, cell: Cell, out: Path) -> list[str]:
    """The figures of the first folder, and of those that have other methods and all else the same."""
    folders = _together(cell)
    run = joined([read_run(folder) for folder in folders])
    folder = "-".join([name, *cell.name.split()])
    target = out / "figures" / folder
    absent = [method for method in cell.methods() if method not in run.methods]
    if absent and not cell.published():
        return []
    kinds = ("heat-map-", "trajectory-") if name in TRAJECTORIES else ("heat-map-",)
    wanted = [figure for figure in figures(run) if figure in CAPTIONS or figure.startswith(kinds)]
    if "published" not in cell.tables[0] or cell.tables[0].get("scale"):
        wanted = [figure for figure in wanted if figure not in ("bars", "silos") or name in BARS]
    target.mkdir(parents=True, exist_ok=True)
    lines = []
    for path in draw_all(run, target, "svg", wanted):
        kind = next((kind for kind in kinds if path.stem.startswith(kind)), "")
        when = "all rounds" if kind == "trajectory-" else "last round"
        caption = CAPTIONS.get(path.stem, f"Weights between silos, {when}: {path.stem.removeprefix(kind)}")
        without = f" (without {', '.join(absent)})" if absent else ""
        lines += [f"![{caption}]({path.relative_to(out).as_posix()})", "", f"{caption}{without}.", ""]
    command = f"coterie figures {' '.join(map(str, folders))} --only {','.join(wanted)} --out {FIGURES / folder}"
    return [*lines, f"    {command}", ""]


def _together(cell: Cell) -> list[Path]:
    """The folders of a cell that one figure can be drawn of."""
    first, seen, folders = cell.tables[0], set[str](), list[Path]()
    for folder, table in zip(cell.folders, cell.tables, strict=True):
        if not differing(first, table) and not seen & table["methods"].keys():
            folders.append(folder)
            seen |= table["methods"].keys()
    return folders


def swept(name: str, cells: Sequence[Cell], others: Sequence[Cell], out: Path) -> list[str]:
    """The scores of all cells against what they differ in, from a cell of another study where that is nought."""
    if name not in SWEEPS or len(cells) < 2:
        return []
    part, key = SWEEPS[name].split(".")
    like = [_setting(cell) for cell in cells]
    begin = [cell for cell in others if cell.tables[0][part].get(key) == 0 and _setting(cell) in like]
    folders = [cell.folders[0] for cell in (*begin, *cells)]
    target = out / "figures" / name
    target.mkdir(parents=True, exist_ok=True)
    drawn = draw_sweep([read_run(folder) for folder in folders], SWEEPS[name], target, "svg")
    command = f"coterie figures {' '.join(map(str, folders))} --sweep {SWEEPS[name]} --out {FIGURES / name}"
    caption = f"BMTA against `{SWEEPS[name]}`"
    return [f"![{caption}]({drawn.relative_to(out).as_posix()})", "", f"{caption}.", "", f"    {command}", ""]


def _setting(cell: Cell) -> tuple[object, ...]:
    """What has to be the same for scores to be comparable."""
    table = cell.tables[0]
    return table["data"]["name"], table["train"]["rounds"], table.get("scale"), cell.methods()
