"""Pages of results made from the folders of runs (bench/results.py)."""

import json
import re
import shutil
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import finished_runs
import numpy as np
import page_parts
import pandas as pd
import papers
import pytest
import results
import run_coverage
from command import call
from keep import keep, replace_older

from coterie import toml
from coterie.data.corrupt import dirty_silos
from coterie.data.npz import read_npz
from coterie.errors import BadInput
from coterie.studies.study import check, override, read, select

PAGES = Path(__file__).parents[1] / "docs" / "results"
SILOS = [f"silo-{i}" for i in range(8)]


def scores(by_seed: dict[int, float], **more: Any) -> dict[str, Any]:
    """What a summary has of a method."""
    mean = sum(by_seed.values()) / len(by_seed)
    per_seed = [
        {"seed": seed, "bmta": bmta, "val_picked": bmta - 1, "train_seconds": 9} for seed, bmta in by_seed.items()
    ]
    per_silo = {silo: mean + i / 10 for i, silo in enumerate(SILOS)}
    return {"bmta": mean, "per_seed": per_seed, "per_silo": per_silo, **more}


def run(folder: Path, methods: dict[str, Any], cell: str = "fmnist", **train: Any) -> Path:
    """The folder of a run of FedAMP's Table 3."""
    table = select(read("amp-table3"), cell)
    table["train"] = {**table["train"], **train}
    folder.mkdir(parents=True)
    (folder / "study.toml").write_text(toml.dumps(check(table, list(methods)).as_table()), "utf-8")
    summary = {
        "command": f"coterie run amp-table3 --data {cell}",
        "device": "cuda (H200)",
        "versions": {"torch": "2.13"},
    }
    summary |= {"study": "amp-table3", "seconds": 120.0, "methods": methods}
    (folder / "summary.json").write_text(json.dumps(summary), "utf-8")
    rows = [(method, 0, round, silo) for method in methods for round in range(3) for silo in SILOS]
    results = pd.DataFrame(rows, columns=["method", "seed", "round", "silo"])
    results = results.assign(split="test", measure="accuracy", value=0.5 + results["round"] / 10)
    results.to_parquet(folder / "results.parquet")
    return folder


def made(out: Path, *folders: Path) -> str:
    ((name, cells),) = finished_runs.read(folders).items()
    return results.page(name, cells, out)


def row(page: str, method: str) -> list[str]:
    """The first line of a table that begins with a method."""
    return [each.strip() for each in re.search(rf"^\| {method} \|(.*)\|$", page, re.MULTILINE)[1].split("|")]  # type: ignore[index]


def test_a_cell_is_set_beside_its_paper_and_folders_of_other_seeds_are_joined(tmp_path: Path) -> None:
    first = {"separate": scores({0: 86.0}), "fedamp": scores({0: 93.0}, within_group=99.0, within_group_least=95.5)}
    page = made(
        tmp_path,
        run(tmp_path / "a", first, rounds=40),
        run(tmp_path / "b", {"separate": scores({1: 88.0}), "fedamp": scores({1: 94.0})}),
    )
    assert row(page, "fedamp") == ["90.97", "93.50 ± 0.71", "+2.53", "92.50 ± 0.71", "9 ± 0"]
    assert row(page, "separate")[:3] == ["86.73", "87.00 ± 1.41", "+0.27"]
    assert "No method is short of the paper." in page and "cuda (H200); torch 2.13; 2.0 minutes" in page
    assert "    coterie run amp-table3 --data fmnist" in page
    left_out = "without fedavg, fedprox, fedavg-ft, fedprox-ft, scaffold, apfl, heurfedamp"
    assert f"Otherwise than in the study: {left_out}; train.rounds = 40 (study: 100)." in page
    assert f"Otherwise than in the study: {left_out}." in page
    assert "| fedamp | separate | +6.50 | 0.0078 | 0.0078 |" in page
    assert "own group, last round: fedamp 99.0% (of the silo with the least 95.5%)" in page
    assert "Not run: mnist, emnist, cifar100." in page


