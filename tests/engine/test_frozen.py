"""What is frozen is held once: in no row, in no upload, and the same for every silo, seed and component."""

import pytest
import torch
from awkward import PICTURES, TEXTS, TRAINED, Net, batch_norm, frozen_but_head, frozen_norm, frozen_pictures
from plain import close, make_engine, make_silos
from torch import nn

from coterie.engine.rows import Model
from coterie.errors import BadInput
from coterie.methods.parts.mixture import first_components
from coterie.models import MODELS, build
from coterie.models.parts import Blueprint, Parts, freeze

REWRITTEN = (
    "frozen", "frozen middle", "frozen bias", "frozen shift", "frozen tied", "frozen norm", "frozen pictures",
    "frozen but norm", "frozen but head", "frozen untracked norm", "low rank", "low rank, pictures",
    "norm kept in evaluation",
)  # fmt: skip


def probed(name: str) -> Model:
    model = Model(TRAINED[name], 3, dtype=torch.float64)
    draw = torch.Generator().manual_seed(0)
    shape = (4, 2, 4, 4) if name in PICTURES else (4, 5)
    x = torch.randint(7, (4, 6), generator=draw) if name in TEXTS else torch.randn(shape, generator=draw)
    model.probe(x if name in TEXTS else x.double())
    return model


@pytest.mark.parametrize("name", REWRITTEN)
def test_what_is_frozen_does_not_keep_a_module_from_being_rewritten(name: str) -> None:
    assert probed(name).way == "rewritten"


def test_padding_that_is_frozen_keeps_no_module_from_vmap() -> None:
    assert probed("frozen padding").way == "vmap"
    assert probed("padding").way == "one by one"


def test_frozen_parameters_are_in_no_row() -> None:
    model = Model(TRAINED["frozen"], 3)
    assert [block.name for block in model.layout.parameters] == ["out.weight", "out.bias"]
    assert set(model.frozen) == {"first.weight", "first.bias"}


def test_statistics_that_move_are_in_a_row_and_those_that_stay_are_not() -> None:
    assert [block.name for block in Model(frozen_norm, 3).layout.buffers] == ["1.running_mean", "1.running_var"]
    still = Model(frozen_but_head, 3)
    assert still.layout.buffers == ()
    assert {"1.weight", "1.running_mean", "1.running_var"} <= still.frozen.keys()


def test_what_is_frozen_is_one_for_all_parties_seeds_and_components() -> None:
    one, other = Model(frozen_pictures, 3), Model(frozen_pictures, 3)
    torch.manual_seed(7)
    for model in (other, Model(frozen_pictures, 3)):
        for name, tensor in model.frozen.items():
            assert torch.equal(tensor, one.frozen[name])
    assert not torch.equal(one.start(0), one.start(1))  # what trains is drawn by the seed
    modules = [one.module_of(one.start(0, "component", c)) for c in range(2)]
    assert torch.equal(modules[0][0].weight, modules[1][0].weight)  # type: ignore[index]
    assert not torch.equal(modules[0][7].weight, modules[1][7].weight)  # type: ignore[index]


def test_a_base_is_not_copied_for_calls() -> None:
    for name in ("frozen", "frozen, vmap"):
        model = probed(name)
        way = model._way
        called = way.module if hasattr(way, "module") else way.train  # type: ignore[union-attr]
        assert called.get_submodule("first").weight is model.module.get_submodule("first").weight


def test_a_pattern_of_frozen_columns_alone_is_refused() -> None:
    model = probed("frozen")
    with pytest.raises(BadInput, match="'body' in the model is frozen"):
        model.columns("body")
    assert model.columns("head").names == ("out.weight", "out.bias")


def test_patterns_freeze_and_train() -> None:
    def left(*patterns: list[str]) -> list[str]:
        return [name for name, p in freeze(batch_norm(), *patterns).named_parameters() if p.requires_grad]

    assert left(["*"], ["head"]) == ["3.weight", "3.bias"]
    assert left(["*"], ["norm"]) == ["1.weight", "1.bias"]
    assert left(["norm", "0.bias"], []) == ["0.weight", "3.weight", "3.bias"]
    with pytest.raises(BadInput, match="nothing named 'haed'; did you mean 'head'"):
        left(["haed"], [])
    with pytest.raises(BadInput, match="no layer that normalises, so 'norm' names nothing"):
        freeze(nn.Sequential(nn.Linear(5, 3)), ["norm"], [])


