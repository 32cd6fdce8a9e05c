"""The committed configurations of the layer's own kernels: at most four a kernel and architecture, the default first.

A choice is a pure function of (architecture, static width), never of a count of tokens, and nothing is timed in a
user's process. All candidates of a kernel give the same bits, but for dot products, whose order is part of the
candidate.
"""

from __future__ import annotations

from kernels.launch import power_of_two
from kernels.operators.configs import TileConfig


def move_candidates(arch: str, width: int, *, dots: bool = False) -> tuple[TileConfig, ...]:
    """Of the kernels that take one token a program, with all of its rows: so many columns of each at a time.

    16 bytes of bf16 a lane and row are in flight for every choice, so few warps already keep the memory busy. `dots`:
    it spreads rows and adds up products with others; at 8192 tokens of 2048 with 8 rows each an H200 took 169 us with
    one warp and 184 with four.
    """
    sizes = ((1024, 4), (512, 2), (2048, 8), (256, 1))
    if arch == "cpu":
        sizes = ((1024, 4), (64, 4))
    elif dots and width <= 2048:
        sizes = ((256, 1), (512, 2), (1024, 4), (2048, 8))
    return tuple(TileConfig(1, min(columns, power_of_two(width, 16)), warps) for columns, warps in sizes)


def gate_candidates(arch: str, width: int) -> tuple[TileConfig, ...]:
    """Of the kernel that takes whole rows of expert width: a warp a row, so that no dot product crosses warps."""
    sizes = ((16, 512, 4), (4, 32, 4)) if arch == "cpu" else ((4, 256, 4), (8, 256, 8), (4, 512, 4), (2, 256, 2))
    return tuple(TileConfig(rows, min(columns, power_of_two(width, 16)), warps) for rows, columns, warps in sizes)
