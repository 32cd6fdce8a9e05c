"""The committed configurations of the operators: at most four a kernel and architecture.

A choice is a pure function of (architecture, static width, layout class), never of a count of tokens, groups or
experts' rows, and nothing is timed in a user's process. The default comes first. All candidates of an operator
give the same bits, but for sums, whose order is part of the candidate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kernels.hardware import hardware_of
from kernels.launch import power_of_two

# Whether the columns of all operands are neighbours in memory.
Layout = Literal["unit", "strided"]


@dataclass(frozen=True)
class TileConfig:
    """One way to run a kernel that maps tiles to tiles."""

    rows: int  # of a tile, a power of two
    columns: int  # of a tile, a power of two
    warps: int


@dataclass(frozen=True)
class SumConfig:
    """One way to sum the rows of groups: each thread keeps the sum of its own rows until the end."""

    ahead: int  # tiles on their way at a time, and the one that is added
    rows: int  # of a tile, a power of two
    columns: int  # of a tile, a power of two
    warps: int
    part: int | None  # rows of a partial sum; None: one program sums a whole group, whatever its length
    part_rows: int = 16  # of a tile of the sums of the parts
    part_columns: int = 128


@dataclass(frozen=True)
class ListConfig:
    """One way to sum rows by lists of their places."""

    rows: int  # that one program adds at a time, a power of two
    columns: int  # of a program, a power of two
    warps: int
    slots: int = 32  # of a row; the places of a row that has more are sorted
    long: int = 128  # places from which on a list is cut into parts
    part_rows: int = 64  # partial sums that one program adds at a time, a power of two
    part_columns: int = 128  # of a program that adds partial sums, a power of two
    overlap: bool = False  # each launch begins as the one ahead ends (programmatic dependent launch)


@dataclass(frozen=True)
class CrossEntropyConfig:
    """One way to run a row of logits."""

    depth: int  # times 8 columns that a lane has at a time, a power of two
    lanes: int  # a power of two
    warps: int


@dataclass(frozen=True)
class ScaleConfig:
    """One way to scale a matrix in place."""

    columns: int  # at a time, a power of two
    warps: int
    programs: int  # at most; each takes every so-manieth block


def tile_candidates(arch: str, width: int, layout: Layout, flat: bool) -> tuple[TileConfig, ...]:
    """Of the element-wise kernels. `flat`: everything lies in one row, whose length says nothing."""
    if layout == "strided":
        # Neighbouring rows may be the neighbours in memory: as many of them as columns.
        return (TileConfig(32, 64, 4), TileConfig(64, 32, 4))
    sizes = (4096, 1024) if arch == "cpu" else (2048, 4096, 1024, 8192)
    if flat:
        return tuple(TileConfig(1, size, max(1, min(8, size // 512))) for size in sizes)
    configs = []
    for size in sizes:
        columns = min(size, power_of_two(width, 16))
        configs.append(TileConfig(max(1, size // columns), columns, max(1, min(8, size // 512))))
    return tuple(configs)


def norm_candidates(arch: str, width: int) -> tuple[TileConfig, ...]:
    """Of the kernels that norm rows: whole rows of up to 8192 columns, 8 to 32 elements of each operand a thread.

    Not swept yet; the sizes are those of the element-wise kernels, which move as many bytes.
    """
    if arch == "cpu":
        return tuple(TileConfig(rows, min(most, power_of_two(width, 16)), 4) for rows, most in ((4, 1024), (2, 32)))
    columns = power_of_two(width, 16)
    if columns > 8192:
        return (TileConfig(1, 4096, 8), TileConfig(2, 2048, 8))
    configs = (
        TileConfig(max(1, size // columns), columns, max(1, min(16, max(size, columns) // a_warp)))
        for size, a_warp in ((2048, 512), (4096, 256), (1024, 1024))
    )
    return tuple(dict.fromkeys(configs))


def rope_candidates(arch: str, heads: int, pairs: int) -> tuple[TileConfig, ...]:
    """Of the kernel that turns some heads of a token, `columns` pairs each, which share the token's angles.

    Not swept yet: 8 elements a thread of 16 bits are 16 bytes.
    """
    columns = power_of_two(pairs)
    sizes = (1024, 64) if arch == "cpu" else (2048, 1024, 4096)
    found = []
    for size in sizes:
        rows = max(1, min(power_of_two(heads), size // (2 * columns)))
        found.append(TileConfig(rows, columns, max(1, min(8, 2 * rows * columns // 256))))
    return tuple(found)


def row_candidates(arch: str, width: int, layout: Layout, reused: bool) -> tuple[TileConfig, ...]:
    """Of the kernels that fetch each row from elsewhere: few rows a tile, so that one address serves many columns.

    `reused`: a row may be asked for often, and `columns` columns of all rows are fetched before the next ones.
    """
    if layout == "strided":
        return (TileConfig(32, 64, 4), TileConfig(64, 32, 4))
    sizes = ((4, 1024), (1, 4096), (8, 1024), (2, 2048))
    if arch == "cpu":
        sizes = ((16, 1024), (8, 256))
    elif reused:
        sizes = ((32, 256), (64, 128), (64, 256), (16, 512))
    return tuple(TileConfig(rows, min(columns, power_of_two(width, 16)), 4) for rows, columns in sizes)


def sum_candidates(arch: str, width: int) -> tuple[SumConfig, ...]:
    """Of the kernels that add the rows of groups in fp32.

    Over many columns even one group keeps a chip busy with a program for each block of them: 4096 x 5760 in 8 groups
    took an H200 13.8 us with the first and 15.7 with the next, all rows in one group 28.2 and 19.3, in parts 34 and 33.
    Over fewer columns groups are cut into parts, whose sums a second launch adds.
    """
    if arch == "cpu":
        return (SumConfig(1, 8, min(1024, power_of_two(width, 16)), 4, part=16), SumConfig(2, 16, 32, 4, part=None))
    most = hardware_of(arch).max_warps or 32
    whole, parts = ((8, 16, 64, 2, None), (8, 32, 64, 4, None)), ((4, 32, 128, 8, 128),)
    tables = (*whole, *parts) if width >= 2048 else (*parts, *whole)
    return tuple(
        SumConfig(ahead, rows, min(columns, power_of_two(width, 16)), min(warps, most), part)
        for ahead, rows, columns, warps, part in tables
    )


def list_candidates(arch: str, width: int) -> tuple[ListConfig, ...]:
    """Of the kernels that add rows by lists, in fp32. A row of a tile is one pass of all threads over its columns, so
    that no sum crosses threads."""
    if arch == "cpu":
        return (
            ListConfig(16, min(1024, power_of_two(width, 16)), 4, 8, 16, 4, 64),
            ListConfig(8, 32, 4, 16, 32, 2, 32),
        )
    early = hardware_of(arch).launches_early
    # At 65,536 rows of 2048 and of 7168 an H200 took 89 and 275 us with the first, 93 and 290 with the next.
    tables = ((8, 1024, 4, early), (8, 2048, 8, False), (8, 2048, 8, early), (16, 1024, 4, False))
    configs = (
        ListConfig(rows, min(columns, power_of_two(width, 16)), warps, overlap=overlap)
        for rows, columns, warps, overlap in tables
    )
    return tuple(dict.fromkeys(configs))


# The row is read twice, the second time from the L2 if the rows in flight fit into it: a row of 128k bf16 logits is
# 256 KB, so few programs an SM.
_CROSS_ENTROPY: dict[str, tuple[CrossEntropyConfig, ...]] = {
    "sm_90": (
        CrossEntropyConfig(2, 1024, 32),  # 8192 x 128256 forward on an H200: 1185 us, with the next 1246
        CrossEntropyConfig(2, 512, 16),
        CrossEntropyConfig(1, 512, 16),
        CrossEntropyConfig(2, 256, 8),
    ),
    "cpu": (CrossEntropyConfig(2, 256, 4), CrossEntropyConfig(1, 64, 4)),
}
# 16 warps of a wave of 64 are 1024 threads, the most that any architecture allows.
_CROSS_ENTROPY_GENERAL = (CrossEntropyConfig(2, 1024, 16), CrossEntropyConfig(2, 512, 8))


# With class weights, smoothing, a cap or the z-loss a column takes twice the registers, and does more with them: of
# 8192 x 128256, forward and backward, an H100 took 1.9 ms without, 2.0 to 2.4 with one of the others, 3.5 with a cap,
# and 4.2 with all but weights.
_CROSS_ENTROPY_MORE: dict[str, tuple[CrossEntropyConfig, ...]] = {
    "sm_90": (CrossEntropyConfig(1, 1024, 32), CrossEntropyConfig(1, 512, 16)),
    "cpu": _CROSS_ENTROPY["cpu"],
}
_CROSS_ENTROPY_MORE_GENERAL = (CrossEntropyConfig(1, 512, 16), CrossEntropyConfig(1, 256, 8))


def cross_entropy_candidates(arch: str, plain: bool) -> tuple[CrossEntropyConfig, ...]:
    """Of the kernel that takes one row of logits a program; `plain`: without any option."""
    table, general = (
        (_CROSS_ENTROPY, _CROSS_ENTROPY_GENERAL) if plain else (_CROSS_ENTROPY_MORE, _CROSS_ENTROPY_MORE_GENERAL)
    )
    return table.get(arch, general)


def scale_candidates(arch: str) -> tuple[ScaleConfig, ...]:
    """Of the scaling kernel. Few programs, as most calls find a factor of 1 and have nothing to do."""
    if arch == "cpu":
        return (ScaleConfig(4096, 4, 4), ScaleConfig(512, 4, 2))
    return (ScaleConfig(4096, 8, 1056), ScaleConfig(8192, 8, 528))
