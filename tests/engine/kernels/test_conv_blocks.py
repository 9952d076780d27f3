"""Blocks of convolutions: as measured where a GPU holds them, fewer stages or smaller ones where it does not."""

import pytest

from coterie.engine.kernels.conv_blocks import SPARE, filters_block, product_block

H200, RTX, T4 = 232448, 101376, 65536  # bytes of shared memory that a program may have


def held(block: dict[str, int], along: str, size: int) -> int:
    one, other = (block[side] for side in ("BLOCK_M", "BLOCK_N", "BLOCK_K") if side != along)
    return max(block["num_stages"] * block[along] * (one + other) * size, one * other * size)


def test_large_gpus_take_what_was_measured() -> None:
    for shared in (H200, RTX):
        block = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "num_warps": 8, "num_stages": 3}
        assert product_block(128, 2, shared) == block
        assert product_block(128, 4, shared) == block | {"BLOCK_K": 32}
        assert product_block(20, 2, shared) == block | {"BLOCK_N": 32, "num_warps": 4}
        assert filters_block(128, 2, shared) == block | {"BLOCK_M": 64, "BLOCK_K": 128}
        assert filters_block(64, 4, shared) == block | {"BLOCK_M": 32, "BLOCK_N": 64, "BLOCK_K": 128, "num_warps": 4}


@pytest.mark.parametrize("shared", [H200, RTX, T4, 49152, 16384])
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("columns", [16, 64, 512])
def test_every_gpu_takes_what_it_holds(columns: int, size: int, shared: int) -> None:
    for way, along in ((product_block, "BLOCK_K"), (filters_block, "BLOCK_M")):
        block = way(columns, size, shared)
        assert held(block, along, size) + SPARE <= shared
        assert min(block.values()) >= 1 and min(block[side] for side in ("BLOCK_M", "BLOCK_N", "BLOCK_K")) >= 16


def test_a_small_gpu_has_fewer_stages_before_it_has_smaller_blocks() -> None:
    assert product_block(128, 2, T4) == {
        "BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "num_warps": 8, "num_stages": 1,
    }  # fmt: skip