@pytest.mark.parametrize(
    ("word", "lacks"),
    [("norm", "no layer that normalises"), ("lora_A", "no adapters"), ("body", "no layer beside its head")],
)
def test_a_word_for_a_part_that_a_model_lacks_is_not_taken_for_a_slip_of_the_pen(word: str, lacks: str) -> None:
    with pytest.raises(BadInput, match=f"the model has {lacks}, so '{word}' names nothing in it"):
        freeze(nn.Linear(2, 2), [word], [], head="")


def test_a_norm_that_is_frozen_whole_stays_in_evaluation() -> None:
    module = freeze(batch_norm(), ["body"], []).train()
    assert module.training
    assert not module[1].training  # type: ignore[index]
    before = module[1].running_mean.clone()  # type: ignore[index,operator]
    module(torch.randn(4, 5))
    assert torch.equal(module[1].running_mean, before)  # type: ignore[index,arg-type]
    assert freeze(batch_norm(), ["0"], []).train()[1].training  # type: ignore[index]


def test_components_start_from_a_given_module_and_part() -> None:
    given = Net()
    model = Model(given, 3)
    first, second, third = first_components(0, model, 3)
    own = {name: p.detach() for name, p in given.named_parameters()}
    for name, value in model.layout.named(first).items():
        assert torch.equal(value, own[name])
    for row in (second, third):
        named = model.layout.named(row)
        for name, value in own.items():
            assert 0.001 < float((named[name] - value).std() / value.std()) < 0.03
    assert not torch.equal(second, third)
    assert torch.equal(first_components(0, model, 2)[1], second)


def test_a_fresh_layer_is_drawn_by_the_key_and_the_rest_is_as_given() -> None:
    body = nn.Linear(5, 4).state_dict()

    def build() -> nn.Module:
        made = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))
        made[0].load_state_dict(body)
        return made

    model = Model(build, 3)
    rows = [model.layout.named(model.start(0, "component", c)) for c in range(2)]
    assert torch.equal(rows[0]["0.weight"], body["weight"])
    assert torch.equal(rows[1]["0.weight"], body["weight"])
    assert not torch.equal(rows[0]["1.weight"], rows[1]["1.weight"])


def test_half_precision_holds_the_base_in_it_too() -> None:
    for name in ("frozen", "frozen, vmap"):
        whole = Model(TRAINED[name], 3)
        half = Model(TRAINED[name], 3, precision="bf16")
        x = torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(0))
        rows = torch.stack([whole.start(0, "a"), whole.start(0, "b")])
        close(half.forward(rows, x, False)[0], whole.forward(rows, x, False)[0], 0.03)
        assert half.base_checksum == whole.base_checksum  # what is saved of it is as it was


def test_bytes_that_leave_are_those_that_train() -> None:
    engine = make_engine(TRAINED["frozen"], make_silos())
    assert engine.model.width == engine.model.columns("head").width


def test_which_layer_is_the_head_is_not_guessed() -> None:
    class HeadFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out, self.first = nn.Linear(4, 3), nn.Linear(5, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.out(self.first(x))
            return out

    with pytest.raises(BadInput, match="last layer is 'first', but the last to run is 'out'; name the head"):
        Model(Blueprint(HeadFirst, Parts(freeze=("body",))), 3).probe(torch.randn(4, 5))
    model = Model(Blueprint(HeadFirst, Parts(head="out", freeze=("body",))), 3)
    model.probe(torch.randn(4, 5))
    assert model.head == "out"
    assert set(model.frozen) == {"first.weight", "first.bias"}


@pytest.mark.parametrize("name", [name for name in MODELS if name not in ("char-lstm", "transformer")])
def test_every_model_of_ours_has_its_head_last(name: str) -> None:
    small = {"resnet18": {"width": 8}, "mobilenet_v2": {"width": 0.1}, "cnn-em": {"hidden": 8}}
    shape = (5,) if name in ("linear", "mlp") else (3, 16, 16)
    table = {"name": name, **small.get(name, {}), "freeze": ["*"], "train": ["head"]}
    blueprint, written = build(table, shape, 3)
    model = Model(blueprint, 3)
    model.probe(torch.randn(4, *shape))
    assert written["freeze"] == ["*"]
    assert model.columns("head").names == tuple(block.name for block in model.layout.parameters)


def test_a_head_that_is_not_there_is_refused() -> None:
    with pytest.raises(BadInput, match="no layer '9' to be its head"):
        Model(build({"name": "mlp", "head": "9", "freeze": ["body"]}, (5,), 3)[0], 3)


def test_what_trains_is_named_only_of_what_is_frozen() -> None:
    with pytest.raises(BadInput, match=r"\[model\]: train names what is left of freeze"):
        build({"name": "linear", "train": ["head"]}, (5,), 3)
