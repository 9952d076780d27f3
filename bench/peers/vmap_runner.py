"""By hand: `WORK METHOD ROUNDS DEVICE`, the loop that a user of torch.func writes, all clients in one vmap."""

from collections.abc import Mapping

import torch
import work
from torch import Tensor
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn import functional as F

Params = dict[str, Tensor]  # of all clients: (clients, *shape)


def mixed(weights: Tensor, rows: Params) -> Params:
    """What weights (clients, clients) make of the clients' models."""
    return {name: torch.tensordot(weights, p, 1) for name, p in rows.items()}


def attention(rows: Params, alpha: float) -> Tensor:
    """FedAMP's xi, eq. 5 to 7."""
    flat = torch.cat([p.flatten(1) for p in rows.values()], 1)
    distances = torch.cdist(flat, flat, compute_mode="donot_use_mm_for_euclid_dist").square()
    xi = (alpha / work.SIGMA * torch.exp(-distances / work.SIGMA)).fill_diagonal_(0)
    return xi + torch.diag(1 - xi.sum(1))


def run(given: work.Work, name: str, rounds: int) -> tuple[list[float], list[Mapping[str, Tensor]]]:
    """Every round: send, train all clients for one epoch, take in."""
    clients, lr, pull = given.size.clients, given.lr, given.lr * work.PULL
    base = given.model().to("meta")

    def loss(params: Params, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(base, params, (x,)), y)

    def step(rows: Params, x: Tensor, y: Tensor) -> Params:
        grads = vmap(grad(loss))(rows, x, y)
        return {name: p - lr * grads[name] for name, p in rows.items()}

    def pulled(rows: Params, centre: Params, x: Tensor, y: Tensor) -> Params:
        """The step, then the pull as an exact proximal step, as ours takes it."""
        return {name: (p + pull * centre[name]) / (1 + pull) for name, p in step(rows, x, y).items()}

    if given.device == "cuda":
        step, pulled = torch.compile(step), torch.compile(pulled)
    batches = list(zip(given.x.split(given.size.batch, 1), given.y.split(given.size.batch, 1), strict=True))
    even = torch.full((clients, clients), 1 / clients, device=given.device)  # the mean, sent to all
    stacked, _ = stack_module_state([given.model() for _ in range(clients)])
    w = v = {name: p.detach() for name, p in stacked.items()}
    seconds = []
    for _ in range(rounds):
        began = work.now(given.device)
        sent = mixed(attention(w, given.alpha) if name == "fedamp" else even, w)
        w = sent
        for x, y in batches:
            w = pulled(w, sent, x, y) if name == "fedamp" else step(w, x, y)
            if name == "ditto":
                v = pulled(v, sent, x, y)
        seconds.append(work.now(given.device) - began)
    final = {"fedavg": mixed(even[:1], w), "fedamp": w, "ditto": v}[name]
    return seconds, [{name: p[i] for name, p in final.items()} for i in range(len(next(iter(final.values()))))]


if __name__ == "__main__":
    asked = work.asked()
    work.report(*run(asked.work, asked.method, asked.rounds))
