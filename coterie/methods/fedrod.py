"""FedRoD: a generic model that no silo's share of classes biases, and on top of it each silo's personal head.

Chen and Chao, "On Bridging Generic and Personalized Federated Learning for Image Classification", ICLR 2022.

Body and generic head train on the balanced softmax (Ren et al., NeurIPS 2020), in which a class that the silo has not
is no alternative to those it has, and are averaged. The personal head trains on the plain loss of the sum of both
heads' logits and moves nothing else. Both heads being linear, their sum is one head: a silo deploys one model, its own
copy after local training with the sum of the heads; the generic model is its cloud model. The personal head starts at
zero. The paper's hypernetwork, which makes heads for newcomers, is left out.

The authors' repository (github.com/hongyouc/Fed-RoD, commit 5d56346) holds no code. The two losses were held against a
public copy (github.com/MediaBrain-SJTU/pFedGraph, commit 4f5f17c, pytorch/fedrod.py), whose functions are named at the
lines that do what they do; the paper's equation numbers have not been checked.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from coterie.engine.method import Batch, Model, Predictor, Private, Roster, State, Task, spread
from coterie.engine.solver import Gradient
from coterie.methods.parts.averaging import GlobalDown, GlobalModel, ModelUp, global_predictor
from coterie.options import option
from coterie.wire import Record, rows


class PersonalHead(Private):
    """A silo's personal head and the model that it deploys."""

    head: Tensor = rows("its personal head, which is added to the generic one", "head")
    w: Tensor = rows("its copy of the generic model after local training, with the sum of both heads", role="model")


class TwoHeads(State):
    """The generic model and the personal head in training."""

    w: Tensor = rows("the generic model", role="model")
    head: Tensor = rows("the personal head", "head")
    log_counts: Tensor = rows("log n_c of the silo's training labels; −∞ of a class that it has not", "C")
    opt: Record
    head_opt: Record


@dataclass(frozen=True)
class FedRoD(GlobalModel[PersonalHead, TwoHeads]):
    """A robust decoupling: one generic model for all, a personal head for each."""

    by_columns = True
    paper = "Chen & Chao, ICLR 2022"
    summary = "a generic model trained on balanced classes, and each silo's own head on top of it"
    lr_by_row = True

    balanced: bool = option(True, "the generic model trains on the balanced softmax; false: on the plain loss")

    def refusal(self, roster: Roster, model: Model) -> str | None:
        if not model.classes:
            return "its loss is of classes; the labels of these data are numbers"
        if not isinstance(model.module.get_submodule(model.head), nn.Linear):
            return f"the model's head '{model.head}' is not linear, so a generic and a personal one cannot be summed"
        return None

    def enroll(self, roster: Roster, model: Model, rows: Tensor) -> PersonalHead:
        start = model.starts(roster.seed, roster.take(rows).names, common=True)
        return PersonalHead(head=torch.zeros_like(model.columns("head").take(start)), w=start)

    def begin(self, task: Task, down: GlobalDown, private: PersonalHead) -> TwoHeads:
        w, classes = spread(down.w, task.k), task.model.classes
        counts = [np.bincount(task.store.labels("train", name).ravel(), minlength=classes) for name in task.names]
        return TwoHeads(
            w=w,
            head=private.head,
            log_counts=torch.from_numpy(np.stack(counts)).to(w).log(),
            opt=task.optimizer.init(w),
            head_opt=task.optimizer.init(private.head),
        )

    def step(self, task: Task, state: TwoHeads, batch: Batch) -> TwoHeads:
        # (k, 2, d): the generic model, and the one whose head is the sum of both
        both = torch.stack([state.w, self._summed(task.model, state.w, state.head)], 1)
        prior = torch.stack([state.log_counts * self.balanced, torch.zeros_like(state.log_counts)], 1).flatten(0, 1)
        prior = prior.nan_to_num(0.0, neginf=-torch.inf)  # 0 · −∞, where the loss is plain

        def loss(out: Tensor, batch: Batch, features: Tensor | None) -> Tensor:
            # −log of exp(g_y + log n_y) / Σ_c exp(g_c + log n_c), n_c the silo's samples of a class
            # (balanced_softmax_loss), and the plain loss of the sum of logits (local_train_fedavg, its loss)
            return task.model.sample_losses(out + prior.reshape(len(out), 1, -1, *[1] * (out.ndim - 3)), batch.y)

        g = task.grad(both, batch, loss=loss)
        generic = Gradient(g.grads[:, 0], g.losses[:, 0], None if g.buffers is None else g.buffers[:, 0], still=g.still)
        own = Gradient(task.model.columns("head").take(g.grads[:, 1]), g.losses[:, 1])  # of the head alone
        w, opt = task.optimizer.step(state.w, generic, state.opt, batch.lr)
        head, head_opt = task.optimizer.step(state.head, own, state.head_opt, batch.lr)
        return state.replace(w=w, head=head, opt=opt, head_opt=head_opt)

    def end(self, task: Task, state: TwoHeads, down: GlobalDown, private: PersonalHead) -> tuple[ModelUp, PersonalHead]:
        return ModelUp(w=state.w), PersonalHead(head=state.head, w=self._summed(task.model, state.w, state.head))

    def cloud(self, task: Task, down: GlobalDown, private: PersonalHead) -> Predictor:
        return global_predictor(task, down)

    def adapt(self, task: Task, down: GlobalDown, private: PersonalHead | None) -> tuple[None, PersonalHead]:
        """A newcomer trains the generic model and a personal head for one round."""
        w = spread(down.w, task.k)
        arriving = PersonalHead(head=torch.zeros_like(task.model.columns("head").take(w)), w=w)
        state = task.run(self.step, self.begin(task, down, arriving), "arrive")
        return None, self.end(task, state, down, arriving)[1]

    def _summed(self, model: Model, w: Tensor, head: Tensor) -> Tensor:
        """The generic model with the sum of both heads: its logits are the sum of theirs."""
        columns = model.columns("head")
        return columns.put(w, columns.take(w) + head)
