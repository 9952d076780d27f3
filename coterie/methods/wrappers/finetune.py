"""Fine-tuning: any method's personal model, trained a little on the silo's own data before it is used.

Wang et al., "Federated Evaluation of On-device Personalization", 2019. Nothing of it is ever sent: each evaluation
starts again from the method's model, so the federation does not notice.
"""

from dataclasses import dataclass
from typing import Any

from coterie.engine.method import Deployable, Method, Model, Predictor, Roster, Task
from coterie.engine.wrapper import Wrapper
from coterie.errors import BadInput
from coterie.options import option

REFUSAL = "finetune: it predicts with more than one model, so there is no single one to train further"


@dataclass(frozen=True, repr=False)
class FineTuned(Wrapper):
    """Fine-tunes the model of the method inside."""

    by_columns = True

    @property
    def epochs(self) -> int:
        """How long: the field `ft_epochs`, unless a class says otherwise."""
        epochs: int = self.ft_epochs  # type: ignore[attr-defined]
        return epochs

    def refusal(self, roster: Roster, model: Model) -> str | None:
        return self.base.refusal(roster, model) if self.base.one_model else REFUSAL

    def personal(self, task: Task, down: Any, private: Any) -> Deployable:
        model = super().personal(task, down, private)
        if not isinstance(model, Predictor) or model.weights is not None:
            raise BadInput(REFUSAL)
        return Predictor(models=task.fit(model.models, "finetune", self.epochs))


@dataclass(frozen=True)
class FineTuning:
    """`finetune = {epochs = 1}` in a method's table."""

    epochs: int = option(1, "epochs of fine-tuning", low=1)


@dataclass(frozen=True, repr=False)
class WithFineTuning(FineTuned):
    """Any method, fine-tuned on each silo's own data when it is used."""

    method: Method
    options: FineTuning

    @property
    def epochs(self) -> int:
        return self.options.epochs
