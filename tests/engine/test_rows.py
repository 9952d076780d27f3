"""A model is a row: the layout of its columns, its random starts, and k of them evaluated at once."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from plain import CLASSES, by_steps, client, close, make_engine, make_silos
from torch import Tensor, nn

from coterie.engine.rows import Model
from coterie.errors import BadInput


class Tied(nn.Module):
    """Input and output share one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(6, 4)
        self.out = nn.Linear(4, 6, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, x: Tensor) -> Any:
        return self.out(self.embed(x).mean(1))


class Scaled(nn.Module):
    """A random constant that is not part of the saved state."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)
        self.register_buffer("factor", torch.randn(5), persistent=False)

    def forward(self, x: Tensor) -> Any:
        return self.layer(x * self.factor)


class Recurrent(nn.Module):
    """An LSTM that labels every token."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.lstm = nn.LSTM(4, 5, num_layers=2, batch_first=True, dropout=dropout)
        self.out = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Any:
        return self.out(self.lstm(self.embed(x))[0]).transpose(1, 2)


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 3))


def test_columns_are_the_parameters_by_name_and_then_the_float_buffers() -> None:
    layout = Model(small, 3).layout
    assert [(c.name, c.shape, c.size) for c in layout.parameters] == [
        ("0.weight", (4, 5), 20),
        ("0.bias", (4,), 4),
        ("1.weight", (4,), 4),
        ("1.bias", (4,), 4),
        ("3.weight", (3, 4), 12),
        ("3.bias", (3,), 3),
    ]
    # num_batches_tracked is a whole number: nothing to average
    assert [(c.name, c.shape) for c in layout.buffers] == [("1.running_mean", (4,)), ("1.running_var", (4,))]
    assert layout.trained == 6 * 32
    assert [c.start for c in layout.buffers] == [6 * 32, 7 * 32]
    assert layout.width == 8 * 32


def test_every_layer_starts_at_a_multiple_of_32_columns_and_the_padding_is_zero() -> None:
    model = Model(lambda: nn.Sequential(nn.Linear(33, 2), nn.Linear(2, 3)), 3)
    assert [c.start for c in model.layout.parameters] == [0, 96, 128, 160]  # 66, 2, 6, 3 columns in use
    assert model.width == 192
    row = model.start(0, "somebody")
    used = torch.zeros(model.width, dtype=torch.bool)
    for c in model.layout.parameters:
        used[c.start : c.start + c.size] = True
    assert (row[used] != 0).all()
    assert (row[~used] == 0).all()


def test_flatten_and_named_are_inverse() -> None:
    model = Model(small, 3)
    named = {c.name: torch.randn(c.shape) for c in (*model.layout.parameters, *model.layout.buffers)}
    row = model.layout.flatten(named)
    back = model.layout.named(row)
    assert back.keys() == named.keys()
    for name, value in named.items():
        assert torch.equal(back[name], value)
    several = model.layout.named(torch.stack([row, 2 * row]).expand(4, 2, -1))
    assert several["0.weight"].shape == (4, 2, 4, 5)
    assert torch.equal(several["3.bias"][2, 1], 2 * named["3.bias"])


def test_tied_weights_are_one_column_and_stay_tied() -> None:
    model = Model(Tied, 6, dtype=torch.float64)
    assert [c.name for c in model.layout.parameters] == ["embed.weight"]
    rows = torch.stack([model.start(0, i) for i in range(2)])
    x = torch.randint(6, (2, 3, 5), generator=torch.Generator().manual_seed(0))
    out, _ = model.forward(rows, x, training=False)
    for i in range(2):
        weight = model.layout.named(rows[i])["embed.weight"]
        close(out[i], weight[x[i]].mean(1) @ weight.T)
    module = model.module_of(rows[1])
    assert module.out.weight is module.embed.weight
    close(module.out.weight, model.layout.named(rows[1])["embed.weight"])


def test_starts_go_by_their_key() -> None:
    model = Model(small, 3)
    assert torch.equal(model.start(5, "a"), model.start(5, "a"))
    assert not torch.equal(model.start(5, "a"), model.start(5, "b"))
    assert not torch.equal(model.start(5, "a"), model.start(6, "a"))
    assert torch.equal(model.starts(5, ("a", "b"), common=True)[1], model.start(5))
    assert torch.equal(model.starts(5, ("a", "b"), common=False)[1], model.start(5, "b"))


def test_starts_leave_the_global_generator_alone() -> None:
    model = Model(small, 3)
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    model.start(5, "a")
    assert torch.equal(torch.rand(3), expected)