def test_where_no_paper_has_a_method_each_is_paired_with_one_model_for_all_and_with_training_alone(
    tmp_path: Path,
) -> None:
    methods = {"separate": scores({0: 61.0}), "fedavg": scores({0: 61.0}), "fedper": scores({0: 64.5})}
    folder = run(tmp_path / "a", methods)
    table = pd.read_parquet(folder / "results.parquet")
    table["value"] += (table["method"] == "fedper") * table["silo"].map(SILOS.index) / 100  # 0 to 7 points ahead
    table.to_parquet(folder / "results.parquet")
    ((cell,),) = (its.values() for its in finished_runs.read([folder]).values())
    lines = page_parts.paired("heads", cell)
    assert lines[0].startswith("Paired over 8 silos") and lines[4:-1] == [
        "| separate | fedavg | +0.00 | +0.00 to +0.00 | 1 | 1 |",
        "| fedper | fedavg | +3.50 | +1.45 to +5.55 | 0.016 | 0.047 |",
        "| fedper | separate | +3.50 | +1.45 to +5.55 | 0.016 | 0.047 |",
    ]
    assert page_parts.paired("amp-table3", cell) == []  # its own methods have a table
    del cell.summaries[0]["methods"]["separate"], cell.summaries[0]["methods"]["fedavg"]
    assert page_parts.paired("heads", cell) == []


def test_cells_are_set_side_by_side_and_what_falls_short_is_said(tmp_path: Path) -> None:
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "amp-table3.md").write_text("What was tried.\n", "utf-8")
    page = made(
        tmp_path,
        run(tmp_path / "m", {"fedamp": scores({0: 97.0})}, "mnist"),
        run(tmp_path / "f", {"fedamp": scores({0: 93.0}), "separate": scores({0: 80.0})}),
    )
    assert "| method | fmnist | mnist |" in page  # in the study's order
    assert row(page, "fedamp") == ["93.00 (paper 90.97)", "97.00 (paper 97.59)"]
    assert row(page, "separate") == ["80.00 (paper 86.73)", "-"]
    assert "Short of the paper: separate (-6.73)." in page and "Short of the paper: fedamp (-0.59)." in page
    assert "What was tried." in page


def test_methods_of_other_folders_are_set_beside_their_paper_too(tmp_path: Path) -> None:
    page = made(
        tmp_path,
        run(tmp_path / "a", {"separate": scores({0: 86.0}), "fedamp": scores({0: 93.0})}),
        run(tmp_path / "b", {"heurfedamp": scores({0: 90.0})}),
    )
    assert row(page, "heurfedamp")[:3] == ["91.37", "90.00", "-1.37"]
    assert "Short of the paper: separate (-0.73), heurfedamp (-1.37)." in page
    left_out = "without fedavg, fedprox, fedavg-ft, fedprox-ft, scaffold, apfl"
    command = "    coterie run amp-table3 --data fmnist\n"
    times = "seed 0; cuda (H200); torch 2.13; 2.0 minutes, 2.0 minutes."
    assert f"{2 * command}\n{times}\nOtherwise than in the study: {left_out}." in page
    assert "Test accuracy over the rounds, mean over silos." in page  # of both folders
    drawn = (tmp_path / "figures" / "amp-table3-fmnist" / "bars.svg").read_text("utf-8")
    assert all(method in drawn for method in ("separate", "fedamp", "heurfedamp"))


def test_a_figure_is_not_drawn_of_folders_that_differ_in_more_than_methods(tmp_path: Path) -> None:
    page = made(
        tmp_path,
        run(tmp_path / "a", {"separate": scores({0: 86.0}), "fedamp": scores({0: 93.0})}),
        run(tmp_path / "b", {"heurfedamp": scores({0: 90.0})}, rounds=40),
    )
    assert "Test accuracy over the rounds, mean over silos (without heurfedamp)." in page


def test_figures_are_drawn_beside_the_page_with_their_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, out = run(tmp_path / "a", {"fedamp": scores({0: 93.0})}), tmp_path / "out"
    summary = json.loads((folder / "summary.json").read_text("utf-8"))
    (folder / "summary.json").write_text(json.dumps(summary | {"seconds": None}), "utf-8")  # as of a resumed run
    page = made(out, folder)
    assert "torch 2.13; time not known: resumed." in page
    assert "![Test accuracy over the rounds, mean over silos](figures/amp-table3-fmnist/test-accuracy.svg)" in page
    command = re.search(r"^    coterie (figures .*)$", page, re.MULTILINE)[1].split()  # type: ignore[index]
    drawn = {path.name: path.read_bytes() for path in (out / "figures" / "amp-table3-fmnist").iterdir()}
    assert set(drawn) == {"test-accuracy.svg", "bars.svg", "silos.svg"}
    assert str(out) not in page  # but where the pages are kept
    monkeypatch.chdir(tmp_path)
    assert call(*command) == 0  # what is printed under a figure draws it again
    again = tmp_path / "docs" / "results" / "figures" / "amp-table3-fmnist"
    assert {path.name: path.read_bytes() for path in again.iterdir()} == drawn


