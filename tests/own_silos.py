"""Made silos as people have them: tables with text, missing values and a silo that lacks a class."""

from pathlib import Path

import numpy as np
import pandas as pd

CLASSES = ("healthy", "ill", "severe")
NAMES = ("st-mary", "north", "coast", "east", "valley")


def hospital(place: int, rows: int = 60) -> pd.DataFrame:
    """One hospital: numbers, text, truth, a constant, an identifier, and two columns to predict."""
    rng = np.random.default_rng(place)
    age, pressure = rng.normal(50 + place, 12, rows).round(1), rng.normal(125, 15, rows).round()
    ward, smoker = rng.choice(["er", "icu", "general"], rows), rng.choice([True, False], rows)
    risk = 0.08 * (age - 50) + 0.03 * (pressure - 125) + 1.5 * (ward == "icu") + smoker
    frame = pd.DataFrame({"age": age, "pressure": pressure, "ward": ward, "smoker": smoker, "site": "x"})
    frame["patient"] = [f"p{place}-{i}" for i in range(rows)]
    frame["outcome"] = np.array(CLASSES)[np.digitize(risk, [0.3, 2.0])]
    frame["cost"] = (1000 + 300 * risk).round(2)
    frame.loc[rng.random(rows) < 0.1, "age"] = np.nan
    frame.loc[rng.random(rows) < 0.1, "ward"] = None
    if NAMES[place] == "valley":
        frame = frame[frame["outcome"] != "severe"].reset_index(drop=True)
    return frame


def hospitals(folder: Path, rows: int = 60) -> Path:
    """Five of them as CSV files in a folder."""
    folder.mkdir(parents=True)
    for place, name in enumerate(NAMES):
        hospital(place, rows).to_csv(folder / f"{name}.csv", index=False)
    return folder
