"""Real Flower processes: methods that share parts of a model, a frozen base, adapters, and several methods stacked."""

import json
import re
import shutil
from collections import defaultdict
from pathlib import Path

import pandas as pd
import pytest
from real import Real, by_silo, coterie, really, simulated
from safetensors.torch import save_file

from coterie.models import build

pytest.importorskip("flwr")
pytestmark = really

SHORT = {"rounds": 2, "measure_every": 2, "whole_batches": True}


@pytest.mark.parametrize(
    ("methods", "model"),
    [
        (["fedper", "fedpac", "stack"], None),
        (["fedbn"], {"name": "resnet18", "width": 8, "norm": "batch"}),
        (["fedavg"], {"name": "mlp", "hidden": [16], "freeze": ["body"]}),
    ],
    ids=["parts", "norms", "frozen"],
)
def test_parts_of_a_model_end_as_in_a_simulation(
    fed: Real, methods: list[str], model: dict[str, object] | None
) -> None:
    run, _ = fed.run(fed.study(methods, model, **SHORT))
    found = by_silo(pd.read_parquet(run / "results.parquet"))
    pd.testing.assert_series_equal(found, simulated(fed, methods, model, **SHORT), atol=1e-4, rtol=0)
    if model is not None and "freeze" in model:
        # The head alone, 16 x 10 weights and 10 biases, each filled up to a multiple of 32 columns.
        assert uploads(fed, run) == {"fedavg": {4 * (160 + 32)}}


# Of rank 2, beside 3 x 3 convolutions of 1 to 4 and 4 to 6 channels and layers of 24 to 100 and 100 to 10; each
# is filled up to a multiple of 32 columns.
A, B = 32 + 96 + 64 + 224, 32 + 32 + 224 + 32


def test_of_adapters_on_a_pretrained_base_adapters_alone_cross(fed: Real) -> None:
    plain = {"name": "cnn", "channels": [4, 6], "kernel": 3, "hidden": 100}
    weights = fed.folder / "base.safetensors"
    save_file(build(plain, (1, 8, 8), 10)[0]().state_dict(), weights)
    model = plain | {"weights": str(weights), "lora": {"rank": 2, "alpha": 4.0, "targets": ["*"]}}
    for name in fed.names:
        (fed.folder / "silos" / name / "weights").mkdir(exist_ok=True)
        shutil.copy(weights, fed.folder / "silos" / name / "weights")
    methods = ["fedavg", "fedsa-lora", "ffa-lora"]
    run, _ = fed.run(fed.study(methods, model, **SHORT))
    found = by_silo(pd.read_parquet(run / "results.parquet"))
    pd.testing.assert_series_equal(found, simulated(fed, methods, model, **SHORT), atol=1e-4, rtol=0)
    widths = {"fedavg": A + B, "fedsa-lora": A, "ffa-lora": B}
    assert uploads(fed, run) == {name: {4 * width} for name, width in widths.items()}
    for name, width in widths.items():  # what is around them
        assert {size - 4 * width for size in answered(fed, run, name)} <= {*range(200)}
    assert weights.stat().st_size > 5 * 4 * max(widths.values())

    save_file(build(plain, (1, 8, 8), 10)[0]().state_dict(), fed.folder / "silos" / "south" / "weights" / weights.name)
    shown = coterie(*fed.words(fed.study(["fedavg"], model, rounds=1, measure_every=1)), check=False, timeout=300)
    said = " ".join((shown.stdout + shown.stderr).split())
    assert "south" in said and "its SHA-256 is" in said and "bring that file" in said


def uploads(fed: Real, run: Path) -> dict[str, set[int]]:
    """By method, the bytes of the models that the first silo has sent, as its ledger has them."""
    lines = (fed.folder / "silos" / "north" / "ledger.jsonl").read_text().splitlines()
    found = defaultdict(set)
    for entry in map(json.loads, lines):
        if entry["run"].startswith(run.name) and entry["field"] == "w":
            found[entry["run"].removeprefix(f"{run.name}-").removesuffix("-1")].add(entry["bytes"])
    return dict(found)


def answered(fed: Real, run: Path, method: str) -> list[int]:
    """The bytes of that silo's whole answers with a model."""
    events = (fed.folder / "silos" / "north" / "events.log").read_text()
    sizes = re.findall(rf"answered train of run {run.name}-{method}-1, round \d+: (\d+) bytes", events)
    return [int(size) for size in sizes]