def test_clean_and_dirty_silos_are_told_apart(tmp_path: Path) -> None:
    folder = run(tmp_path / "a", {"fedamp": scores({0: 93.0})})
    dirty = dict(zip(SILOS, dirty_silos(len(SILOS), 0.4, 0), strict=True))
    assert set(dirty.values()) == {True, False}
    results = pd.read_parquet(folder / "results.parquet")
    results["value"] -= (results["round"] == 2) * results["silo"].map(dirty) * 0.4  # dirty: 60, then 30 in the end
    results.to_parquet(folder / "results.parquet")
    assert "labels are dirty" not in made(tmp_path, folder)
    text = (folder / "study.toml").read_text("utf-8")
    (folder / "study.toml").write_text(text.replace("dirty = 0.0", "dirty = 0.4"), "utf-8")
    page = made(tmp_path, folder)
    assert "| fedamp | 70.0 | 70.0 | 60.0 | 30.0 |" in page


def test_a_kept_run_makes_the_page_of_the_whole_one(tmp_path: Path) -> None:
    methods = {"fedamp": scores({0: 93.123456}, per_silo_cloud={"silo-0": 1.0}), "separate": scores({0: 80.0})}
    folder = run(tmp_path / "a", methods)
    summary = json.loads((folder / "summary.json").read_text("utf-8"))
    typed = "coterie run amp-table3 --out /somewhere --data fmnist --set data.path=here --quiet"
    summary |= {"command": typed, "verdict": {"silos": []}}
    study = tomllib.loads((folder / "study.toml").read_text("utf-8"))
    study["data"]["path"] = "here"
    (folder / "study.toml").write_text(toml.dumps(study), "utf-8")
    (folder / "summary.json").write_text(json.dumps(summary), "utf-8")
    pd.DataFrame({"silo": SILOS, "label": "0", "count": 9}).to_parquet(folder / "labels.parquet")
    results = pd.read_parquet(folder / "results.parquet")
    pd.concat([results, results.assign(split="validation")]).to_parquet(folder / "results.parquet")
    (folder / "collaboration").mkdir()
    weights = {"silos": np.array(SILOS), "groups": np.arange(8) % 2, "collaboration": np.eye(8)[None].repeat(3, 0)}
    np.savez(folder / "collaboration" / "fedamp.npz", **weights, rounds=np.arange(1, 4))
    keep(folder, tmp_path / "kept")
    whole, kept = made(tmp_path / "one", folder), made(tmp_path / "two", tmp_path / "kept")
    assert row(kept, "fedamp") == row(whole, "fedamp") and "    coterie run amp-table3 --data fmnist\n" in kept
    assert "data.path = here" in whole and "data.path" not in kept
    assert "verdict" not in (tmp_path / "kept" / "summary.json").read_text("utf-8")
    assert set(pd.read_parquet(tmp_path / "kept" / "results.parquet")["split"]) == {"test"}
    assert read_npz(tmp_path / "kept" / "collaboration" / "fedamp.npz")["collaboration"].shape == (1, 8, 8)


def test_a_best_round_on_the_server_has_its_last_beside_it(tmp_path: Path) -> None:
    methods = {"fedamp": scores({0: 93.0})}
    methods["fedamp"]["per_seed"][0]["bmta_cloud"] = 78.05  # of a time when the last was not in the summary
    folder = run(tmp_path / "a", methods)
    results = pd.read_parquet(folder / "results.parquet")
    cloud = results.assign(measure="accuracy_cloud", value=0.5 - results["round"] / 10)
    pd.concat([results, cloud]).to_parquet(folder / "results.parquet")
    page = made(tmp_path, folder)
    assert "| cloud BMTA | cloud last |" in page and row(page, "fedamp")[-3:-1] == ["78.05", "30.00"]


