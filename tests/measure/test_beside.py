"""Published figures beside ours."""

from typing import Any

from coterie.measure.beside import set_beside
from coterie.study import check

SCORES = {"bmta": 80.0, "weighted": 82.0, "bottom_decile": 60.0, "bmta_cloud": 70.0, "unseen": 75.0}


def beside(scores: dict[str, Any], **published: Any) -> dict[str, Any]:
    methods = {"fedavg": dict(scores)}
    set_beside(methods, check({"methods": {"fedavg": {}}, **published}))
    return {key: value for key, value in methods["fedavg"].items() if key not in scores}


def test_each_figure_is_set_beside_the_score_it_is_of() -> None:
    assert beside(SCORES, published={"fedavg": 81}) == {"published": 81, "difference": -1}
    assert beside(SCORES, published={"fedavg": 81}, compared="weighted")["difference"] == 1
    assert beside(SCORES, published={"fedavg": 81}, compared="unseen")["difference"] == -6
    assert beside(SCORES, published_decile={"fedavg": 65})["difference_decile"] == -5
    assert beside(SCORES, published_cloud={"fedavg": 65})["difference_cloud"] == 5


def test_what_was_not_measured_is_not_compared() -> None:
    assert beside({"best_loss": 0.1}, published={"fedavg": 81}, published_decile={"fedavg": 1}) == {}
    assert beside(SCORES, published={"fedprox": 81}) == {}
