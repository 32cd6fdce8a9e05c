"""What the quantisers are tried on: splits of tokens into groups, and the shapes that are guarded.

A shape is a frozen record. `str(shape)` is its pytest id, `shape.inputs(device)` its tensors, drawn from
torch's global generator so that whoever seeds it owns the data. A `Split` never draws from it: the
same name, rows and groups mean the same group sizes in every session.

Shape suffixes: M tokens, K inner width, N outer width, G groups, E experts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import torch
from torch import Tensor

Device = torch.device | str
Layout = Literal["row-major", "column-major"]


# ---------------------------------------------------------------------------------------------------
# Splits: how tokens fall into groups.


@dataclass(frozen=True)
class Split:
    """Rows of each group, and rows that the buffer has past the last one."""

    name: str
    sizes: tuple[int, ...]
    unused: int = 0

    @property
    def rows(self) -> int:
        """Rows of the buffer, those that belong to no group included."""
        return sum(self.sizes) + self.unused

    @property
    def groups(self) -> int:
        return len(self.sizes)

    @property
    def ends(self) -> tuple[int, ...]:
        return tuple(accumulate(self.sizes))

    def offs(self, device: Device) -> Tensor:
        """offs (G,) int32: the inclusive running end of each group."""
        return torch.tensor(self.ends, dtype=torch.int32, device=device)

    def __str__(self) -> str:
        return self.name


def equal(rows: int, groups: int) -> Split:
    """All groups alike; the first ones take what does not divide."""
    share, rest = divmod(rows, groups)
    return Split("equal", tuple(share + (group < rest) for group in range(groups)))


def random_split(rows: int, groups: int, seed: int = 0) -> Split:
    """Each row falls into a group by chance, as an untrained router sends them."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randint(groups, (rows,), generator=generator)
    return Split("random", tuple(torch.bincount(chosen, minlength=groups).tolist()))