def test_what_is_no_run_or_given_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="not the folder of a finished run"):
        finished_runs.read([tmp_path])
    with pytest.raises(BadInput, match="fedamp with seed 0 is in another folder as well"):
        finished_runs.read([run(tmp_path / each, {"fedamp": scores({0: 93.0})}) for each in ("a", "b")])


def old(name: str, cell: str, rounds: int) -> list[str]:
    """How a run differs from its study that was made before the study's newest keys were."""
    table = check(select(read(name), cell)).as_table()
    later = {"schedule_rounds", "mean", "deviation", *(["test"] if cell == "synthetic" else [])}
    for part in ("train", "data"):
        table[part] = {key: each for key, each in table[part].items() if key not in later}
    table["train"]["rounds"] = rounds
    return finished_runs.differences(table)


def test_a_run_that_was_made_before_a_key_was_differs_where_the_study_has_another_value() -> None:
    assert old("amp-table3", "fmnist", 40) == ["train.rounds = 40 (study: 100)"]  # the rate is constant
    assert old("em-table2", "synthetic", 200) == ["data.test = 0 (study: 5000)"]
    found = old("em-table2", "cifar10", 40)
    assert "data.mean = [] (study: [0.4914, 0.4822, 0.4465])" in found
    assert found[-2:] == ["train.rounds = 40 (study: 200)", "train.schedule_rounds = 40 (study: 200)"]


def test_what_the_code_does_otherwise_since_is_said_of_the_methods_that_it_changed(tmp_path: Path) -> None:
    folders = {method: run(tmp_path / method, {method: scores({0: 90.0})}) for method in ("fedamp", "separate")}
    for folder in folders.values():
        summary = json.loads((folder / "summary.json").read_text("utf-8"))
        (folder / "summary.json").write_text(json.dumps(summary | {"lacks": ["947ae85", "99aaa6f"]}), "utf-8")
    pull, pick = "the pull is an exact proximal step (fedamp, 947ae85)", finished_runs.SINCE["99aaa6f"].what
    assert f"Otherwise since it was run: {pull}; {pick} (99aaa6f)." in made(tmp_path / "one", folders["fedamp"])
    assert f"Otherwise since it was run: {pick} (99aaa6f)." in made(tmp_path / "two", folders["separate"])
    paper = papers.paper_page("amp", finished_runs.read(folders.values()), tmp_path)
    assert f"Otherwise since they were run:\n\n- fmnist: {pull}; {pick} (99aaa6f)." in paper


def test_coverage_is_counted_from_the_runs(tmp_path: Path) -> None:
    folders = [
        run(tmp_path / "a", {"fedamp": scores({0: 93.0, 1: 93.5, 2: 94.0}), "separate": scores({0: 86.0})}),
        run(tmp_path / "b", {"heurfedamp": scores({0: 90.0})}, rounds=40),
        run(tmp_path / "c", {"fedamp": scores({0: 98.0})}, "mnist"),
    ]
    found = finished_runs.read(folders)
    cells = [each for each in run_coverage.all_wanted(found) if each.study == "amp-table3"]
    assert run_coverage.counts(cells) == [36, 27, 4, 3, 1]  # nine methods, four data sets, one of them not at hand
    figure = [each for each in run_coverage.all_wanted(found) if each.study == "amp-figure3"]
    assert run_coverage.counts(figure) == [8, 6, 3, 2, 1]  # drawn of the same runs
    front = papers.front_page(found, tmp_path)
    assert "| [amp-table3](amp-table3.md) | 36 | 27 | 4 | 3 | 1 |" in front
    assert "| em-table2 | 42 | 28 | 0 | 0 | 0 |" in front
    assert re.search(
        r"- \[FedAMP: .*\]\(amp.md\): Of 81 cells that the data at hand allow, 4 have been run, 3 \(4%\)", front
    )


@pytest.mark.parametrize(
    ("other", "full"), [((), 1), (("model.name=linear",), 0), (("data.subsample=0.5",), 0), (("data.dirty=0.1",), 1)]
)
def test_a_run_of_another_model_or_of_fewer_data_is_not_in_full(
    other: tuple[str, ...], full: int, tmp_path: Path
) -> None:
    folder = run(tmp_path / "a", {"fedamp": scores({0: 93.0})})
    table = override(select(read("amp-table3"), "fmnist"), other)
    (folder / "study.toml").write_text(toml.dumps(check(table, ["fedamp"]).as_table()), "utf-8")
    cells = [each for each in run_coverage.all_wanted(finished_runs.read([folder])) if each.study == "amp-table3"]
    assert run_coverage.counts(cells) == [36, 27, 1, full, 0]


