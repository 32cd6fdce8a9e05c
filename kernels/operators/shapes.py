"""The shapes that the operators are guarded at: records as in `kernels.fp8.shapes`. Floats require grad.

Shape suffixes: M rows, H width, N rows of logits, V vocabulary, G groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from kernels.fp8.shapes import SPLITTERS, Device, Rows, Split

DTYPE = torch.bfloat16


def _normal(*shape: int, device: Device) -> Tensor:
    return torch.randn(*shape, device=device, dtype=DTYPE).requires_grad_()


def _split(name: str, rows: int, groups: int) -> Split:
    if name == "half-empty":  # every second group has no rows, the first one included
        return Split(name, tuple(rows * 2 // groups * (group % 2) for group in range(groups)))
    return SPLITTERS[name](rows, groups)


def _shuffled(values: Tensor) -> Tensor:
    """The same order in every session, as the sizes of groups are."""
    return values[torch.randperm(len(values), generator=torch.Generator().manual_seed(0))]


@dataclass(frozen=True)
class RowsShape(Rows):
    """g, u (M, H) for silu_mul; gu (M, 2 * H) for clamped_swiglu; x (M, H) and weight (H,) for rms_norm."""

    def pair(self, device: Device) -> tuple[Tensor, Tensor]:
        return _normal(self.rows, self.width, device=device), _normal(self.rows, self.width, device=device)

    def interleaved(self, device: Device) -> tuple[Tensor]:
        return ((torch.randn(self.rows, 2 * self.width, device=device) * 3).to(DTYPE).requires_grad_(),)

    def weighted(self, device: Device) -> tuple[Tensor, Tensor]:
        return _normal(self.rows, self.width, device=device), _normal(self.width, device=device)


@dataclass(frozen=True)
class RopeShape:
    """x (1, S, heads, D) with S = `rows` positions, and the table of `pairs`, by default of all D columns."""

    rows: int
    heads: int
    width: int
    pairs: int | None = None

    def inputs(self, device: Device) -> tuple[Tensor, Tensor]:
        pairs = self.width // 2 if self.pairs is None else self.pairs
        frequency = 10000.0 ** -(torch.arange(pairs, dtype=torch.float64, device=device) / pairs)
        angle = torch.arange(self.rows, dtype=torch.float64, device=device)[:, None] * frequency
        table = torch.stack((angle.cos(), angle.sin()), -1).float()
        return _normal(1, self.rows, self.heads, self.width, device=device), table

    @property
    def elements(self) -> int:
        return self.rows * self.heads * self.width

    def __str__(self) -> str:
        pairs = "" if self.pairs is None else f"-p{self.pairs}"
        return f"{self.rows}x{self.heads}x{self.width}{pairs}"


@dataclass(frozen=True)
class LogitsShape:
    """logits (N, V) and target (N,), an eighth of them ignored."""

    rows: int
    vocabulary: int
    one_ignored_in: ClassVar[int] = 8

    def inputs(self, device: Device) -> tuple[Tensor, Tensor]:
        target = torch.randint(self.vocabulary, (self.rows,), device=device)
        target[:: self.one_ignored_in] = -100
        return _normal(self.rows, self.vocabulary, device=device), target

    @property
    def elements(self) -> int:
        return self.rows * self.vocabulary

    @property
    def kept(self) -> int:
        """Logits that have to be read: those of rows that are not ignored."""
        return self.elements - -(-self.rows // self.one_ignored_in) * self.vocabulary

    def __str__(self) -> str:
        return f"{self.rows}x{self.vocabulary}"


@dataclass(frozen=True)
class ProjectedShape:
    """input (N, K), linear_weight (V, K) and target (N,), an eighth of them ignored."""

    rows: int
    width: int
    vocabulary: int

    def inputs(self, device: Device) -> tuple[Tensor, Tensor, Tensor]:
        """Logits are of about one size whatever the width."""
        _, target = LogitsShape(self.rows, self.vocabulary).inputs(device)
        weight = torch.randn(self.vocabulary, self.width, device=device) * self.width**-0.5
        return _normal(self.rows, self.width, device=device), weight.to(DTYPE).requires_grad_(), target

    @property
    def flop(self) -> int:
        """Of the logits."""
        return 2 * self.rows * self.width * self.vocabulary

    def __str__(self) -> str:
        return f"{self.rows}x{self.width}x{self.vocabulary}"


@dataclass(frozen=True)
class MovedShape(Rows):
    """x (M, H) whose rows go to G groups, `copies` times each where they are gathered."""

    groups: int
    copies: int = 8
    split: str = "random"

    def gathered(self, device: Device) -> tuple[Tensor, Tensor]:
        """x and index (M * copies,)."""
        return _normal(self.rows, self.width, device=device), self.index.to(device)

    @property
    def index(self) -> Tensor:
        """Each row equally often, or nearly all of them one row."""
        count = self.rows * self.copies
        index = _shuffled(torch.arange(count) % self.rows)
        if self.split == "hot":
            index[count // 16 :] = self.rows // 2
        return index

    @property
    def distinct(self) -> int:
        """Elements of the rows that are gathered, each row once."""
        return len(self.index.unique()) * self.width

    def scattered(self, device: Device) -> tuple[Tensor, Tensor, int]:
        """x, expert (M,) in no order, G."""
        sizes = torch.tensor(_split(self.split, self.rows, self.groups).sizes)
        expert = _shuffled(torch.arange(self.groups).repeat_interleave(sizes))
        return _normal(len(expert), self.width, device=device), expert.to(device), self.groups

    def __str__(self) -> str:
        return f"{self.rows}x{self.width}-g{self.groups}-{self.split}"


@dataclass(frozen=True)
class GroupedRows(Rows):
    """x (M, H) in G groups, for a bias (G, H) or a linear layer to `outputs`."""

    groups: int
    split: str = "random"
    outputs: int = 0

    def biased(self, device: Device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """x, bias, group_ids, offs."""
        split = _split(self.split, self.rows, self.groups)
        offs = split.offs(device)
        ids = torch.searchsorted(offs, torch.arange(split.rows, device=device), right=True)
        return (
            _normal(split.rows, self.width, device=device),
            _normal(self.groups, self.width, device=device),
            ids,
            offs,
        )

    def linear(self, device: Device) -> tuple[Tensor, Tensor]:
        """x, offs."""
        split = _split(self.split, self.rows, self.groups)
        return _normal(split.rows, self.width, device=device), split.offs(device)

    def __str__(self) -> str:
        outputs = f"x{self.outputs}" if self.outputs else ""
        return f"{self.rows}x{self.width}{outputs}-g{self.groups}-{self.split}"


# On a GPU: the real shapes of the contract.
SILU_MUL = (
    RowsShape(4096, 2048),
    RowsShape(8192, 4096),
    RowsShape(1023, 777),  # nothing is aligned
)
CLAMPED_SWIGLU = (RowsShape(4096, 2880), RowsShape(1023, 777))  # gpt-oss: gu is 5760 wide
RMS_NORM = (
    RowsShape(8192, 2048),  # Qwen3 30B
    RowsShape(4096, 7168),  # DeepSeek-V3
    RowsShape(262144, 128),  # 32 heads of Qwen3's queries
    RowsShape(1023, 777),  # nothing is aligned
)
NORM_AND_CODES = (RowsShape(8192, 2048), RowsShape(4096, 7168), RowsShape(1023, 777))
ROPE = (RopeShape(8192, 32, 128), RopeShape(4096, 128, 64), RopeShape(1023, 7, 90, 20))  # Llama, DeepSeek, part of each
CROSS_ENTROPY = (
    LogitsShape(8192, 128256),  # Llama 3
    LogitsShape(4096, 151936),  # Qwen
    LogitsShape(3000, 102400),  # DeepSeek, a number of rows that divides nothing
)
LINEAR_CROSS_ENTROPY = (ProjectedShape(8192, 4096, 128256), ProjectedShape(2048, 2048, 151936))
MOVED = (
    MovedShape(8192, 2048, 64),  # DeepSeek 16B
    MovedShape(8192, 7168, 32),
    MovedShape(8192, 2048, 64, split="hot"),  # one row or one expert has nearly all
    MovedShape(8192, 2048, 64, split="half-empty"),
)
BIASED = (
    GroupedRows(4096, 5760, 8),  # gpt-oss
    GroupedRows(4096, 5760, 8, "one-expert"),  # one sum as long as everything
    GroupedRows(4096, 5760, 8, "half-empty"),
    GroupedRows(37, 65, 3),  # nothing is aligned
)
LINEAR = (
    GroupedRows(32768, 2048, 64, "equal", 1408),
    GroupedRows(16640, 5120, 16, "hot", 8192),
    GroupedRows(32768, 2048, 64, "half-empty", 1408),
)

# Timed on a CPU through the eager path.
SILU_MUL_CPU = (RowsShape(256, 512), RowsShape(123, 77))
CLAMPED_SWIGLU_CPU = (RowsShape(256, 512), RowsShape(123, 77))
RMS_NORM_CPU = (RowsShape(256, 512), RowsShape(123, 77))
ROPE_CPU = (RopeShape(64, 8, 64), RopeShape(33, 3, 22, 5))
CROSS_ENTROPY_CPU = (LogitsShape(64, 4096), LogitsShape(30, 1001))
LINEAR_CROSS_ENTROPY_CPU = (ProjectedShape(1000, 64, 2048),)  # in four chunks
MOVED_CPU = (
    MovedShape(256, 128, 16),
    MovedShape(256, 128, 16, split="hot"),
    MovedShape(256, 128, 8, split="half-empty"),
)
BIASED_CPU = (GroupedRows(256, 256, 8), GroupedRows(256, 256, 8, "one-expert"), GroupedRows(256, 256, 8, "half-empty"))
LINEAR_CPU = (GroupedRows(128, 64, 4, "hot", 96), GroupedRows(128, 64, 4, "half-empty", 96))

# Through the interpreter: numerics and exact metrics only.
SILU_MUL_SMALL = (RowsShape(33, 40),)
CLAMPED_SWIGLU_SMALL = (RowsShape(33, 20),)
RMS_NORM_SMALL = (RowsShape(33, 40), RowsShape(3, 5), RowsShape(5, 2050))  # the last wider than a tile
ROPE_SMALL = (RopeShape(9, 3, 24), RopeShape(5, 2, 11, 3))
CROSS_ENTROPY_SMALL = (LogitsShape(7, 1000), LogitsShape(3, 33), LogitsShape(2, 20001))  # the last in several steps
LINEAR_CROSS_ENTROPY_SMALL = (ProjectedShape(7, 16, 100),)
MOVED_SMALL = (MovedShape(17, 20, 4, copies=2), MovedShape(17, 20, 4, copies=2, split="hot"))
BIASED_SMALL = (GroupedRows(37, 65, 3), GroupedRows(32, 20, 4, "half-empty"))
