"""Three readers, three parts; what each part shows equals what the run's folder holds."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
from made import SILOS, edited, put_predictions, rows_of
from test_page import Tags

from coterie.measure.measures import PACKAGED, auroc
from coterie.report import figures
from coterie.report.evidence import measures
from coterie.report.in_use import predictions
from coterie.report.page import page_of
from coterie.report.predicted import of_run
from coterie.report.theme import inks
from coterie.runs.read import read_run


@pytest.fixture
def folder(run_folder, tmp_path):
    """A copy of the small run to change."""
    shutil.copytree(run_folder, tmp_path / "run", ignore=shutil.ignore_patterns("models", "report.html"))
    return tmp_path / "run"


def text_of(page):
    return "".join(Tags(page).text)


def two_classes(folder, classes=2, silos=SILOS):
    """Puts made predictions of both methods of the verdict into the folder."""
    verdict = read_run(folder).verdict
    methods = {verdict["judged"]: 2.0, verdict["alone"]: 1.0}
    frame = pd.concat([rows_of(m, s, classes, skill) for m, skill in methods.items() for s in silos], ignore_index=True)
    put_predictions(folder, frame)
    return frame, verdict


def test_every_part_is_there_and_the_navigation_leads_to_it(run_folder):
    tags = Tags((run_folder / "report.html").read_text("utf-8"))
    parts = [attrs["id"] for tag, attrs in tags.tags if attrs.get("class") == "part"]
    assert parts == ["decision", "evidence", "predictions", "training"]
    links = [attrs["href"] for tag, attrs in tags.tags if tag == "a"]
    assert links[:4] == [f"#{part}" for part in parts]


def test_the_study_s_own_measure_is_the_first_column(run_folder):
    run = read_run(run_folder)
    shown = measures(run)
    first = PACKAGED[run.verdict["measure"]].title
    assert f"<th>method</th><th>{first}</th>" in shown
    for name, scores in run.methods.items():
        assert name in shown
        for key, found in scores["measures"].items():
            measure = PACKAGED[key.removesuffix("_raw")]
            assert f">{measure.shown(found['test'])}<" in shown and f">{measure.shown(found['pooled'])}<" in shown
    assert "log-loss, raw" in shown


def test_silos_left_out_of_a_measure_are_named(folder):
    summary = json.loads((folder / "summary.json").read_text("utf-8"))
    for scores in summary["methods"].values():
        scores["measures"]["auroc"]["undefined"] = ["east", "<b>"]
    edited(folder, methods=summary["methods"])
    assert "AUROC is undefined in 2 silos, which its mean leaves out: &lt;b&gt; and east." in measures(read_run(folder))

    for scores in summary["methods"].values():
        scores["measures"]["auroc"]["undefined"] = [f"s{i}" for i in range(40)]
    edited(folder, methods=summary["methods"])
    shown = measures(read_run(folder))
    assert "<summary>AUROC is undefined in 40 silos, which its mean leaves out</summary>" in shown and "s39" in shown


def test_the_evidence_states_splits_seeds_and_multiplicity(folder):
    shown = text_of(page_of(read_run(folder)))
    assert "Benjamini and Hochberg" in shown and "Wilcoxon" in shown
    assert "2 (0 and 1)" in shown and "dealt to the silos by groups" in shown
    assert "20% of the rows to train on for validation" in shown
    text = (folder / "study.toml").read_text("utf-8")
    (folder / "study.toml").write_text(text.replace("[data]", '[data]\ngroup = "patient"\ntime = "day"', 1), "utf-8")
    shown = text_of(page_of(read_run(folder)))
    assert "no patient on two sides" in shown and "test rows are the last by day" in shown


def test_limits_of_a_large_silo_stand_beside_its_shares(folder):
    text = (folder / "study.toml").read_text("utf-8")
    data = "[data]\ntest_share = 0.2\nmost_test = 70000\nmost_validation = 500\n"
    (folder / "study.toml").write_text(text.replace("[data]\n", data, 1), "utf-8")
    shown = text_of(page_of(read_run(folder)))
    assert "20% of each silo's rows for testing, about 70,000 at most" in shown
    assert "rows to train on for validation, about 500 at most" in shown
    by_group = data.replace("[data]\n", '[data]\ngroup = "patient"\n')
    (folder / "study.toml").write_text(text.replace("[data]\n", by_group, 1), "utf-8")
    assert "at most" not in text_of(page_of(read_run(folder))).partition("Design")[2].partition("Every method is")[0]


def test_rows_that_come_split_are_not_said_to_be_split_by_a_share(folder):
    text = (folder / "study.toml").read_text("utf-8")
    data = '[data]\nsplit_column = "part"\ntest_share = 0.2\n'
    (folder / "study.toml").write_text(text.replace("[data]\n", data, 1), "utf-8")
    shown = text_of(page_of(read_run(folder)))
    assert "as the column part has it; where no row of a silo validates, 20% of those to train" in shown
    assert "for testing" not in shown and "rows to train on for validation" not in shown


def test_the_figures_of_use_are_those_of_the_predictions(folder):
    frame, verdict = two_classes(folder)
    shown = predictions(read_run(folder))
    for method in (verdict["judged"], verdict["alone"]):
        for part in (frame, frame[frame["silo"] == "north"]):
            mine = part[part["method"] == method]
            p = mine[["probability_c0", "probability_c1"]].to_numpy()
            y = (mine["label"] == "c1").to_numpy(int)
            assert f">{auroc(y, p):.3f}<" in shown
            both = np.array([[((y == a) & ((p[:, 1] >= 0.5) == b)).sum() for b in (0, 1)] for a in (0, 1)])
            for a in (0, 1):
                cells = "".join(f"<td style='--share:{n / both[a].sum():.2f}'>{n}</td>" for n in both[a])
                assert cells in shown
    tags = Tags(shown)
    assert [t for t in ("All silos together", *SILOS) if t in "".join(tags.text)] == ["All silos together", *SILOS]


def test_the_rows_are_the_test_rows_of_the_first_seed(folder):
    run = read_run(folder)
    for method, found in of_run(run).items():
        rows = pd.read_parquet(folder / "predictions.parquet")
        mine = rows[(rows["method"] == method) & (rows["split"] == "test")]
        seeds = [run.results["seed"].iloc[0]]
        assert len(found.labels) == len(mine[mine["seed"].isin(seeds)])
        assert found.measured()["accuracy"] == pytest.approx(mine[mine["seed"].isin(seeds)]["value"].mean())


def test_of_many_silos_only_all_together_are_drawn(folder):
    two_classes(folder, silos=[f"s{i}" for i in range(31)])
    shown = predictions(read_run(folder))
    assert "All silos together" in shown and ">s30<" not in shown


def test_numbers_are_drawn_against_the_truth(folder):
    two_classes(folder, classes=0)
    shown = predictions(read_run(folder))
    assert "Predicted against true" in shown and "ROC" not in shown and "Residuals" in shown


def test_many_classes_have_their_worst_pairs(folder):
    two_classes(folder, classes=25)
    shown = predictions(read_run(folder))
    assert "pairs confused most" in shown and "ROC" not in shown


@pytest.mark.parametrize("lost", [["split"], ["label", "probability_0"]])
def test_old_folders_still_render(folder, lost):
    frame = pd.read_parquet(folder / "predictions.parquet")
    frame = frame[[c for c in frame.columns if c not in lost and not c.startswith("probability_")]]
    put_predictions(folder, frame)
    summary = json.loads((folder / "summary.json").read_text("utf-8"))
    for scores in summary["methods"].values():
        for key in ("measures", "temperatures", "thresholds"):
            scores.pop(key, None)
    edited(folder, methods=summary["methods"], verdict={"chosen": "fedamp"})
    shown = page_of(read_run(folder))
    assert "id='predictions'" not in shown and "id='training'" in shown


def test_baselines_stand_below_the_methods(folder):
    summary = json.loads((folder / "summary.json").read_text("utf-8"))
    found = {"accuracy": {"test": 0.4321, "pooled": 0.4567, "silos": {}}}
    baselines = {name: {"measures": found} for name in ("boosted <trees>", "majority, pooled")}
    edited(folder, baselines=baselines, methods=summary["methods"])
    shown = measures(read_run(folder))
    assert "boosted &lt;trees&gt;, alone" in shown and "majority, pooled<" in shown
    assert "43.2%" in shown and "45.7%" in shown


def test_bars_and_dots_are_of_the_measure_that_the_verdict_goes_by(folder):
    run = read_run(folder)
    bars = figures.bars(run.methods, inks(run.methods), "auroc")
    dots = figures.silo_distribution(run.methods, inks(run.methods), "auroc")
    own = {method: scores["measures"]["auroc"]["silos"] for method, scores in run.methods.items()}
    assert list(bars.data[0].x) == pytest.approx([np.mean(list(each.values())) for each in own.values()])
    assert [list(box.x) for box in dots.data] == [list(each.values()) for each in own.values()]
    assert bars.layout.xaxis.title.text == dots.layout.xaxis.title.text == "test AUROC"
    plain = figures.bars(run.methods, inks(run.methods), run.by)
    assert list(plain.data[0].x) == [scores["val_picked"] for scores in run.methods.values()]
