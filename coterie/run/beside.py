"""What a paper reports, set beside what was measured."""

from collections.abc import Mapping
from typing import Any

from coterie.studies.study import COMPARED, Study


def set_beside(methods: Mapping[str, dict[str, Any]], study: Study) -> None:
    """Write the published figures of a study, and how far ours are from them, into the scores of its methods."""
    scores_of = {
        "published": (study.compared, "difference"),
        "published_decile": ("bottom_decile", "difference_decile"),
        "published_cloud": ("bmta_cloud", "difference_cloud"),
    }
    for key, (score, difference) in scores_of.items():
        for label, figure in getattr(study, key).items():
            scores = methods.get(label, {})
            if scores.get(score) is not None:
                scores |= {key: figure, difference: scores[score] - figure}
                scores |= {"compared": score} if key == "published" and score != COMPARED[0] else {}
