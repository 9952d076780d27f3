"""pfl-research: `WORK METHOD ROUNDS`, its simulated backend over users in memory, under `torchrun` or alone."""

import time

import torch
import work
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import nn


class Classifier(nn.Sequential):
    """What pfl asks of a module beside its weights."""

    def loss(self, x: torch.Tensor, y: torch.Tensor, is_eval: bool = False) -> torch.Tensor:
        return nn.functional.cross_entropy(self(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
        return {"loss": self.loss(x, y).item()}


class Clock(TrainingProcessCallback):
    """When each round ended."""

    def __init__(self) -> None:
        self.ends = []

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        self.ends.append(time.perf_counter())
        return Metrics()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration) -> tuple[bool, Metrics]:
        self.ends.append(time.perf_counter())
        return False, Metrics()


def main() -> None:
    """Evaluation is off but for the first round, where pfl has no way not to; that round does not count."""
    path, method, rounds = work.asked()
    x, y = work.data(path)
    users = {str(i): PyTorchTensorDataset((x[i], y[i]), user_id=str(i)) for i in range(work.CLIENTS)}
    everyone = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(users)))
    module = Classifier(*work.mlp())
    module.load_state_dict(work.first(path))
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    clock = Clock()
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds,
            train_cohort_size=work.CLIENTS,
            val_cohort_size=None,
        ),
        backend=SimulatedBackend(training_data=everyone, val_data=everyone),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_batch_size=work.BATCH, local_num_epochs=1, local_learning_rate=work.LR
        ),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    if pytorch_ops.distributed.global_rank == 0:
        seconds = [after - before for before, after in zip(clock.ends, clock.ends[1:], strict=False)]
        work.report("pfl", method, seconds, work.loss(path, module.state_dict()))


if __name__ == "__main__":
    main()
