"""What the coordinator keeps of a run after every round, so that a broken run goes on where it was."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open

from coterie.codec import encode
from coterie.deploy.home import write_whole
from coterie.engine.rounds import Outcome, Picked
from coterie.errors import BadInput
from coterie.measure.metrics import Rank

COSTS = ("bytes_up", "bytes_down", "train_seconds", "missing")
TOLD = ("rejected", "heard", "kept")  # what the judge remembers of a run, and which models silos have kept


class Checkpoint:
    """One method on one seed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done = 0  # rounds trained
        self.finished = False  # measured, models kept, newcomers served
        self.received: dict[str, int] = {}

    def save(self, outcome: Outcome) -> None:
        """Write everything, whole or not at all."""
        named = {f"server.{name}": t for name, t in safetensors.torch.load(encode(outcome.server)).items()}
        for name, values in outcome.traces.items():
            named |= {f"trace.{name}.{i}": torch.from_numpy(np.ascontiguousarray(v)) for i, v in enumerate(values)}
        table = pd.concat(outcome.results) if outcome.results else pd.DataFrame()
        about = {
            "done": self.done,
            "finished": self.finished,
            "received": self.received,
            "measured": outcome.measured,
            "results": table.to_dict("list"),
            "picked": None if outcome.picked is None else [outcome.picked.round, outcome.picked.rank],
            **{name: getattr(outcome, name) for name in (*COSTS, *TOLD)},
        }
        write_whole(self.path, safetensors.torch.save(named, {"about": json.dumps(about)}))

    def load(self, fresh: Any) -> Outcome:
        """The outcome so far; `fresh` is the server's state before the first round."""
        if not self.path.exists():
            return Outcome(fresh)
        try:
            with safe_open(self.path, "pt") as file:
                about = json.loads(file.metadata()["about"])
                named = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            state = {name.removeprefix("server."): t for name, t in named.items() if name.startswith("server.")}
            outcome = Outcome(fresh.with_tensors(state))
            self.done, self.finished, self.received = about["done"], about["finished"], about["received"]
            outcome.results = [pd.DataFrame(about["results"])] if about["results"] else []
            outcome.measured = about["measured"]
            if about["picked"] is not None:
                round, rank = about["picked"]
                outcome.picked = Picked(round, Rank(*rank), {})
            for name in (*COSTS, *TOLD):
                setattr(outcome, name, about[name])
            for name in sorted({key.split(".")[1] for key in named if key.startswith("trace.")}):
                count = sum(key.startswith(f"trace.{name}.") for key in named)
                outcome.traces[name] = [named[f"trace.{name}.{i}"].numpy() for i in range(count)]
        except (SafetensorError, KeyError, ValueError, TypeError) as error:
            raise BadInput(f"{self.path}: damaged ({error}); start the run anew") from None
        return outcome
