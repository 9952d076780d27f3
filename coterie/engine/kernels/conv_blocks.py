"""How much of a convolution a program of its kernels takes at once, by its columns and by what a GPU holds.

Measured once on an H200, for every layer of a ResNet-18 with 16 to 64 channels: the sizes that Triton's own search
finds there but for a few ties, whatever the number of samples. Searching in each run took longer than the run wherever
silos differ in size, and let a timing decide how sums are rounded.
"""

SPARE = 1024  # bytes of shared memory that a compiler may want besides
SMALLEST = 16  # of a side, by which matrix units compute


def product_block(columns: int, size: int, shared: int) -> dict[str, int]:
    """Of outputs (m, n), sums along k of numbers of `size` bytes, for a GPU with so many bytes of shared memory."""
    n = 32 if columns <= 32 else 64 if columns <= 64 else 128
    return _fitting({"BLOCK_M": 128, "BLOCK_N": n, "BLOCK_K": 64 * 2 // max(size, 2)}, "BLOCK_K", size, shared)


def filters_block(columns: int, size: int, shared: int) -> dict[str, int]:
    """The same of the filters' gradients (k, n), sums along m."""
    n = 64 if columns <= 64 else 128
    return _fitting({"BLOCK_M": 64 * 2 // max(size, 2), "BLOCK_N": n, "BLOCK_K": 128}, "BLOCK_M", size, shared)


def _fitting(sides: dict[str, int], along: str, size: int, shared: int) -> dict[str, int]:
    """With as many stages as fit, at most three; where not one does, with the longest side halved until it fits."""
    warps = 8 if sides["BLOCK_N"] > 64 else 4
    while (stages := _stages(sides, along, size, shared)) < 1 and max(sides.values()) > SMALLEST:
        longest = max(sides, key=lambda side: sides[side])
        sides = sides | {longest: sides[longest] // 2}
    return sides | {"num_warps": warps, "num_stages": max(1, min(3, stages))}


def _stages(sides: dict[str, int], along: str, size: int, shared: int) -> int:
    """How often both operands fit beside each other; never, where what they make does not fit either."""
    one, other = (sides[side] for side in sides if side != along)
    room = shared - SPARE
    return room // (sides[along] * (one + other) * size) if one * other * size <= room else 0
