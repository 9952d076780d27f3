"""NVFLARE: `WORK METHOD ROUNDS DEVICE`, its simulator, which runs a client in a process."""

import json
import os
import sys
from pathlib import Path

import torch
import work
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv
from torch import nn

HERE = Path(__file__).parent
AT_ONCE = max(16, 4 * os.cpu_count())  # processes; more clients than that take turns, each in a new process


class Clock(FLComponent):
    """How long each round took, from its start to the mean; written to a file, for the server is another process."""

    def __init__(self, file: str) -> None:
        super().__init__()
        self.file, self.seconds = file, []

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == AppEventType.ROUND_STARTED:
            self.began = work.now("cpu")
        elif event_type == AppEventType.AFTER_AGGREGATION:
            self.seconds.append(work.now("cpu") - self.began)
        elif event_type == EventType.END_RUN:
            Path(self.file).write_text(json.dumps(self.seconds))


def first(path: str) -> nn.Module:
    """The model that training starts from, which NVFLARE makes by name."""
    return work.read(path, "cpu").model()


def main() -> None:
    """FedAvg by NVFLARE's recipe; Ditto's personal models train beside it."""
    asked = work.asked()
    given, count = asked.work, asked.work.size.clients
    for folder in range(count):
        Path(f"{given.path}.personal/{folder}").mkdir(parents=True, exist_ok=True)
    recipe = FedAvgRecipe(
        model={"class_path": "nvflare_runner.first", "args": {"path": given.path}},
        min_clients=count,
        num_rounds=asked.rounds,
        train_script=str(HERE / "nvflare_client.py"),
        train_args=" ".join(sys.argv[1:]),
    )
    times = f"{given.path}.seconds"
    recipe._job.to_server(Clock(times))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    here = f"{given.path}.nvflare"
    gpu = "0" if asked.device == "cuda" else None
    recipe.execute(SimEnv(num_clients=count, num_threads=min(count, AT_ONCE), workspace_root=here, gpu_config=gpu))
    if asked.method == "ditto":
        found = [Path(f"{given.path}.personal/{client}/personalized_model.pt") for client in range(count)]
    else:
        found = list(Path(here).rglob("FL_global_model.pt"))
    models = [torch.load(file, map_location=asked.device, weights_only=True)["model"] for file in found]
    work.report(json.loads(Path(times).read_text()), models)


if __name__ == "__main__":
    main()
