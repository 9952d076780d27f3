"""FedALA against the equations of Zhang et al., AAAI 2023."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from method_cases import conform
from oracle import SIZES, Oracle, close
from torch import nn

from coterie.conformance import Ground, check_rows_do_not_matter
from coterie.engine.layout import Layout
from coterie.engine.method import Method
from coterie.engine.simulate import Simulator
from coterie.engine.training import Training
from coterie.methods import make
from coterie.methods.fedala import FedALA, top_columns
from coterie.methods.fedavg_local import FedAvgLocal


@conform("fedala", {"layers": 2, "share": 1.0}, {"share": 0.4, "eta": 3.0, "passes": 4, "threshold": 10.0})
def test_conformance(method: Method, check: Callable[[Ground], None]) -> None:
    check(Ground(method))


def learned(
    oracle: Oracle, silo: int, r: int, own: np.ndarray, sent: np.ndarray, a: np.ndarray, method: FedALA, start: bool
) -> tuple[np.ndarray, int]:
    """A_i after the passes of a round over its share of the data, and how many passes there were."""
    x, y = oracle.data(silo)
    wanted, losses = math.ceil(method.share * SIZES[silo]), []
    while True:
        left, total = wanted, 0.0
        for b in oracle.batches(silo, r, "ala", epochs=1):
            b, left = b[:left], left - len(b[:left])
            if len(b):
                mixed = own + (sent - own) * a  # eq. 3
                total += oracle.losses(mixed, x[b], y[b]).sum()
                a = np.clip(a - method.eta * oracle.grad(mixed, x[b], y[b]) * (sent - own), 0, 1)  # eq. 5
        losses.append(total / wanted)
        settled = len(losses) > 10 and np.std(losses[-10:]) < method.threshold
        if not start or settled or len(losses) == method.passes:
            return a, len(losses)


@pytest.mark.parametrize("options", [{}, {"share": 0.5, "eta": 20.0, "threshold": 1e-3}, {"passes": 3, "eta": 5.0}])
@pytest.mark.parametrize("cohorts", [[[0, 1, 2]] * 4, [[0, 2], [0, 1], [0, 1, 2], [1]]], ids=["all", "some"])
def test_four_rounds(cohorts: list[list[int]], options: dict[str, float]) -> None:
    """The linear model is one layer, so that A is over all of it."""
    oracle, method = Oracle(), FedALA(**options)
    played = oracle.play(method, rounds=4, ids=cohorts)
    sent, own, a = oracle.start(), np.stack([oracle.start()] * 3), np.ones((3, 15))
    took_part, inside = np.zeros(3, dtype=int), False
    for r, cohort in enumerate(cohorts):
        for i in cohort:
            if took_part[i]:  # a silo's first round takes the global model as it is
                a[i], _ = learned(oracle, i, r, own[i], sent, a[i], method, start=took_part[i] == 1)
            start = own[i] + (sent - own[i]) * a[i] if took_part[i] else sent
            own[i] = oracle.descend(i, start, r)
            took_part[i] += 1
        inside = inside or bool(((a > 0) & (a < 1)).any())
        close(oracle.vector(played.ups[r].w), own[cohort])
        sent = sum(oracle.sizes[i] * own[i] for i in cohort) / oracle.sizes[cohort].sum()
        close(oracle.vector(played.servers[r + 1].w), sent)
        private = played.privates[r + 1]
        close(oracle.vector(private.w), own)
        close(oracle.vector(private.a), a)
    assert inside, "A never lay between its ends"


def test_the_start_stage_goes_on_until_the_loss_stands_still_and_no_longer_than_its_cap() -> None:
    oracle = Oracle()
    counts = {}
    for threshold in (1.0, 1e-9):
        method = FedALA(eta=20.0, threshold=threshold, passes=30)
        played = oracle.play(method, rounds=1)
        own, sent = oracle.vector(played.ups[0].w), oracle.vector(played.servers[1].w)
        counts[threshold] = [
            learned(oracle, i, 1, own[i], sent, np.ones(15), method, start=True)[1] for i in range(oracle.m)
        ]
        later = oracle.play(method, rounds=2).privates[-1].a
        for i in range(oracle.m):
            close(
                oracle.vector(later)[i],
                learned(oracle, i, 1, own[i], sent, np.ones(15), method, start=True)[0],
            )
    assert counts[1.0] == [11] * 3 and max(counts[1e-9]) > 11


def test_with_a_at_one_it_is_fedavg_local() -> None:
    oracle = Oracle()
    ours, plain = (oracle.play(method, rounds=3) for method in (FedALA(eta=0.0), FedAvgLocal()))
    close(ours.servers[-1].w, plain.servers[-1].w)
    close(ours.deployed(), plain.deployed())


def test_with_a_at_zero_on_all_layers_a_silo_goes_on_from_its_own_model() -> None:
    ground = Ground(FedALA(eta=0.0, layers=2))
    engine = ground.engine()
    task, private = engine.task(torch.arange(2), 3), engine.private().take(torch.arange(2))
    own = private.w + torch.randn(private.w.shape, generator=torch.manual_seed(0), dtype=private.w.dtype)
    private = private.replace(w=own, a=torch.zeros_like(private.a), rounds=private.rounds + 2)
    state = ground.method.begin(task, ground.method.down(w=torch.ones(own.shape[1], dtype=own.dtype)), private)
    trained = engine.model.layout.trained
    torch.testing.assert_close(state.w[:, :trained], own[:, :trained])


def test_lower_layers_are_the_global_models() -> None:
    ground = Ground(FedALA(layers=1))
    engine = ground.engine()
    task, private = engine.task(torch.arange(2), 3), engine.private().take(torch.arange(2))
    private = private.replace(w=private.w + 1, rounds=private.rounds + 2)
    sent = torch.randn(engine.model.width, generator=torch.manual_seed(0), dtype=torch.float64)
    started = engine.model.layout.named(ground.method.begin(task, ground.method.down(w=sent), private).w)
    theirs = engine.model.layout.named(sent)
    for name in ("0.weight", "0.bias"):
        torch.testing.assert_close(started[name], theirs[name].expand_as(started[name]))
    assert not torch.allclose(started["2.weight"], theirs["2.weight"].expand_as(started["2.weight"]))


def test_layers_are_counted_from_the_last_with_all_their_tensors() -> None:
    layout = Layout(
        nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5, bias=False), nn.BatchNorm1d(5), nn.Linear(5, 2))
    )
    starts = {block.name: block.start for block in layout.parameters}
    firsts = [starts[name] for name in ("4.weight", "3.weight", "2.weight", "0.weight", "0.weight")]
    assert [top_columns(layout, p) for p in (1, 2, 3, 4, 99)] == [slice(first, layout.trained) for first in firsts]


def test_a_newcomer_trains_the_global_model_for_one_round() -> None:
    oracle, method = Oracle(), FedALA()
    played = oracle.play(method, rounds=3)
    newcomer = Simulator(method, oracle.silos[1:2], oracle.model, oracle.training, oracle.seed)
    newcomer.host(played.servers[-1], 3)
    sent = oracle.vector(played.servers[-1].w)
    close(oracle.vector(newcomer.private().w)[0], oracle.descend(1, sent, 3, purpose="arrive"))


def test_a_stays_on_the_silo() -> None:
    assert set(Oracle().play(FedALA(), rounds=2).ups[-1].tensors()) == {"w"}


@pytest.mark.parametrize(
    "wrapper",
    [{"clip_update": {}}, {"compress": {"bits": 8}}, {"robust": {}}, {"finetune": {}}, {"privacy": {}}],
    ids=str,
)
def test_wrappers_fit(wrapper: dict[str, object]) -> None:
    method = make("fedala", wrapper)
    engine = Ground(method).engine()
    assert method.refusal(engine.roster, engine.model) is None


def test_batch_norm() -> None:
    def normed() -> nn.Module:
        return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))

    training = Training(rounds=3, local_epochs=1, batch_size=8, lr=0.1)
    check_rows_do_not_matter(Ground(FedALA(layers=2), normed, training=training))
