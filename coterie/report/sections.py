"""The sections of the report: each a function from what a study found to HTML, empty where there is nothing to show."""

from collections.abc import Callable, Mapping, Sequence
from html import escape

from coterie.measure.measures import measure_of, rounded
from coterie.measure.significance import ALPHA, smallest_p
from coterie.report import figures
from coterie.report.evidence import measures, verdict
from coterie.report.html import cell, note, plot, section, table, titled
from coterie.report.in_use import predictions, subgroups
from coterie.report.learning import adjusted, who_learns_from_whom
from coterie.report.mixtures import mixtures
from coterie.report.notes import notes
from coterie.report.pairs import less_is_better, significance
from coterie.report.table import Cell, error_of, judged_scores, main_score, summary_cells
from coterie.report.theme import inks
from coterie.runs.read import Run


def scores(run: Run) -> str:
    """The table of methods × measures, and the main one of them as bars."""
    headings, rows = summary_cells(run.methods, run.verdict, run.own)
    error = error_of(run.methods)
    text = (
        f"{headings[0][0].upper()}{headings[0][1:]} is the test score at the round that validation data pick"
        if main_score(run.methods)[0].startswith("val_picked")
        else "Without validation data the last round is judged"
    )
    again = any(each.get("refit_rounds") for each in run.methods.values())
    saved = "were trained again, with these test rows too" if again else "are of that round"
    text += f"; the saved models {saved}."
    if not run.own:
        best = f"Best {error}" if error else "BMTA, the best over rounds of the mean test accuracy over silos,"
        text += (
            f" {best} picks its round on test data, as papers do. Weighted (by test size) and bottom decile (over "
            "silos) are at that round. Round 0, before training, does not count."
        )
    if any("published" in each for each in run.methods.values()):
        text += " Diamonds and the column paper are what the paper reports."
    unit = "" if error else "Accuracies in percent. "
    beside = "".join(note(line) for line in notes(run.methods, run.about.get("privacy")))
    drawn = plot(figures.bars(run.methods, inks(run.methods), run.by))
    return section("Scores", note(f"{unit}{text}") + score_table(headings, rows) + beside + drawn)


def score_table(headings: Sequence[str], rows: Mapping[str, Sequence[Cell]]) -> str:
    """Methods by scores, each with the dot of its colour."""
    body = {name: "".join(cell(each.text, each.best) for each in row) for name, row in rows.items()}
    return table(["method", *headings], body, dots={name: ink.colour for name, ink in inks(rows).items()})


def curves(run: Run) -> str:
    """Accuracy and loss over the rounds."""
    seeds = run.results["seed"].nunique()
    band = f" The band spans the {seeds} seeds, lowest to highest." if seeds > 1 else ""
    text = f"The mean over silos.{band} Click a name to hide it, click it twice to see it alone."
    drawn = ""
    error = error_of(run.methods)
    measured = set(run.results.loc[run.results["split"] == "test", "measure"])
    for measure in dict.fromkeys((str((run.verdict or {}).get("measure")), error or "accuracy")):
        if measure in measured and measure != "loss":  # which has its own figure below
            main = figures.curves(run.results, inks(run.methods), measure)
            drawn += titled(f"Test {measure_of(measure).title}", plot(main))
    losses = ""
    for split, title in (("train", "Training loss"), ("test", "Test loss")):
        found = run.results[(run.results["split"] == split) & (run.results["measure"] == "loss")]
        if len(found):
            losses += f"<div>{titled(title, plot(figures.curves(found, inks(run.methods), 'loss', split)))}</div>"
    return section("Over the rounds", f"{note(text)}{drawn}<div class='figures'>{losses}</div>")


