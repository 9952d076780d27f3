"""Published figures beside ours."""

from typing import Any

from coterie.report.table import summary_table
from coterie.run.beside import set_beside
from coterie.studies.study import check

SCORES = {"bmta": 80.0, "weighted": 82.0, "bottom_decile": 60.0, "bmta_cloud": 70.0, "unseen": 75.0}


def beside(scores: dict[str, Any], **published: Any) -> dict[str, Any]:
    methods = {"fedavg": dict(scores)}
    set_beside(methods, check({"methods": {"fedavg": {}}, **published}))
    return {key: value for key, value in methods["fedavg"].items() if key not in scores}


def test_each_figure_is_set_beside_the_score_it_is_of() -> None:
    assert beside(SCORES, published={"fedavg": 81}) == {"published": 81, "difference": -1}
    assert beside(SCORES, published={"fedavg": 81}, compared="weighted")["difference"] == 1
    assert beside(SCORES, published={"fedavg": 81}, compared="unseen") == {
        "published": 81, "difference": -6, "compared": "unseen",
    }  # fmt: skip
    assert beside(SCORES, published_decile={"fedavg": 65})["difference_decile"] == -5
    assert beside(SCORES, published_cloud={"fedavg": 65})["difference_cloud"] == 5


def test_what_was_not_measured_is_not_compared() -> None:
    assert beside({"best_loss": 0.1}, published={"fedavg": 81}, published_decile={"fedavg": 1}) == {}
    assert beside(SCORES, published={"fedprox": 81}) == {}


def test_the_table_says_which_score_the_paper_reports() -> None:
    methods = {"fedavg": dict(SCORES)}
    set_beside(methods, check({"methods": {"fedavg": {}}, "published": {"fedavg": 81}, "compared": "weighted"}))
    assert "Ours - paper: of weighted, which the paper reports." in str(summary_table(methods).caption)
    assert "Ours - paper" not in str(summary_table({"fedavg": SCORES}).caption)
