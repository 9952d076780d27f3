"""What FedAMP, HeurFedAMP and FedACS share: who is like whom is a matter of what is trained."""

import pytest
import torch
from plain import CLASSES, make_engine
from torch import Tensor, nn

from coterie.engine.method import Cohort
from coterie.engine.simulate import Simulator
from coterie.methods import make
from coterie.methods.parts.message_passing import Models, PersonalUp
from coterie.methods.wrappers.personal import LocalBuffers

attentive = pytest.mark.parametrize("name", ["fedamp", "heurfedamp", "fedacs"])


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6, bias=False), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, CLASSES))


def drawn(engine: Simulator, seed: int) -> Tensor:
    """Five models with parameters that are always the same, and buffers that the seed decides."""
    model, trained = engine.model, engine.model.layout.trained
    rows = model.starts(0, [*engine.roster.names, "newcomer", "other"], common=False)
    buffers = torch.randn(5, model.width - trained, generator=torch.Generator().manual_seed(seed)).double()
    return torch.cat([rows[:, :trained], 100**seed * buffers], 1)


@attentive
def test_equal_parameters_are_equal_attention_whatever_the_buffers(name: str) -> None:
    engine = make_engine(normed, method=make(name, {}))
    trained, everyone = engine.model.layout.trained, Cohort.everyone(engine.roster, engine.model, 0)
    found = []
    for seed in (0, 1):
        rows = drawn(engine, seed)
        server: Models = engine.method.open(engine.roster, engine.model).replace(w=rows[:3])
        answered = engine.method.host(server, everyone, PersonalUp(w=rows[3:]))
        xi = engine.method.trace(server, everyone, None)["collaboration"]
        sent = engine.method.send(server, everyone).u
        torch.testing.assert_close(sent, xi @ rows[:3])  # statistics are mixed all the same
        found.append((xi, sent[:, :trained], answered.u[:, :trained]))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(found[0][2][0], found[0][2][1])


@attentive
def test_local_buffers_change_no_attention(name: str) -> None:
    inner = make(name, {})
    engine, local = make_engine(normed, method=inner), make_engine(normed, method=LocalBuffers(inner))
    rows = drawn(engine, 1)[:3]
    kept = rows.clone()
    kept[:, engine.model.layout.trained :] = 0
    one, other = (
        each.method.trace(
            each.method.open(each.roster, each.model).replace(w=w), Cohort.everyone(each.roster, each.model, 0), None
        )["collaboration"]
        for each, w in ((engine, rows), (local, kept))
    )
    assert torch.equal(one, other)