def test_a_papers_page_has_every_cell_with_its_rounds_seeds_and_who_is_ahead(tmp_path: Path) -> None:
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "amp.md").write_text("What could not be done.\n", "utf-8")
    methods = {"fedamp": scores({0: 93.0, 1: 94.0}), "separate": scores({0: 86.0})}
    page = papers.paper_page("amp", finished_runs.read([run(tmp_path / "a", methods, rounds=40)]), tmp_path)
    assert "What could not be done." in page
    row = "| fmnist | fedamp | 92.50 ± 0.71 | 90.97 | 93.50 ± 0.71 | +2.53 | - | 40 of 100 | 2 | 9.00 ± 0.00 |"
    assert row in page
    assert "- fmnist: fedamp is ahead of separate, behind none." in page
    assert "train.rounds = 40 (study: 100)" in page


def test_what_is_kept_anew_replaces_what_older_folders_have_of_it(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    for name, methods in (("old", ("fedamp", "separate")), ("other", ("fedamp",)), ("new", ("fedamp",))):
        folder = run(tmp_path / name, {m: scores({0: 90.0}) for m in methods}, "mnist" if name == "other" else "fmnist")
        pd.DataFrame({"silo": SILOS, "label": "0", "count": 9, "seed": 0}).to_parquet(folder / "labels.parquet")
        keep(folder, kept / name)
    assert replace_older(kept / "new") == [kept / "old"]
    found = finished_runs.read(sorted(kept.iterdir()))["amp-table3"]
    assert found["fmnist"].folders == [kept / "new", kept / "old"] and found["mnist"].methods() == ["fedamp"]
    assert set(pd.read_parquet(kept / "old" / "results.parquet")["method"]) == {"separate"}
    assert replace_older(kept / "new") == []  # done
    shutil.copytree(kept / "new", kept / "newest")
    assert replace_older(kept / "newest") == [kept / "new"] and not (kept / "new").exists()


def studies_of(paths: Iterable[Path]) -> list[str]:
    """The papers that pages or folders are of: the first part of their names."""
    return sorted({path.stem.partition("-")[0] for path in paths})


def test_every_run_that_is_kept_is_on_a_page() -> None:
    named = studies_of((PAGES / "runs").iterdir())
    others = ("README", "centres", "stack")  # their benches keep no runs
    assert named == [name for name in studies_of(PAGES.glob("*.md")) if name not in others]


@pytest.mark.slow
@pytest.mark.parametrize("paper", studies_of((PAGES / "runs").iterdir()))
def test_the_pages_are_those_of_the_runs_beside_them(
    paper: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def its(folder: Path, pattern: str) -> set[Path]:
        """Its files in a folder."""
        return {path.relative_to(folder) for path in folder.glob(f"{paper}{pattern}")}

    out = Path("docs/results")
    for part in ("words", "runs"):
        shutil.copytree(PAGES / part, tmp_path / out / part)
    monkeypatch.chdir(tmp_path)
    results.write(sorted((out / "runs").glob(f"{paper}-*")), out)
    made = its(out, "*.md")
    assert made <= its(PAGES, "*.md")
    for page in made:
        assert (PAGES / page).read_text("utf-8") == (out / page).read_text("utf-8"), page
    assert its(out / "figures", "*/*.svg") == its(PAGES / "figures", "*/*.svg")


def test_the_pages_of_papers_and_the_front_page_are_those_of_the_kept_runs() -> None:
    found = finished_runs.read(sorted((PAGES / "runs").iterdir()))
    for paper in papers.PAPERS:
        assert (PAGES / f"{paper}.md").read_text("utf-8") == papers.paper_page(paper, found, PAGES)
    for name in run_coverage.SAME_RUNS:
        assert (PAGES / f"{name}.md").read_text("utf-8") == papers.figure_page(name, found, PAGES)
    assert (PAGES / "README.md").read_text("utf-8") == papers.front_page(found, PAGES)
