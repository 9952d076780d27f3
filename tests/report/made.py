"""Small made runs for the report's tests: predictions from a keyed draw, as a run's folder holds them."""

import json
from pathlib import Path

import numpy as np
import pandas as pd

SILOS = ("east", "north", "west")


def probabilities(y: np.ndarray, classes: int, rng: np.random.Generator, skill: float) -> np.ndarray:
    logits = rng.normal(size=(len(y), classes)) + skill * np.eye(classes)[y]
    p = np.exp(logits)
    return (p / p.sum(1, keepdims=True)).astype(np.float32)


def rows_of(method: str, silo: str, classes: int, skill: float, seed: int = 0, n: int = 60) -> pd.DataFrame:
    """One silo's test rows; `classes` 0: numbers."""
    rng = np.random.default_rng([len(silo), n, seed])
    table = pd.DataFrame({"method": method, "seed": seed, "round": 2, "silo": silo, "split": "test"}, index=range(n))
    table = table.assign(sample=np.arange(n), row=np.arange(n) + 1)
    if not classes:
        y = rng.normal(100, 20, n)
        guess = y + rng.normal(0, 10 / skill, n)
        return table.assign(label=y, value=np.abs(guess - y), prediction=guess)
    y = rng.integers(0, classes, n)
    p = probabilities(y, classes, rng, skill)
    named = {f"probability_c{c}": p[:, c] for c in range(classes)}
    hits = (p.argmax(1) == y).astype(float)
    return pd.concat([table.assign(label=[f"c{c}" for c in y], value=hits), pd.DataFrame(named)], axis=1)


def put_predictions(folder: Path, frame: pd.DataFrame) -> None:
    frame.to_parquet(folder / "predictions.parquet", index=False)


def edited(folder: Path, **keys: object) -> None:
    """Set keys of the run's summary."""
    path = folder / "summary.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **keys}), "utf-8")
