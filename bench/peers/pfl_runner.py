"""pfl-research: `WORK METHOD ROUNDS DEVICE`, its simulated backend over users in memory, under `torchrun` or alone."""

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


class Classifier(nn.Module):
    """What pfl asks of a module beside its weights."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def loss(self, x: torch.Tensor, y: torch.Tensor, is_eval: bool = False) -> torch.Tensor:
        return nn.functional.cross_entropy(self.inner(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
        return {"loss": self.loss(x, y).item()}


class Clock(TrainingProcessCallback):
    """When each round ended."""

    def __init__(self, device: str) -> None:
        self.device, self.ends = device, []

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        self.ends.append(work.now(self.device))
        return Metrics()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration) -> tuple[bool, Metrics]:
        self.ends.append(work.now(self.device))
        return False, Metrics()


def main() -> None:
    """Evaluation is off but for the first round, where pfl has no way not to; that round does not count."""
    asked = work.asked()
    given, count = asked.work, asked.work.size.clients
    users = {str(i): PyTorchTensorDataset((given.x[i], given.y[i]), user_id=str(i)) for i in range(count)}
    everyone = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(users)))
    module = Classifier(given.model())
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    clock = Clock(asked.device)
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=asked.rounds,
            evaluation_frequency=asked.rounds,
            train_cohort_size=count,
            val_cohort_size=None,
        ),
        backend=SimulatedBackend(training_data=everyone, val_data=everyone),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_batch_size=given.size.batch, local_num_epochs=1, local_learning_rate=given.lr
        ),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    if pytorch_ops.distributed.global_rank == 0:
        seconds = [after - before for before, after in zip(clock.ends, clock.ends[1:], strict=False)]
        work.report(seconds, [module.inner.state_dict()])


if __name__ == "__main__":
    main()
