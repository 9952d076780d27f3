"""The page of results on real centres, made of what runs left."""

import json
from pathlib import Path

from centres import METHODS, kept, page

RESULTS = Path(__file__).parents[1] / "docs" / "results"


def summary(measure: str, alone: float, plain: str) -> dict[str, object]:
    def of(value: float) -> dict[str, object]:
        return {"measures": {measure: {"test": value}}}

    return {
        "commit": "abc",
        "verdict": {"measure": measure, "words": {"consortium": ["Take fedamp.", "The silos gain."]}},
        "methods": {method: of(alone + i) for i, method in enumerate(METHODS)},
        "baselines": {"majority": of(0.0), plain: of(alone - 0.5), f"{plain}, pooled": of(9.0)},
    }


def test_methods_and_plain_models_stand_beside_one_another_and_the_best_is_bold() -> None:
    runs = {"store": kept(summary("log_loss", 1.0, "trees")), "exams": kept(summary("rmse", 2.0, "ridge"))}
    made = page(runs).splitlines()
    assert "| | store | exams |" in made
    assert "| separate | 1 | 2 |" in made and "| fedavg | 2 | 3 |" in made
    assert "| trees | **0.5** | - |" in made and "| ridge, pooled | - | 9 |" in made
    assert not any("majority" in line for line in made)
    assert "**exams.** Take fedamp. The silos gain." in made
    assert made[-1] == "Commits: store abc, exams abc."
    assert not any("had fourteen" in line for line in made)


def test_the_page_begins_with_where_it_is_worth_it_and_names_runs_of_fewer_methods() -> None:
    words = {"store": "Take fedamp. With fedamp the silos gain: …", "exams": "Take stack. With stack no gain …"}
    runs = {name: {"commit": "abc", "verdict": said, "scores": {"separate": 1.0}} for name, said in words.items()}
    runs["mortality"] = {"commit": "abc", "verdict": "No method is chosen: …", "scores": {"fedprox": 1.0}}
    made = page(runs).splitlines()
    assert made[2].startswith("On store the silos gain over training alone")
    assert made[2].endswith("on exams no such gain is shown; on mortality no method is better than a guess.")
    assert any(line.endswith("also mean not run): store and exams.") for line in made)


def test_the_page_is_made_of_what_is_kept_beside_it() -> None:
    runs = json.loads((RESULTS / "centres.json").read_text("utf-8"))
    assert (RESULTS / "centres.md").read_text("utf-8") == page(runs)