def distribution(run: Run) -> str:
    """Every silo's score, drawn and as a table."""
    scored, _, lower = judged_scores(run.methods, run.by)
    silos = list(dict.fromkeys(silo for each in scored.values() for silo in each))
    rows = {silo: _silo_cells([each.get(silo) for each in scored.values()], lower) for silo in silos}
    drawn = plot(figures.silo_distribution(run.methods, inks(run.methods), run.by))
    shown = table(["silo", *scored], rows, tall=True)
    return section(
        "Over the silos",
        note("Each dot is a silo's test score at the round that is picked for its method, the mean over seeds.")
        + f"{drawn}<details><summary>Every silo as a table</summary>{shown}</details>",
    )


def differences(run: Run) -> str:
    """Which method is significantly better than which."""
    if run.significance is None or run.significance.empty:
        return ""
    silos, pairs = int(run.significance["silos"].min()), len(run.significance)
    text = (
        f"Wilcoxon's signed-rank test over {silos} silos at each method's picked round, Holm's correction over all "
        "pairs."
    )
    if not (run.significance["p_holm"] < ALPHA).any():
        least = smallest_p(silos) * pairs
        why = (
            f": of so few silos and {pairs} pair{'s' * (pairs != 1)} none can be"
            if least >= ALPHA
            else ", all may be chance"
        )
        return section("Significance", note(f"{text} No difference is significant (p < {ALPHA}){why}."))
    text += (
        f" ▲ where the row is significantly better than the column (p < {ALPHA}), ▼ where it is worse; no colour: "
        "may be chance."
    )
    drawn = plot(significance(run.significance, list(run.methods), less_is_better(run)))
    return section("Significance", note(text) + drawn)


def data(run: Run) -> str:
    """What every silo's data holds, and how the tables of own silos differ."""
    body = ""
    if run.differences:
        lines = "".join(f"<li>{escape(line)}</li>" for line in run.differences)
        body += f"<h4>Where the silos' tables differ</h4><ul class='words'>{lines}</ul>"
    if run.labels is not None and not run.labels.empty:
        body += "<h4>Training samples of each label, first seed</h4>" + plot(figures.label_distribution(run.labels))
    return section("The data of the silos", body) if body else ""


def costs(run: Run) -> str:
    """Bytes that crossed the wire, seconds of training, replies that did not count."""
    drawn = ""
    for title, keys in [
        ("Megabytes exchanged, all silos and rounds", {"bytes_up": "up", "bytes_down": "down"}),
        ("Seconds of training", {"train_seconds": "seconds"}),
        ("Replies that did not come", {"missing": "missing"}),
    ]:
        values = [each.get(key) for each in run.methods.values() for key in keys]
        if any(values) or (title.startswith(("Mega", "Sec")) and any(v is not None for v in values)):
            drawn += f"<div>{titled(title, plot(figures.costs(run.methods, inks(run.methods), keys)))}</div>"
    return section("What it cost", f"<div class='figures'>{drawn}</div>") if drawn else ""


def reproduce(run: Run) -> str:
    """The command and the study with every default written back."""
    command, toml, versions = (run.about.get(key) for key in ("command", "toml", "versions"))
    body = f"<pre>{escape(str(command))}</pre>" if command else ""
    if versions:
        used = ", ".join(f"{name} {version}" for name, version in versions.items())
        body += note(f"Computed on {run.about.get('device')} with {used}.")
    if toml:
        body += f"<p>The study, with every default written back:</p><pre>{escape(str(toml))}</pre>"
    return section("How to reproduce", body) if body else ""


# After the decision, a part for each reader: who tests it, who uses the models, who trains them.
PARTS: dict[str, tuple[str, list[Callable[[Run], str]]]] = {
    "evidence": ("The evidence", [verdict, measures, scores, distribution, differences, mixtures]),
    "predictions": ("The predictions", [predictions, subgroups]),
    "training": ("The training", [curves, who_learns_from_whom, adjusted, data, costs, reproduce]),
}


def _silo_cells(values: Sequence[float | None], lower: bool) -> str:
    texts = ["-" if v is None else rounded(v, 4) if lower or abs(v) <= 1 else f"{v:.2f}" for v in values]
    known = [v for v in values if v is not None]
    best = texts[values.index((min if lower else max)(known))]
    return "".join(cell(text, text == best) for text in texts)
