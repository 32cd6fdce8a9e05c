"""From tensors to launches: plans, grids, workspaces. The only caller of the quantisers' Triton kernels.

A plan is a pure, cached function of (architecture, dtypes, static widths, layout); what is left for a call is
arithmetic on counts of rows, workspace, and one launch for each kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
import triton.language as tl

from kernels.fp8.arguments import padded_ends, padded_rows
from kernels.fp8.columns import quantize_columns
from kernels.fp8.configs import (
    ColumnsConfig,
    Layout,
    PanelsConfig,
    RingConfig,
    RowsConfig,
    columns_candidates,
    panels_candidates,
    ring_candidates,
    rows_candidates,
)
from kernels.fp8.encode import format_constants
from kernels.fp8.formats import format_of
from kernels.fp8.rows import quantize_rows
from kernels.hardware import arch_of, processors_of
from kernels.launch import MAX_CANDIDATES, Launch, cdiv, pick, power_of_two

_ZEROS = 4096  # words a program writes
TRITON_DTYPES = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}


class How(NamedTuple):
    """What a caller asks of codes and scales. `inverse`: scales are stored as their reciprocals."""

    dtype: torch.dtype
    power_of_two: bool
    candidate: int | None
    inverse: bool = False


# ---- along rows ------------------------------------------------------------------------------------------------------


@cache
def rows_plan(arch: str, x_dtype: torch.dtype, width: int, is_contiguous: bool, how: How) -> tuple[RowsConfig, Launch]:
    """For rows of so many values, which lie side by side in memory or do not."""
    layout: Layout = "reduced" if is_contiguous else "strided"
    config = pick(rows_candidates(arch, x_dtype, width, layout), how.candidate)
    constants = format_constants(format_of(how.dtype), arch, how.power_of_two, how.inverse)
    return config, Launch(
        quantize_rows,
        **constants,
        UNIT=is_contiguous,
        R=config.rows,
        BLOCK=config.block,
        TAIL=config.tail,
        WHOLE=config.whole,
        num_warps=config.warps,
    )


def launch_rows(x_ERK: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, how: How) -> None:
    """x (E, R, K) reduced over K; codes (E, R, K) contiguous in this order of axes, scales (E * R,)."""
    experts, inner_rows, width = x_ERK.shape
    rows = experts * inner_rows
    if rows == 0:
        return
    strides, device = x_ERK.stride(), x_ERK.device
    config, launch = rows_plan(arch_of(device), x_ERK.dtype, width, strides[2] == 1, how)
    programs = cdiv(rows, config.rows)
    launch(device, programs, x_ERK, codes.view(torch.uint8), scales, rows, inner_rows, width, *strides)


# ---- down columns ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operand:
    """One input of the column quantiser and what becomes of it.

    x (G, M, K) is reduced over M for each of G; with offs x is (1, M, K), reduced group by group.
    Codes (G, K, M) and scales (G, K) in this order in memory.
    """

    x: torch.Tensor
    codes: torch.Tensor
    scales: torch.Tensor

    @property
    def width(self) -> int:
        return self.x.shape[2]

    @property
    def layout(self) -> Layout:
        strides = self.x.stride()
        return "kept" if strides[2] == 1 else "reduced" if strides[1] == 1 else "strided"

    @property
    def holds_words(self) -> bool:
        """Whether rows are whole aligned 32-bit words of two 16-bit values."""
        x = self.x
        strides = x.stride()
        return (
            x.element_size() == 2
            and (x.shape[2] | strides[0] | strides[1]) % 2 == 0
            and x.data_ptr() % 4 == 0  # an offset into a storage says nothing of where the storage begins
        )


class Columns(NamedTuple):
    """What a plan of the column quantiser depends on.

    Attributes:
        widths: of one operand or two.
        weight_rows: of a weight, which are static; None: tokens, whose count is not.
        layout: that of both operands.
        words: 16-bit columns come in aligned pairs.
        rows_aligned: a column of codes begins on a multiple of 16.
        padded: groups begin on multiples of 16.
        atomic: how programs that share a column meet.
    """

    arch: str
    x_dtype: torch.dtype
    widths: tuple[int, ...]
    weight_rows: int | None
    layout: Layout
    words: bool
    rows_aligned: bool
    padded: bool
    atomic: bool
    how: How


@cache
def columns_config(columns: Columns) -> PanelsConfig | RingConfig | ColumnsConfig:
    """Panels in shared memory, a ring, or chunks in registers: what runs there."""
    arch, dtype, rows = columns.arch, columns.how.dtype, columns.weight_rows
    configs: list[PanelsConfig | RingConfig | ColumnsConfig] = []
    if columns.words and rows is not None:
        configs += panels_candidates(arch, dtype, rows, columns.widths[0])
    if columns.words:
        configs += ring_candidates(arch, dtype, rows is None)
    configs += columns_candidates(arch, rows is None, columns.layout, columns.words)
    return pick(configs[:MAX_CANDIDATES], columns.how.candidate)


def launch_columns(
    operands: Sequence[Operand],
    offs: torch.Tensor | None,
    how: How,
    atomic: bool = False,
    padded_offs: torch.Tensor | None = None,
) -> None:
    """One operand, or two that share offs, in one launch after the fill of what has to begin at zero.

    Where shared memory holds a weight whole, nothing has to; `atomic` says how programs of a panel meet, and there
    none do.
    With `padded_offs` (G,), which is written, codes are (K, padded_rows) and each group begins on a multiple of 16.
    """
    operands = [operand for operand in operands if operand.width > 0]
    if not operands:
        if padded_offs is not None and offs is not None:
            padded_offs.copy_(padded_ends(offs))
        return
    first = operands[0]
    x = first.x
    batches, rows, _ = x.shape
    groups = batches if offs is None else offs.shape[0]
    layouts = {operand.layout for operand in operands}
    code_rows = rows if padded_offs is None else padded_rows(rows, groups)
    layout = layouts.pop() if len(layouts) == 1 else "strided"
    columns = Columns(
        arch_of(x.device),
        x.dtype,
        tuple([operand.width for operand in operands]),
        rows if offs is None else None,
        layout,
        layout == "kept" and code_rows % 16 == 0 and all(operand.holds_words for operand in operands),
        rows % 16 == 0 and padded_offs is None,
        padded_offs is not None,
        atomic,
        how,
    )
    config = columns_config(columns)
    if offs is not None:
        offs = offs.contiguous()
    if isinstance(config, PanelsConfig):
        _launch_panels(first, columns, config)
    elif isinstance(config, RingConfig):
        _launch_ring(operands, offs, padded_offs, columns, config, code_rows)
    else:
        _launch_chunks(operands, offs, padded_offs, columns, config, code_rows)


# ---- chunks in registers ---------------------------------------------------------------------------------------------


@cache
def chunks_launch(columns: Columns, config: ColumnsConfig, wait_rows: int) -> Launch:
    """`quantize_columns`. `wait_rows`: chunks looked at together while waiting."""
    constants = format_constants(
        format_of(columns.how.dtype), columns.arch, columns.how.power_of_two, columns.how.inverse
    )
    return Launch(
        quantize_columns,
        SECOND=len(columns.widths) == 2,
        UNIT={"kept": "k", "reduced": "t", "strided": ""}[columns.layout],
        X_DTYPE=TRITON_DTYPES[columns.x_dtype],
        WORDS=columns.words,
        JAGGED=columns.weight_rows is None,
        ATOMIC=columns.atomic,
        ROWS_ALIGNED=columns.rows_aligned,
        WIDTH_ALIGNED=all(width % 16 == 0 for width in columns.widths),
        **constants,
        T=config.rows,
        TAIL=config.tail,
        W=config.width,
        PACK=config.pack,
        STRIPES=config.stripes,
        CHUNKS=config.chunks,
        POLLS=config.polls,
        WAIT_ROWS=wait_rows,
        REST=min(config.rows, config.rest),
        OVERLAP=config.overlap,
        num_warps=config.warps,
        **config.options,
    )


def _launch_chunks(
    operands: Sequence[Operand],
    offs: torch.Tensor | None,
    padded_offs: torch.Tensor | None,
    columns: Columns,
    config: ColumnsConfig,
    code_rows: int,
) -> None:
    first, second = operands[0], operands[-1]
    batches, rows, _ = first.x.shape
    groups = batches if offs is None else offs.shape[0]
    device = first.x.device
    slots, all_slots, wait_rows = _slots_of(config, first.x, offs, code_rows)
    orders = all_slots // slots
    stripes = [cdiv(width, config.width) for width in columns.widths]
    programs = [orders * slots * cdiv(n, config.stripes) * config.stripes for n in stripes]
    if sum(programs) == 0:
        return
    xs = [operand.x.view(torch.int32) if columns.words else operand.x for operand in operands]
    word, amax = _zeroed(groups * sum(stripes), all_slots * sum(columns.widths), device)
    of_second: tuple[object, ...] = (None,) * 6
    if len(operands) == 2:
        strides = xs[1].stride()
        of_second = (xs[1], second.codes.view(torch.uint8), second.scales, second.width, strides[1], strides[2])
    chunks_launch(columns, config, wait_rows)(
        device,
        sum(programs),
        xs[0],
        offs,
        first.codes.view(torch.uint8),
        first.scales,
        amax,
        word,
        groups,
        rows,
        first.width,
        slots,
        *xs[0].stride(),
        *of_second,
        programs[0],
        padded_offs,
        None if padded_offs is None else code_rows,
    )


def _slots_of(
    config: ColumnsConfig, x_GMK: torch.Tensor, offs: torch.Tensor | None, code_rows: int
) -> tuple[int, int, int]:
    """(places for chunks down a column of panels, those of all groups, chunks to look at together while waiting)."""
    if offs is not None:
        slots = code_rows // config.held + offs.numel() + 1
        return slots, slots, config.wait_rows
    groups, rows, _ = x_GMK.shape
    slots = min(config.chunks, max(1, cdiv(rows, config.held)))
    return slots, slots * groups, min(config.wait_rows, power_of_two(slots))  # a panel has no more chunks


def _zeroed(panels: int, slices: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """A word a panel, int64, and the amax of each slice of a chunk, uint32.

    One fill, as both have to begin at zero.
    """
    # Has to be a kernel launched the usual way: with `overlap` the quantiser begins as this ends, and relies on all
    # that came before this being done.
    zeros = torch.zeros(2 * panels + slices, dtype=torch.int32, device=device)
    return zeros[: 2 * panels].view(torch.int64), zeros[2 * panels :].view(torch.uint32)


# ---- panels and rings in shared memory -------------------------------------------------------------------------------


@cache
def panels_launch(columns: Columns, config: PanelsConfig) -> Launch:
    """`quantize_panels`."""
    from kernels.fp8.panels import quantize_panels  # where it runs: nobody else needs Gluon

    assert columns.weight_rows is not None
    return Launch(
        quantize_panels,
        **_gluon_constants(columns),
        TILES=config.tiles(columns.weight_rows),
        T=config.rows,
        PAIRS=config.width // 2,
        STRIPES=config.stripes,
        num_warps=config.warps,
    )


def _launch_panels(operand: Operand, columns: Columns, config: PanelsConfig) -> None:
    groups, rows, width = operand.x.shape
    if groups == 0:
        return
    words = operand.x.view(torch.int32)
    programs = groups * cdiv(width, config.width)
    codes = operand.codes.view(torch.uint8)
    strides = words.stride()[:2]
    launch = panels_launch(columns, config)
    launch(operand.x.device, programs, words, codes, operand.scales, groups, rows, width, *strides)


@cache
def _zeroing() -> Launch:
    from kernels.fp8 import ring  # where it runs: nobody else needs Gluon

    return Launch(ring.zero_words, BLOCK=_ZEROS, num_warps=8)


@cache
def ring_launch(columns: Columns, config: RingConfig, groups: int, fills: bool) -> Launch:
    """`quantize_ring` for tables of so many groups.

    `fills`: the fill goes before. Without it the quantiser may not begin early: what it then overtakes is whoever
    wrote its input.
    """
    from kernels.fp8 import ring

    return Launch(
        ring.quantize_ring,
        **_gluon_constants(columns),
        ALIGNED=all(width % 16 == 0 for width in columns.widths),
        GROUPS=groups,
        T=config.rows,
        PAIRS=config.width // 2,
        SLOTS=config.slots,
        HELD=config.held_rows,
        STRIPES=config.stripes,
        POLLS=config.polls,
        num_warps=config.warps,
        **({"launch_pdl": True} if config.overlap and fills else {}),
    )


def _gluon_constants(columns: Columns) -> dict[str, object]:
    how = columns.how
    constants = format_constants(format_of(how.dtype), columns.arch, how.power_of_two, how.inverse)
    names = ("MAX", "NATIVE", "POWER_OF_TWO", "INVERSE")
    return {"X_DTYPE": TRITON_DTYPES[columns.x_dtype], **{name: constants[name] for name in names}}


def _launch_ring(
    operands: Sequence[Operand],
    offs: torch.Tensor | None,
    padded_offs: torch.Tensor | None,
    columns: Columns,
    config: RingConfig,
    code_rows: int,
) -> None:
    first, second = operands[0], operands[-1]
    device = first.x.device
    batches, rows, _ = first.x.shape
    groups = batches if offs is None else offs.shape[0]
    if groups == 0 and offs is None:
        return
    programs = config.programs * (processors_of(device) if device.type == "cuda" else 1)  # else it is only compiled
    most_chunks = max(1, programs // config.stripes)
    chunks = code_rows // config.held_rows + groups + 1  # of all panels side by side, at most
    if offs is None:
        chunks = groups * max(1, min(cdiv(rows, config.held_rows), most_chunks))
    amax = torch.empty(chunks * (sum(columns.widths) // 2), dtype=torch.int32, device=device)
    fills = offs is not None or rows > config.held_rows  # chunks may have to meet
    quantize = ring_launch(columns, config, power_of_two(groups + 1, 32), fills)
    if fills:
        _zeroing()(device, cdiv(amax.shape[0], _ZEROS), amax, amax.shape[0])
    x = first.x.view(torch.int32)
    of_second: tuple[object, ...] = (None,) * 5
    if len(operands) == 2:
        x2 = second.x.view(torch.int32)
        of_second = (x2, second.codes.view(torch.uint8), second.scales, second.width, x2.stride(1))
    quantize(
        device,
        programs,
        x,
        offs,
        first.codes.view(torch.uint8),
        first.scales,
        amax,
        groups,
        code_rows,
        first.width,
        x.stride(1),
        x.stride(0),
        *of_second,
        padded_offs,
        most_chunks,
    )