def test_a_start_is_the_modules_own_initialisation() -> None:
    row = Model(lambda: nn.Linear(400, 50), 50).start(0, "a")
    weight = row[: 400 * 50]
    bound = 400**-0.5  # nn.Linear draws uniformly within 1/√inputs
    assert weight.abs().max() <= bound
    assert weight.std() == pytest.approx(bound / 3**0.5, rel=0.02)


def test_a_given_module_keeps_its_own_weights_for_the_common_start() -> None:
    given = small()
    before = {name: t.clone() for name, t in given.named_parameters()}
    model = Model(given, 3)
    for seed in (0, 1):
        named = model.layout.named(model.start(seed))
        for name, value in before.items():
            assert torch.equal(named[name], value)
    keyed = model.layout.named(model.start(0, "a"))
    assert not torch.equal(keyed["0.weight"], before["0.weight"])
    assert torch.equal(model.start(0, "a"), model.start(0, "a"))
    assert all(p.requires_grad for p in given.parameters())  # what was given is not touched
    for name, value in given.named_parameters():
        assert torch.equal(value, before[name])


def test_weights_that_are_all_alike_have_no_spread_to_part_by() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(5, 3))

        def forward(self, x: Tensor) -> Any:
            return x @ self.w

    model = Model(nn.Sequential(Own()), 3)
    assert torch.equal(model.start(0)[:15], torch.ones(15))
    assert torch.equal(model.start(0, "a"), model.start(0))
    assert torch.equal(Model(Own, 3).start(0, "a")[:15], torch.ones(15))


def test_module_of_is_a_module_of_its_own() -> None:
    model = Model(small, 3)
    row = model.start(0, "a").clone()
    row[model.layout.trained :] = torch.rand(64)
    module = model.module_of(row)
    x = torch.randn(4, 5)
    assert not module.training
    close(module(x)[None], model.forward(row[None], x[None], training=False)[0], 1e-6)
    with torch.no_grad():
        module[0].weight.zero_()
    assert model.layout.named(row)["0.weight"].abs().max() > 0
    assert model.module[0].weight.abs().max() > 0


def test_module_of_has_the_buffers_of_the_row_that_no_state_dict_holds() -> None:
    model = Model(Scaled, 3)
    row = model.start(0, "a")
    assert torch.equal(model.module_of(row).factor, model.layout.named(row)["factor"])


def test_k_rows_at_once_are_k_modules() -> None:
    model = Model(small, 3, dtype=torch.float64)
    rows = torch.stack([model.start(0, i) for i in range(3)])
    x = torch.randn(3, 6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    out, after = model.forward(rows, x, training=True)
    assert after is not None
    for i in range(3):
        module = client(small, model, rows[i])
        close(out[i], module(x[i]))
        close(after[i, :4], module[1].running_mean)
        close(after[i, 32:36], module[1].running_var)
        assert (after[i, 4:32] == 0).all()
    out, none = model.forward(rows, x, training=False)
    assert none is None
    for i in range(3):
        close(out[i], client(small, model, rows[i]).eval()(x[i]))


@pytest.mark.parametrize("rows", [1, 3])
def test_a_forward_pass_does_not_change_the_rows(rows: int) -> None:
    model = Model(small, 3)
    given = torch.stack([model.start(0, i) for i in range(rows)])
    before = given.clone()
    model.forward(given, torch.randn(rows, 6, 5), training=True)
    assert torch.equal(given, before)


def test_an_lstm_trains_as_rows() -> None:
    silos = make_silos(shape=(4,), tokens=7)
    engine = make_engine(Recurrent, silos)
    engine.model.probe(torch.from_numpy(silos[0].train.x[:2]))
    task = by_steps(engine)
    w = task.start(common=False)
    batch = task.first_batch()
    got = task.grad(w, batch)
    for i in range(3):
        module = client(Recurrent, engine.model, w[i])
        torch.nn.functional.cross_entropy(module(batch.x[i]), batch.y[i]).backward()
        grads = {name: p.grad for name, p in module.named_parameters()}
        close(got.grads[i], engine.model.layout.flatten(grads))  # type: ignore[arg-type]


def test_random_numbers_that_cannot_be_keyed_are_refused() -> None:
    x = torch.randint(7, (2, 4))
    Model(Recurrent, 3).probe(x)
    with pytest.raises(BadInput, match="cannot be keyed"):
        Model(lambda: Recurrent(dropout=0.5), 3).probe(x)


def test_a_model_is_examined_where_nothing_is_differentiated() -> None:
    with torch.no_grad():
        Model(lambda: nn.Linear(3, 2), 2).probe(torch.randn(4, 3))


def test_a_draw_of_another_thread_is_not_the_models(monkeypatch):
    states = iter([0, 1])  # before and after the first look, then the same
    monkeypatch.setattr("coterie.engine.reference._random_states", lambda device: next(states, 1))
    Model(lambda: nn.Linear(3, 2), 2).probe(torch.randn(4, 3))


def test_models_that_cannot_be_rows_are_refused() -> None:
    with pytest.raises(BadInput, match="no parameters"):
        Model(nn.ReLU, 3)
    with pytest.raises(BadInput, match="momentum=None"):
        Model(lambda: nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3, momentum=None)), 3)
    with pytest.raises(BadInput, match=r"cannot take samples of shape \(4,\)"):
        Model(small, 3).probe(torch.zeros(2, 4))
    with pytest.raises(BadInput, match=r"output \(3,\) does not fit 4 classes"):
        Model(small, 4).probe(torch.zeros(2, 5))


