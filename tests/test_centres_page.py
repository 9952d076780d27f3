"""The page of results on real centres, made of what runs left."""

from centres import METHODS, page


def summary(measure: str, alone: float, plain: str) -> dict[str, object]:
    def of(value: float) -> dict[str, object]:
        return {"measures": {measure: {"test": value}}}

    return {
        "verdict": {"measure": measure, "words": {"consortium": ["Take fedamp.", "The silos gain."]}},
        "methods": {method: of(alone + i) for i, method in enumerate(METHODS)},
        "baselines": {"majority": of(0.0), plain: of(alone - 0.5), f"{plain}, pooled": of(9.0)},
    }


def test_methods_and_plain_models_stand_beside_one_another_and_the_best_is_bold() -> None:
    made = page({"store": summary("log_loss", 1.0, "trees"), "exams": summary("rmse", 2.0, "ridge")}).splitlines()
    assert "| | store | exams |" in made
    assert "| separate | 1 | 2 |" in made and "| fedavg | 2 | 3 |" in made
    assert "| trees | **0.5** | - |" in made and "| ridge, pooled | - | 9 |" in made
    assert not any("majority" in line for line in made)
    assert made[-1] == "**exams.** Take fedamp. The silos gain."
