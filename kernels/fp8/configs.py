"""The committed configurations of the fp8 quantisers: at most four a kernel and architecture.

A choice is a pure function of (architecture, input dtype, static widths, layout class). It never depends on
a count of tokens or groups, and nothing is timed in a user's process; entries come from the sweep in
`benchmarks/quantize_fp8.py`. Every candidate gives the same bits.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch

from kernels.hardware import hardware_of
from kernels.launch import power_of_two

WIDEST_WHOLE = 16384  # values of a row that a program's registers hold
# Which axis of the input is contiguous: the one that is reduced, the other one, neither.
Layout = Literal["reduced", "kept", "strided"]


class RowsConfig(NamedTuple):
    """One way to run `quantize_rows`."""

    rows: int  # a program
    block: int  # columns at a time
    whole: bool  # block and tail cover the width, so that a row is read once
    warps: int
    tail: int = 0
    entry: str = "default"  # of the table


class BlocksConfig(NamedTuple):
    """One way to run `quantize_blocks`: a tile a program, powers of two that hold whole blocks."""

    rows: int
    columns: int
    warps: int


class ColumnsConfig(NamedTuple):
    """One way to run `quantize_columns`."""

    rows: int  # that a program keeps in registers, a power of two
    width: int  # columns of a panel, a multiple of 16
    warps: int
    pack: int = 4  # consecutive rows that one thread loads; 1 where the rows are contiguous
    stripes: int = 8  # neighbouring panels that run side by side
    chunks: int = 48  # programs that share a panel at most; 48 is what its word has bits for
    polls: int = 64  # of the panel's amax before a program gives up waiting
    wait_rows: int = 4  # chunks looked at together while waiting
    rest: int = 64  # rows at a time of what was not kept, a power of two
    uncached: bool = False  # polls by loads with ".cv", where a cache may answer volatile ones


class PanelsConfig(NamedTuple):
    """One way to run `quantize_panels`, whose programs keep all rows of a weight in shared memory."""

    rows: int = 128  # copied at a time, a power of two
    width: int = 64  # columns of a panel, a power of two
    warps: int = 8
    stripes: int = 32  # neighbouring panels that run side by side: 8, 16, 32, 64 took 147, 143, 139, 139 us on an H200

    def tiles(self, rows: int) -> int:
        """Of `self.rows` each, for a weight of so many rows."""
        return -(-rows // self.rows)

    def shared_bytes(self, rows: int) -> int:
        """That a program takes: 16-bit values, and 1 KiB in which the warps bring their amaxes together."""
        return self.tiles(rows) * self.rows * self.width * 2 + 1024


class RingConfig(NamedTuple):
    """One way to run `quantize_ring`: as many programs as run at a time, each with a ring of tiles in shared memory."""

    rows: int = 128  # of a tile, a power of two
    width: int = 64  # columns of a panel, a power of two
    warps: int = 8
    slots: int = 14  # of a tile each; more than `held`
    held: int = 9  # tiles of a chunk at most: what the ring has more runs ahead
    stripes: int = 8  # neighbouring panels that run side by side
    programs: int = 1  # an SM
    polls: int = 4096  # of the panel's amax before a program takes it from the rows

    @property
    def held_rows(self) -> int:
        """Rows of a chunk at most."""
        return self.held * self.rows


def rows_candidates(arch: str, dtype: torch.dtype, width: int, layout: Layout) -> tuple[RowsConfig, ...]:
    """Candidates of `quantize_rows`, the default first. `width` is the reduced one."""
    if layout != "reduced":
        # Neighbouring rows may be neighbours in memory: wide in rows, short in columns.
        return (RowsConfig(rows=32, block=64, whole=False, warps=4),)
    block = power_of_two(width, 16)
    if block > WIDEST_WHOLE:
        return (
            RowsConfig(rows=1, block=8192, whole=False, warps=8),
            RowsConfig(rows=1, block=4096, whole=False, warps=4),
        )
    if block <= 512:
        rows = 1024 // block
        return (
            RowsConfig(rows=rows, block=block, whole=True, warps=1, entry="512 or narrower"),
            RowsConfig(rows=4 * rows, block=block, whole=True, warps=4, entry="512 or narrower"),
        )
    head, tail = _head_and_tail(width)
    # Few warps: a row that stays within one meets no barrier. 192 values a thread still fit its registers.
    warps = 1 << max(0, -(-(head + tail) // 6144) - 1).bit_length()
    return (
        RowsConfig(rows=1, block=head, tail=tail, whole=True, warps=warps),
        RowsConfig(rows=1, block=head, tail=tail, whole=True, warps=2 * warps),
        RowsConfig(rows=1, block=block, whole=True, warps=warps),
        RowsConfig(rows=1, block=block // 2, whole=False, warps=warps),
    )


def blocks_candidates(arch: str, rows: int, columns: int, transposed: bool) -> tuple[BlocksConfig, ...]:
    """Candidates of `quantize_blocks` for blocks of `rows` by `columns`, the default first. `transposed`: rows lie side
    by side in memory.

    Not swept yet: 16 to 64 values a thread, and 16 bytes of whichever axis is contiguous.
    """
    if rows > 1:
        return (BlocksConfig(rows, columns, 8), BlocksConfig(rows, columns, 16))
    if arch == "cpu":
        return (BlocksConfig(16, 2 * columns, 4), BlocksConfig(8, columns, 4))
    sizes = ((32, 128, 4), (64, 128, 8)) if transposed else ((16, 256, 4), (32, 128, 4), (4, 512, 4))
    return tuple(BlocksConfig(*size) for size in sizes)


def _head_and_tail(width: int) -> tuple[int, int]:
    """Two powers of two, or one and 0, that cover the width closely."""
    block = power_of_two(width, 16)
    if width == block or block <= 512:
        return block, 0
    head = block // 2
    tail = max(16, 1 << (width - head - 1).bit_length())
    return (block, 0) if head + tail > block * 3 // 4 else (head, tail)  # then one block is as good


# What no ring or panels of Hopper's serve: other architectures, other inputs.
_GENERAL = (ColumnsConfig(rows=256, width=32, warps=4), ColumnsConfig(rows=128, width=64, warps=4))
# The interpreter: small tiles, several chunks a panel, and nobody waits.
_INTERPRETED = (
    ColumnsConfig(rows=32, width=32, warps=4, stripes=2, polls=0),
    ColumnsConfig(rows=16, width=16, warps=4, stripes=1, chunks=2, polls=0),
)


def columns_candidates(arch: str, layout: Layout) -> tuple[ColumnsConfig, ...]:
    """Candidates of `quantize_columns`. `layout` "reduced" says that the rows lie side by side in memory."""
    pack = 1 if layout == "reduced" else 4
    # Triton before 3.9 compiles a volatile load for AMD as any other. For NVIDIA 3.6 does so with ".cv".
    uncached = arch.startswith("gfx")
    configs = _INTERPRETED if arch == "cpu" else _GENERAL
    return tuple(config._replace(pack=pack, uncached=uncached) for config in configs)


# Weights that fit shared memory whole. On an H200 64 of 1,408 x 2,048 take 139 us, 173 with `quantize_columns` and 152
# through a ring.
_PANELS = {"sm_90": (PanelsConfig(),)}


# Chunks of panels pass through a ring in shared memory: of tokens, then of weights of as many rows as two chunks of 11
# tiles hold, then of longer ones. On an H200, us, beside what `quantize_columns` takes: tokens at A (16 groups,
# 16,640 x 5,120) 77, 97; at B (64, 32,768 x 2,048) 62, 68; 16 weights of 8,192 x 5,120 584 with chunks of 9 tiles, 558
# with 11, 597 with 13, 644; of 5,120 x 8,192 558, 522, 521, 647. Chunks of 7 tiles beside those of 11, in another
# session: 3 to 5 % less at 8,192 x 5,120, 17 at 14,336 x 4,096, 6 at 4,096 x 14,336, 1 at 5,120 x 8,192, and 2.5 to 5 %
# more at 2,048 x 7,168. 16 stripes for 8 are within the noise at most shapes, half as slow again where one group has
# all rows.
_TOKENS_RING, _SHORT_RING, _LONG_RING = RingConfig(), RingConfig(held=11), RingConfig(held=7)


def ring_candidates(arch: str, dtype: torch.dtype, rows: int | None) -> tuple[RingConfig, ...]:
    """Candidates of `quantize_ring`, which go before `columns_candidates`; none where it does not serve.

    For codes of `dtype` of inputs that hold words (as in `columns_candidates`): of a weight of `rows`, or of tokens.
    """
    if arch != "sm_90" or dtype not in hardware_of(arch).native_fp8:
        return ()
    if rows is None:
        return (_TOKENS_RING,)
    return (_SHORT_RING if rows <= 2 * _SHORT_RING.held_rows else _LONG_RING,)


def panels_candidates(arch: str, dtype: torch.dtype, rows: int, width: int) -> tuple[PanelsConfig, ...]:
    """Candidates of `quantize_panels`, which go before `columns_candidates`; none where it does not serve.

    For codes of `dtype` of weights that hold words (as in `columns_candidates`), each (rows, width), reduced over rows.
    """
    chip = hardware_of(arch)
    if dtype not in chip.native_fp8 or rows == 0 or rows % 16 or width % 16:
        return ()
    most = chip.shared_memory_bytes or 0
    return tuple(config for config in _PANELS.get(arch, ()) if config.shared_bytes(rows) <= most)
