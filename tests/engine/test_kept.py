"""What a frozen prefix gives is computed once for each sample, and nothing is otherwise for it."""

import pytest
import torch
from awkward import PICTURES, TEXTS, TOKENS, TRAINED
from plain import by_steps, close, make_engine, make_silos
from torch import Tensor, nn

from coterie.data.silo import Part, Silo
from coterie.engine import kept
from coterie.engine.measuring import measure
from coterie.engine.simulate import Simulator
from coterie.engine.task import Batch
from coterie.errors import BadInput
from coterie.wire import Predictor

SPLIT = (
    "frozen",
    "frozen tied",
    "frozen attention",
    "frozen pictures",
    "frozen but head",
    "frozen but norm",
    "frozen twice",
    "head under vmap",
)
WHOLE = (
    "plain",
    "frozen middle",
    "frozen bias",
    "frozen shift",
    "frozen norm",
    "frozen, vmap",
    "head under vmap, and more after it",
    "head under vmap, dropout",
    "head under vmap, and more trains",
)


class FrozenTwice(nn.Module):
    """Frozen layers on two ways that meet before anything trains."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = (nn.Linear(5, 6).requires_grad_(False) for _ in range(2))
        self.relu, self.out = nn.ReLU(inplace=True), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.cos(self.one(x)) + torch.softmax(self.other(x), 1) - 0.5
        y: Tensor = self.out(self.relu(h))
        return y


class UnderVmap(nn.Module):
    """A frozen body that no tracing follows, since it counts its columns, and a head."""

    def __init__(self, after: bool = False, dropout: float = 0.0, trains: bool = False) -> None:
        super().__init__()
        self.after, self.drop = after, nn.Dropout(dropout)
        self.body = nn.ModuleDict({"one": nn.Linear(5, 6), "other": nn.Linear(6, 6)}).requires_grad_(False)
        self.body["other"].requires_grad_(trains)
        self.top = nn.ModuleDict({"head": nn.Linear(6, 3)})

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.body["one"](x))
        for column in range(h.shape[1]):
            h = h + 0.1 * h[:, column, None]
        y: Tensor = self.top["head"](self.drop(torch.tanh(self.body["other"](h))))
        return y.cos() if self.after else y


UNTRACED = {
    "head under vmap": UnderVmap,
    "head under vmap, and more after it": lambda: UnderVmap(after=True),
    "head under vmap, dropout": lambda: UnderVmap(dropout=0.3),
    "head under vmap, and more trains": lambda: UnderVmap(trains=True),
}


def engine_of(name: str, keep: bool | str, **train: object) -> Simulator:
    build = FrozenTwice if name == "frozen twice" else UNTRACED.get(name) or TRAINED[name]
    if name in TEXTS:
        made = make_silos(shape=(6,), tokens=TOKENS, test=(9, 2, 5))
        silos = [Silo(s.name, *(Part(p.x, p.y[:, 0]) for p in (s.train, s.validation, s.test))) for s in made]
    else:
        silos = make_silos(shape=(2, 4, 4) if name in PICTURES else (5,), test=(9, 2, 5))
    return make_engine(build, silos, keep_features=keep, momentum=0.9, weight_decay=0.05, **train)


@pytest.mark.parametrize("name", SPLIT)
def test_kept_or_not_the_numbers_are_the_same(name: str) -> None:
    one, other = (by_steps(engine_of(name, keep)) for keep in (True, False))
    start = other.start(common=False)
    assert torch.equal(one.start(common=False), start)
    ours, theirs = one.fit(start, "train"), other.fit(start, "train")
    close(ours, theirs, 1e-12)
    assert not torch.allclose(ours, start)
    for split in ("train", "test"):
        close(one.losses(ours, split), other.losses(ours, split), 1e-12)
        close(one.features(ours, split), other.features(ours, split), 1e-12)
        found, known = (measure(task, Predictor(models=ours), split) for task in (one, other))
        close(found["loss"], known["loss"], 1e-12)

    def loss(out: Tensor, batch: Batch, features: Tensor | None) -> Tensor:
        assert features is not None
        return one.model.sample_losses(out, batch.y) + features.square().flatten(2).sum(2)

    batches = [task.first_batch() for task in (one, other)]
    for _ in range(2):  # a batch serves twice
        grads = [
            task.grad(start, batch, loss=loss, features=True).grads
            for task, batch in zip((one, other), batches, strict=True)
        ]
        close(*grads, 1e-12)


@pytest.mark.parametrize("name", SPLIT)
def test_what_was_kept_is_not_computed_again(name: str) -> None:
    engine = engine_of(name, "auto")
    for frozen in engine.model.frozen.values():
        frozen.fill_(torch.nan)
    task = by_steps(engine)
    start = task.start()
    assert torch.isfinite(task.fit(start, "train")).all() or name == "frozen tied"  # which has the matrix in both parts
    assert torch.isfinite(task.losses(start, "test")).all() or name == "frozen tied"


@pytest.mark.parametrize("name", WHOLE)
def test_a_module_that_cannot_be_split_is_not(name: str) -> None:
    engine = engine_of(name, "auto")
    assert engine.model.rest is None
    assert not engine.store.kept
    with pytest.raises(BadInput, match="keep_features: nothing that is frozen comes before"):
        engine_of(name, True)


def test_none_of_these_modules_is_traced() -> None:
    assert {name: engine_of(name, False).model.way for name in UNTRACED} == dict.fromkeys(UNTRACED, "vmap")


def test_a_simulation_of_the_same_silos_keeps_them_once() -> None:
    model, store = (first := engine_of("frozen", False)).model, first.store
    again = [kept.keep_features(model, store, True)[1] for _ in range(2)]
    assert again[0] is again[1]


def test_what_memory_does_not_hold_is_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "SHARE", 0)
    one, other = (by_steps(engine_of("frozen pictures", keep)) for keep in (True, False))
    close(one.fit(one.start(), "train"), other.fit(other.start(), "train"), 1e-12)
    monkeypatch.setattr(kept, "DISK", 0)
    assert engine_of("frozen pictures", "auto").model.rest is not None  # as it was: nothing is kept
    with pytest.raises(BadInput, match="neither memory nor disk"):
        engine_of("frozen pictures", True)


def test_half_precision_keeps_them_in_it() -> None:
    from coterie.engine.rows import Model
    from coterie.engine.store import Store

    silos = make_silos()
    whole, half = (Model(TRAINED["frozen"], 3, precision=precision) for precision in ("float32", "bf16"))
    outs = []
    for model in (whole, half):
        rest, store = kept.keep_features(model, Store(silos, "cpu"), True)
        row = whole.start(0)[None]
        outs.append(rest.forward(row, store["train"].x[None, :4], training=False)[0])
    assert store["train"].x.dtype == torch.bfloat16
    close(outs[1], outs[0], 0.03)
