"""What is timed of frozen bases, at the size of a toy, and the weights that such a base may have."""

import frozen
import numpy as np
import pretrain
import pytest
import torch

from coterie.data.silo import Pool
from coterie.models import build


@pytest.mark.slow
def test_every_way_to_do_a_work_is_timed() -> None:
    found = [line for work in frozen.works(toy=True) for line in frozen.lines(work, "cpu", repeats=1)]
    assert [(line["trained"], line["how"]) for line in found] == [
        ("head", "plain PyTorch"), ("head", "rows, kept features"), ("head", "rows"),
        ("everything", "plain PyTorch"), ("everything", "rows"),
        ("LoRA of rank 8", "plain PyTorch"), ("LoRA of rank 8", "rows"),
    ]  # fmt: skip
    widths = {(line["trained"], line["how"]): line["width"] for line in found}
    assert widths["head", "rows"] == widths["head", "rows, kept features"] < widths["everything", "rows"] / 10


def test_the_transformer_is_as_large_as_it_is_said() -> None:
    assert frozen.weights(frozen.TRANSFORMER) >= 25_000_000


def test_pretraining_learns_and_its_weights_start_a_model() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=200)
    pool = Pool("toy", (np.eye(3)[y] + 0.1 * rng.standard_normal((200, 3))).astype(np.float32), y, 3)
    module, accuracy = pretrain.pretrain(pool, {"name": "mlp", "hidden": [8]}, 20, 0.01, 16, "cpu", flip=False)
    assert accuracy > 0.9
    assert module.state_dict().keys() == build({"name": "mlp", "hidden": [8]}, (3,), 5)[0]().state_dict().keys()


def test_who_is_large_enough_to_be_a_silo_trains_no_base() -> None:
    owner = np.array(["large"] * 5 + ["small"] * 3 + ["tiny"])
    pool = Pool("toy", np.zeros((9, 2), np.float32), np.zeros(9, np.int64), 2, owner=owner)
    left = pretrain.without_silos(pool, 4)
    assert set(left.owner.tolist()) == {"small", "tiny"}  # type: ignore[union-attr]
    assert len(pretrain.without_silos(Pool("toy", pool.x, pool.y, 2), 4)) == 9
    assert torch.is_tensor(torch.from_numpy(left.x))
