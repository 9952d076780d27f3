"""The transformer: what it sees, and how its rows run."""

import pytest
import torch
from torch import nn

from coterie.engine.rows import Model
from coterie.errors import BadInput
from coterie.models import build

TABLE = {"name": "transformer", "width": 8, "heads": 2, "layers": 2}
LORA = {"lora": {"rank": 2, "targets": ["*.query", "*.value"]}}


def made(**more: object) -> nn.Module:
    torch.manual_seed(0)
    return build({**TABLE, **more}, (6,), 20)[0]().eval()


def test_a_block_is_pytorchs_own_layer() -> None:
    block = made().blocks[0]  # type: ignore[index,union-attr]
    theirs = nn.TransformerEncoderLayer(8, 2, 32, 0.0, "gelu", batch_first=True, norm_first=True).eval()
    attention = theirs.self_attn
    with torch.no_grad():
        attention.in_proj_weight.copy_(torch.cat([layer.weight for layer in (block.query, block.key, block.value)]))
        attention.in_proj_bias.copy_(torch.cat([layer.bias for layer in (block.query, block.key, block.value)]))
        for ours, its in (
            (block.project, attention.out_proj), (block.widen, theirs.linear1), (block.narrow, theirs.linear2),
            (block.norm1, theirs.norm1), (block.norm2, theirs.norm2),
        ):  # fmt: skip
            its.load_state_dict(ours.state_dict())
    x = torch.randn(3, 6, 8)
    mask = nn.Transformer.generate_square_subsequent_mask(6)
    torch.testing.assert_close(block(x), theirs(x, mask, is_causal=True), rtol=1e-4, atol=1e-5)


def test_it_runs_rewritten_whatever_of_it_trains() -> None:
    x = torch.randint(20, (4, 6), generator=torch.Generator().manual_seed(0))
    for more in (LORA, {}):
        model = Model(build({**TABLE, **more}, (6,), 20)[0], 20)
        model.probe(x)
        assert model.way == "rewritten"
        assert model.head == "output"


def test_below_a_head_that_trains_alone_all_is_computed_once() -> None:
    x = torch.randint(20, (4, 6), generator=torch.Generator().manual_seed(0))
    model = Model(build({**TABLE, "freeze": ["*"], "train": ["head"]}, (6,), 20)[0], 20)
    model.probe(x)
    assert model.prefix is not None
    assert model.prefixed(x).shape == (4, 8)


def test_what_it_cannot_take_is_refused() -> None:
    with pytest.raises(BadInput, match="3 heads cannot share a width of 8"):
        made(heads=3)
    with pytest.raises(BadInput, match="sequences of characters"):
        build(TABLE, (3, 8, 8), 20)