@pytest.mark.parametrize("between", [nn.ReLU(), nn.Softmax(1)], ids=["rewritten", "vmap"])
def test_a_batch_of_one_that_batchnorm_cannot_take_is_refused_in_words(between: nn.Module) -> None:
    model = Model(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), between, nn.Linear(6, 3)), 3)
    model.probe(torch.randn(2, 4))
    rows, y = model.starts(0, ["a", "b"], common=True), torch.zeros(2, 1, dtype=torch.int64)
    with pytest.raises(BadInput, match="batch of one sample"):
        model.gradient(rows, torch.randn(2, 1, 4), y, torch.ones(2, 1))


def test_batchnorm_in_a_module_that_cannot_be_rewritten_takes_bf16_as_well() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.last = nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Any:
            return self.last(torch.exp(-self.norm(self.first(x)).abs()))

    half, whole = (Model(Odd, 3, precision=precision) for precision in ("bf16", "float32"))
    x, y, share = torch.randn(2, 8, 5), torch.randint(3, (2, 8)), torch.full((2, 8), 1 / 8)
    rows = whole.starts(0, ["a", "b"], common=False)
    for ours, theirs in zip(half.gradient(rows, x, y, share), whole.gradient(rows, x, y, share), strict=True):
        assert ours is not None and theirs is not None
        torch.testing.assert_close(ours, theirs, rtol=0.1, atol=0.02)
    assert half.way == "vmap"


class Headed(nn.Module):
    """A body with a BatchNorm whose name does not tell, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 5)
        self.rest = nn.Sequential(nn.BatchNorm1d(5), nn.ReLU())
        self.last = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.rest(self.first(x)))
        return out


def test_columns_go_by_name_by_layer_and_by_the_words_for_parts() -> None:
    model = Model(Headed, 2)
    model.probe(torch.randn(8, 3))
    head, norm = (
        ("last.weight", "last.bias"),
        ("rest.0.weight", "rest.0.bias", "rest.0.running_mean", "rest.0.running_var"),
    )
    assert model.columns("head").names == head
    assert model.columns("norm").names == norm
    assert model.columns("body").names == ("first.weight", "first.bias", *norm)
    assert model.columns("first").names == ("first.weight", "first.bias")
    assert model.columns("*.bias", "head").names == ("first.bias", "rest.0.bias", *head)
    assert model.columns("*").width == model.width
    with pytest.raises(BadInput, match="nothing named 'lst'; did you mean 'last'"):
        model.columns("lst")


def test_columns_are_taken_and_put_back_as_they_were() -> None:
    model = Model(Headed, 2)
    model.probe(torch.randn(8, 3))
    rows, others = torch.randn(2, 4, 3, model.width)
    parts = [model.columns(word) for word in ("head", "body", "norm", "*.bias")]
    for part in parts:
        made = part.put(rows, part.take(others))
        named, before, expected = (model.layout.named(r) for r in (made, rows, others))
        assert all(torch.equal(named[n], (expected if n in part.names else before)[n]) for n in named)
        assert part.take(rows).shape == (4, 3, part.width)
        assert part.width - part.trained == sum(32 for n in part.names if "running" in n)
    assert sum(part.width for part in parts[:2]) == model.width


def test_a_module_that_draws_its_weights_by_numpy_starts_the_same_for_a_seed():
    class Drawn(nn.Linear):
        def __init__(self):
            super().__init__(5, CLASSES)
            self.weight.data = torch.from_numpy(np.random.normal(size=(CLASSES, 5)).astype("f"))
            self.bias.data.fill_(random.random())

    model = Model(Drawn, CLASSES)
    before = np.random.get_state()[1].tolist(), random.getstate()
    assert torch.equal(model.start(0), model.start(0)) and not torch.equal(model.start(0), model.start(1))
    assert (np.random.get_state()[1].tolist(), random.getstate()) == before