def hot(rows: int, groups: int) -> Split:
    """One group, the last, holds 15/16 of the rows, the others share the rest: a collapsed router."""
    few = equal(rows // 16, groups - 1).sizes
    return Split("hot", (*few, rows - sum(few)))


def around_block(block: int) -> Split:
    """Groups one short of a block, exact, and one over."""
    return Split(f"around-{block}", (block - 1, block, block + 1))


def splits(block: int = 32, hot_rows: int = 1024) -> tuple[Split, ...]:
    """Every way of splitting that a per-group kernel has to survive, at sizes for the interpreter."""
    return (
        equal(64, 4),  # the plain case
        Split("one-group", (33,)),  # no border inside, and a tail
        random_split(64, 8),  # borders at odd rows
        Split("empty-first", (0, 20, 30, 14)),  # its scales come before any row was read
        Split("empty-middle", (20, 0, 0, 44)),  # two borders at the same row
        Split("empty-last", (20, 30, 14, 0)),  # the loop over rows has ended before it
        Split("empty-all", (0, 0, 0), unused=16),  # nothing to reduce, all codes still to be written
        Split("no-rows", (0, 0, 0)),  # M = 0: no codes, but scales
        Split("one-token", (0, 1, 0, 0)),  # the smallest non-empty input
        Split("one-expert", (0, 0, 64, 0)),  # all rows in one group, the mean is a quarter of it
        hot(hot_rows, 16),  # 15 small groups and one of 15/16: a tile sized by the mean loses rows
        Split("odd-sizes", (1, 7, 15, 16, 17, 31, 33)),  # every tail against 16 and 32
        Split("one-long", (16, 16, 16, 976)),  # 60 times longer than its neighbours
        Split("more-groups-than-tokens", (0, 1, 0, 0, 2, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0)),  # E > T
        Split("one-unused", (30, 33), unused=1),  # the tail block of the last group reaches one row over
        Split("many-unused", (24, 40), unused=1000),  # whole blocks past the last group
        around_block(block),  # the tail mask at its three cases
    )


# ---------------------------------------------------------------------------------------------------
# Shapes that are guarded.


@dataclass(frozen=True)
class Rows:
    """So many rows of one width."""

    rows: int
    width: int

    @property
    def elements(self) -> int:
        return self.rows * self.width

    def __str__(self) -> str:
        return f"{self.rows}x{self.width}"


@dataclass(frozen=True)
class MatrixShape(Rows):
    """x (M, K) for `quantize_rowwise`."""

    layout: Layout = "row-major"

    def inputs(self, device: Device, dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor]:
        return (_draw(self.rows, self.width, self.layout, device, dtype),)

    def __str__(self) -> str:
        return f"{super().__str__()}{_suffix('row-major', self.layout)}"


@dataclass(frozen=True)
class GroupedShape(Rows):
    """x (M, K) and offs (G,) for the per-group quantisers."""

    groups: int
    split: str = "equal"
    layout: Layout = "row-major"

    def inputs(self, device: Device, dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor, Tensor]:
        x_MK = _draw(self.rows, self.width, self.layout, device, dtype)
        return x_MK, SPLITTERS[self.split](self.rows, self.groups).offs(device)

    def __str__(self) -> str:
        ending = _suffix("equal", self.split) + _suffix("row-major", self.layout)
        return f"{super().__str__()}-g{self.groups}{ending}"


@dataclass(frozen=True)
class DualShape:
    """x1 (M, K1), x2 (M, K2) and offs (G,) for `quantize_colwise_per_group_dual`."""

    rows: int
    width1: int
    width2: int
    groups: int
    split: str = "equal"

    def inputs(self, device: Device, dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor, Tensor, Tensor]:
        x1 = _draw(self.rows, self.width1, "row-major", device, dtype)
        x2 = _draw(self.rows, self.width2, "row-major", device, dtype)
        return x1, x2, SPLITTERS[self.split](self.rows, self.groups).offs(device)

    @property
    def elements(self) -> int:
        return self.rows * (self.width1 + self.width2)

    def __str__(self) -> str:
        return f"{self.rows}x{self.width1}+{self.width2}-g{self.groups}{_suffix('equal', self.split)}"


@dataclass(frozen=True)
class WeightShape:
    """w (E, K, N) for the weight quantisers: the transposed view of a contiguous (E, N, K)."""

    experts: int
    outer: int
    inner: int

    def inputs(self, device: Device, dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor]:
        return (torch.randn(self.experts, self.outer, self.inner, device=device, dtype=dtype).mT,)

    @property
    def elements(self) -> int:
        return self.experts * self.outer * self.inner

    def __str__(self) -> str:
        return f"{self.experts}x{self.outer}x{self.inner}"


def _draw(rows: int, width: int, layout: Layout, device: Device, dtype: torch.dtype) -> Tensor:
    if layout == "column-major":  # drawn in place: real inputs take seconds to copy on a CPU
        return torch.randn(width, rows, device=device, dtype=dtype).t()
    return torch.randn(rows, width, device=device, dtype=dtype)


def _suffix(usual: str, actual: str) -> str:
    return "" if actual == usual else f"-{actual}"


def _one_expert(rows: int, groups: int) -> Split:
    return Split("one-expert", (*(0,) * (groups // 2), rows, *(0,) * (groups - groups // 2 - 1)))


def _unused(rows: int, groups: int) -> Split:
    return Split("unused", equal(rows - 1000, groups).sizes, unused=1000)


SPLITTERS: dict[str, Callable[[int, int], Split]] = {
    "equal": equal,
    "random": random_split,
    "hot": hot,
    "one-expert": _one_expert,
    "unused": _unused,
}


# Bold shapes of the contract, timed always: A is llama4 16E, B is DeepSeek 16B.
MATRIX_A, MATRIX_B = MatrixShape(16640, 5120), MatrixShape(32768, 2048)
GROUPED_A, GROUPED_B = GroupedShape(16640, 5120, 16), GroupedShape(32768, 2048, 64)
DUAL_A, DUAL_B = DualShape(16640, 8192, 5120, 16), DualShape(32768, 1408, 2048, 64)
WEIGHT_A, WEIGHT_B = WeightShape(16, 8192, 5120), WeightShape(64, 1408, 2048)

MATRICES = (
    MATRIX_A,
    MATRIX_B,
    MatrixShape(16640, 8192),  # grad_out of A
    MatrixShape(16640, 5120, "column-major"),  # the reduction runs against memory order
    MatrixShape(1024, 8192),  # fewer rows than one wave of programs
    MatrixShape(128, 5120),  # decode: launch and latency, not bandwidth
)
GROUPED = (
    GROUPED_A,
    GROUPED_B,
    GroupedShape(16640, 5120, 16, "hot"),  # one program per group would take as long as the largest
    GroupedShape(16640, 5120, 16, layout="column-major"),  # reduces along memory, keeps the layout
    GroupedShape(16640, 5120, 64, "random"),  # tails in every group
    GroupedShape(16640, 5120, 1),  # one group, as long as everything
    GroupedShape(128, 5120, 16),  # decode: 8 rows a group
    GroupedShape(1024, 8192, 16),  # 64 rows a group
)
DUALS = (
    DUAL_A,
    DUAL_B,
    DualShape(16640, 2048, 2048, 64),  # equal widths, many groups
    DualShape(16640, 5120, 5120, 128, "random"),  # most groups, none alike
    DualShape(16640, 8192, 2048, 16),  # four to one: the narrow operand must not wait for the wide
)
WEIGHTS = (
    WEIGHT_A,
    WEIGHT_B,
    WeightShape(1, 8192, 5120),  # one expert: parallel only inside it
    WeightShape(8, 1408, 2048),  # a rank of an expert-parallel run
)

# Nightly, on a GPU: the rest of the contract's real shapes.
MATRICES_NIGHTLY = (
    MatrixShape(32768, 7168),
    MatrixShape(131072, 2048),  # most rows
    MatrixShape(4096, 5120),
)
GROUPED_NIGHTLY = (
    GroupedShape(16640, 5120, 64),
    GroupedShape(16640, 8192, 16),
    GroupedShape(32768, 7168, 32),
    GroupedShape(131072, 2048, 64),  # most rows
    GroupedShape(4096, 5120, 16),
    GroupedShape(16640, 5120, 16, "one-expert"),  # 15 empty groups
    GroupedShape(16640, 5120, 16, "unused"),  # whole blocks that only need zeros
)
WEIGHTS_NIGHTLY = (
    WeightShape(128, 5120, 8192),  # > 2^31 elements: 64-bit offsets
    WeightShape(8, 20480, 5120),
    WeightShape(32, 4096, 7168),
    WeightShape(32, 7168, 2048),
)

# Timed on a CPU through the eager path: 0.5 to 20 ms a call on two cores.
MATRICES_CPU = (
    MatrixShape(512, 1024),  # the plain case
    MatrixShape(512, 1024, "column-major"),  # the reduction runs against memory order
    MatrixShape(333, 1000),  # neither dimension a power of two
)
GROUPED_CPU = (
    GroupedShape(512, 512, 4),  # the plain case
    GroupedShape(512, 512, 16, "random"),  # many borders at odd rows
    GroupedShape(512, 512, 16, "hot"),  # one group holds nearly everything
    GroupedShape(512, 512, 4, layout="column-major"),  # the other memory order
)
DUALS_CPU = (
    DualShape(512, 256, 512, 4),  # different widths
    DualShape(512, 512, 128, 16, "hot"),  # skewed, four to one
)
WEIGHTS_CPU = (
    WeightShape(4, 256, 512),  # the plain case
    WeightShape(6, 200, 333),  # no width a power of two
)

# Through the interpreter, where 64k elements take seconds: numerics and exact metrics only.
MATRICES_SMALL = (
    MatrixShape(64, 48),  # a width of one and a half powers of two
    MatrixShape(33, 40),  # a tail in both dimensions
    MatrixShape(128, 47),  # an odd width: no row is aligned
    MatrixShape(1, 16),  # one row
)
GROUPED_SMALL = (
    GroupedShape(33, 40, 4, "random"),  # borders at odd rows, a tail in both dimensions
    GroupedShape(64, 17, 4, "hot"),  # skewed, odd width
    GroupedShape(48, 24, 2, layout="column-major"),  # the other memory order
)
DUALS_SMALL = (
    DualShape(33, 24, 16, 3, "random"),  # different widths, borders at odd rows
    DualShape(64, 7, 17, 4, "hot"),  # skewed, odd widths
)
BLOCKS_SMALL = (
    MatrixShape(33, 300),  # blocks cut short in both dimensions
    MatrixShape(140, 40, "column-major"),  # columns side by side in memory
)
WEIGHT_BLOCKS_SMALL = (WeightShape(2, 130, 257),)  # blocks of one row and of one column at the ends
WEIGHTS_SMALL = (
    WeightShape(2, 48, 32),  # the plain case
    WeightShape(2, 40, 17),  # an odd inner width
    WeightShape(1, 16, 64),  # one expert, wide inside
)
