"""Real Flower processes: methods that share parts of a model, a frozen base, and several methods stacked."""

import json

import pandas as pd
import pytest
from real import Real, by_silo, really, simulated

pytest.importorskip("flwr")
pytestmark = really


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
    run, _ = fed.run(fed.study(methods, model, rounds=2, measure_every=2, whole_batches=True))
    found = by_silo(pd.read_parquet(run / "results.parquet"))
    pd.testing.assert_series_equal(
        found, simulated(fed, methods, model, rounds=2, measure_every=2, whole_batches=True), atol=1e-4, rtol=0
    )
    if model is not None and "freeze" in model:
        lines = (fed.folder / "silos" / "north" / "ledger.jsonl").read_text().splitlines()
        sent = [e for e in map(json.loads, lines) if e["run"].startswith(run.name) and e["field"] == "w"]
        # The head alone, 16 x 10 weights and 10 biases, each filled up to a multiple of 32 columns.
        assert sent and {e["bytes"] for e in sent} == {4 * (160 + 32)}
