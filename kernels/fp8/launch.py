"""From tensors to launches: plans, grids, workspaces. The only caller of the quantisers' Triton kernels.

A plan is a pure, cached function of (architecture, dtypes, static widths, layout); what is left for a call is
arithmetic on counts of rows, workspace, and one launch for each kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernels.fp8.arguments import padded_ends, padded_rows
from kernels.fp8.blocks import Blocks, quantize_blocks
from kernels.fp8.columns import quantize_columns
from kernels.fp8.configs import (
    BlocksConfig,
    ColumnsConfig,
    Layout,
    PanelsConfig,
    RingConfig,
    RowsConfig,
    blocks_candidates,
    columns_candidates,
    panels_candidates,
    ring_candidates,
    rows_candidates,
)
from kernels.fp8.encode import Encoding, encoding_of
from kernels.fp8.formats import format_of
from kernels.fp8.rows import quantize_rows
from kernels.fp8.transposed import Form
from kernels.hardware import arch_of, hardware_of, processors_of
from kernels.launch import MAX_CANDIDATES, Launch, cdiv, pick, power_of_two

_ZEROS = 4096  # words a program writes
_NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}  # of dtypes, Triton's


class How(NamedTuple):
    """What a caller asks of codes and scales, and of which architecture.

    Attributes:
        inverse: scales are stored as their reciprocals.
    """

    arch: str
    dtype: torch.dtype
    power_of_two: bool
    candidate: int | None
    inverse: bool = False

    @property
    def encoding(self) -> Encoding:
        return encoding_of(self.dtype, self.arch, self.power_of_two, self.inverse)

    def without_candidate(self) -> How:
        return self if self.candidate is None else self._replace(candidate=None)


def how_of(
    device: torch.device, dtype: torch.dtype | None, power_of_two: bool, candidate: int | None, inverse: bool = False
) -> How:
    """`dtype` None: that of the device."""
    arch = arch_of(device)
    dtype = hardware_of(arch).default_fp8 if dtype is None else format_of(dtype).dtype
    return How(arch, dtype, power_of_two, candidate, inverse)


# ---- along rows ------------------------------------------------------------------------------------------------------


@cache
def rows_plan(x_dtype: torch.dtype, width: int, is_contiguous: bool, how: How) -> tuple[RowsConfig, Launch]:
    """For rows of so many values, which lie side by side in memory or do not."""
    layout: Layout = "reduced" if is_contiguous else "strided"
    config = pick(rows_candidates(how.arch, x_dtype, width, layout), how.candidate)
    constants = {"UNIT": is_contiguous, "encoding": how.encoding, "config": config}
    return config, Launch(quantize_rows, **constants, num_warps=config.warps)


def launch_rows(x: Tensor, codes: Tensor, scales: Tensor, how: How) -> None:
    """x (E, R, K) or (R, K), reduced over K; codes contiguous in this order of axes, scales (E * R,)."""
    *experts, inner_rows, width = x.shape
    rows = experts[0] * inner_rows if experts else inner_rows
    if rows == 0:
        return
    strides = x.stride()
    if not experts:  # as those of a batch of one, which need not be made for them
        strides = inner_rows * strides[0], *strides
    config, launch = rows_plan(x.dtype, width, strides[2] == 1, how)
    launch(x.device, cdiv(rows, config.rows), x, codes.view(torch.uint8), scales, rows, inner_rows, width, *strides)


# ---- in blocks -------------------------------------------------------------------------------------------------------


@cache
def blocks_plan(blocks: Blocks, transposed: bool, aligned: bool, how: How) -> tuple[BlocksConfig, Launch]:
    """For rows that lie side by side in memory (`transposed`), a multiple of 16 of them or not, or any others."""
    config = pick(blocks_candidates(how.arch, blocks.rows, blocks.columns, transposed), how.candidate)
    constants = {"ROWS_ALIGNED": aligned, "blocks": blocks, "encoding": how.encoding, "config": config}
    return config, Launch(quantize_blocks, **constants, num_warps=config.warps)


def launch_blocks(x: Tensor, codes: Tensor, scales: Tensor, blocks: Blocks, how: How) -> None:
    """x (E, M, K) or (M, K), any strides; codes contiguous; scales of its blocks, any strides."""
    *experts, rows, width = x.shape
    strides, scale_strides = x.stride(), scales.stride()
    if not experts:  # those of a batch of one, which is nowhere else: 0 divides by 16, whatever the rows
        strides, scale_strides = (0, *strides), (0, *scale_strides)
    transposed = strides[1] == 1 != strides[2]
    config, launch = blocks_plan(blocks, transposed, transposed and rows % 16 == 0, how)
    programs = (experts[0] if experts else 1) * cdiv(rows, config.rows) * cdiv(width, config.columns)
    if programs == 0:
        return
    stored = scales.view(torch.uint8) if blocks.mx else scales
    launch(x.device, programs, x, codes.view(torch.uint8), stored, rows, width, *strides, *scale_strides)


# ---- down columns ----------------------------------------------------------------------------------------------------


class Operand(NamedTuple):
    """One input of the column quantiser and what becomes of it.

    x (G, M, K) is reduced over M for each of G; with offs x is (1, M, K), reduced group by group.
    Codes (G, K, M) and scales (G, K) in this order in memory.

    Attributes:
        width: K.
        layout: which axis of x is contiguous.
        words: rows of x are whole aligned 32-bit words of two 16-bit values.
    """

    x: Tensor
    codes: Tensor
    scales: Tensor
    width: int
    layout: Layout
    words: bool

    def pointers(self, words: bool) -> tuple[Tensor, Tensor, Tensor]:
        """x, codes and scales as kernels take them."""
        return self.x.view(torch.int32) if words else self.x, self.codes.view(torch.uint8), self.scales


def operand_of(x: Tensor, codes: Tensor, scales: Tensor) -> Operand:
    width, strides = x.shape[2], x.stride()
    if strides[2] != 1:
        return Operand(x, codes, scales, width, "reduced" if strides[1] == 1 else "strided", False)
    words = (
        x.element_size() == 2
        and (width | strides[0] | strides[1]) % 2 == 0
        and x.data_ptr() % 4 == 0  # an offset into a storage says nothing of where the storage begins
    )
    return Operand(x, codes, scales, width, "kept", words)


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

    x_dtype: torch.dtype
    widths: tuple[int, ...]
    weight_rows: int | None
    layout: Layout
    words: bool
    rows_aligned: bool
    padded: bool
    atomic: bool
    how: How

    @property
    def form(self) -> Form:
        unit = {"kept": "k", "reduced": "t", "strided": ""}[self.layout]
        aligned = all(width % 16 == 0 for width in self.widths)
        return Form(_NAMES[self.x_dtype], unit, self.words, self.rows_aligned, aligned)


class Groups(NamedTuple):
    """How the rows of a call fall apart: by offs, or, without, into the equal experts of a weight.

    Attributes:
        rows: of an input.
        code_rows: of a column of codes.
        padded_offs: is written, where groups begin on multiples of 16.
    """

    offs: Tensor | None
    count: int
    rows: int
    code_rows: int
    padded_offs: Tensor | None


def launch_columns(
    operands: Sequence[Operand], offs: Tensor | None, how: How, atomic: bool = False, padded_offs: Tensor | None = None
) -> None:
    """One operand, or two that share offs, in one launch after the fill of what has to begin at zero.

    Where shared memory holds a weight whole, nothing has to; `atomic` says how programs of a panel meet, and there
    none do.
    With `padded_offs` (G,), which is written, codes are (K, padded_rows) and each group begins on a multiple of 16.
    """
    first, last = operands[0], operands[-1]
    if first.width == 0 or last.width == 0:
        operands = [operand for operand in operands if operand.width > 0]
        if operands:
            launch_columns(operands, offs, how, atomic, padded_offs)
        elif padded_offs is not None and offs is not None:
            padded_offs.copy_(padded_ends(offs))
        return
    x = first.x
    batches, rows, _ = x.shape
    count = batches if offs is None else offs.shape[0]
    code_rows = rows if padded_offs is None else padded_rows(rows, count)
    layout = first.layout if first.layout == last.layout else "strided"
    columns = Columns(
        x.dtype,
        (first.width,) if first is last else (first.width, last.width),
        rows if offs is None else None,
        layout,
        layout == "kept" and first.words and last.words and code_rows % 16 == 0,
        rows % 16 == 0 and padded_offs is None,
        padded_offs is not None,
        atomic,
        how,
    )
    plan = columns_plan(columns)
    plan.run(operands, Groups(None if offs is None else offs.contiguous(), count, rows, code_rows, padded_offs))


@cache
def columns_plan(columns: Columns) -> PanelsPlan | RingPlan | ChunksPlan:
    """Panels in shared memory, a ring, or chunks in registers: what runs there."""
    arch, dtype, rows = columns.how.arch, columns.how.dtype, columns.weight_rows
    configs: list[PanelsConfig | RingConfig | ColumnsConfig] = []
    if columns.words and rows is not None:
        configs += panels_candidates(arch, dtype, rows, columns.widths[0])
    if columns.words:
        configs += ring_candidates(arch, dtype, rows)
    configs += columns_candidates(arch, columns.layout)
    config = pick(configs[:MAX_CANDIDATES], columns.how.candidate)
    if isinstance(config, PanelsConfig):
        return PanelsPlan(columns, config)
    return RingPlan(columns, config) if isinstance(config, RingConfig) else ChunksPlan(columns, config)


class ChunksPlan:
    """`quantize_columns`: chunks in registers."""

    def __init__(self, columns: Columns, config: ColumnsConfig) -> None:
        self.columns = columns
        wait_rows = config.wait_rows
        if columns.weight_rows is not None:  # a panel has no more chunks
            wait_rows = min(wait_rows, power_of_two(self._slots_of_weight(config, columns.weight_rows)))
        self.config = config = config._replace(wait_rows=wait_rows, rest=min(config.rows, config.rest))
        self.launch = Launch(
            quantize_columns,
            ATOMIC=columns.atomic,
            form=columns.form,
            encoding=columns.how.encoding,
            config=config,
            num_warps=config.warps,
        )

    @staticmethod
    def _slots_of_weight(config: ColumnsConfig, rows: int) -> int:
        return min(config.chunks, max(1, cdiv(rows, config.rows)))

    def run(self, operands: Sequence[Operand], groups: Groups) -> None:
        config, widths, words, rows = self.config, self.columns.widths, self.columns.words, groups.rows
        if groups.offs is None:  # places for chunks down a column of panels, and those of all groups
            slots = self._slots_of_weight(config, rows)
            all_slots = slots * groups.count
        else:
            all_slots = slots = groups.code_rows // config.rows + groups.count + 1
        orders = all_slots // slots
        stripes = [cdiv(width, config.width) for width in widths]
        programs = [orders * slots * cdiv(n, config.stripes) * config.stripes for n in stripes]
        if sum(programs) == 0:
            return
        x, codes, scales = operands[0].pointers(words)
        word, amax = _zeroed(groups.count * sum(stripes), all_slots * sum(widths), x.device)
        of_second: tuple[Any, ...] = (None,) * 6
        if len(operands) == 2:
            pointers = operands[1].pointers(words)
            of_second = (*pointers, widths[1], *pointers[0].stride()[1:])
        padded = None if groups.padded_offs is None else groups.code_rows
        self.launch(
            x.device, sum(programs), x, groups.offs, codes, scales, amax, word, groups.count, rows, widths[0], slots,
            *x.stride(), *of_second, programs[0], groups.padded_offs, padded,
        )  # fmt: skip


def _zeroed(panels: int, slices: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """A word a panel, int64, and the amax of each slice of a chunk, uint32.

    One fill, as both have to begin at zero.
    """
    zeros = torch.zeros(2 * panels + slices, dtype=torch.int32, device=device)
    return zeros[: 2 * panels].view(torch.int64), zeros[2 * panels :].view(torch.uint32)


class PanelsPlan:
    """`quantize_panels`: whole weights in shared memory."""

    def __init__(self, columns: Columns, config: PanelsConfig) -> None:
        from kernels.fp8.panels import quantize_panels  # where it runs: nobody else needs Gluon

        assert columns.weight_rows is not None
        self.config = config
        (self.width,) = columns.widths
        self.launch = Launch(
            quantize_panels,
            TILES=config.tiles(columns.weight_rows),
            form=columns.form,
            encoding=columns.how.encoding,
            config=config,
            num_warps=config.warps,
        )

    def run(self, operands: Sequence[Operand], groups: Groups) -> None:
        if groups.count == 0:
            return
        x, codes, scales = operands[0].pointers(words=True)
        stride_g, stride_t, _ = x.stride()
        programs = groups.count * cdiv(self.width, self.config.width)
        sizes = groups.count, groups.rows, self.width
        self.launch(x.device, programs, x, codes, scales, *sizes, stride_g, stride_t)


class RingPlan:
    """`quantize_ring`: chunks through a ring in shared memory."""

    def __init__(self, columns: Columns, config: RingConfig) -> None:
        self.columns, self.config = columns, config
        self.pairs, self.held_rows = sum(columns.widths) // 2, config.held_rows

    @cache  # noqa: B019  (a plan lives as long as the process)
    def launch(self, groups: int, fills: bool) -> Launch:
        """For tables of so many groups.

        `fills`: the fill goes before. Without it the quantiser may not begin early: what it then overtakes is whoever
        wrote its input.
        """
        from kernels.fp8.ring import quantize_ring  # where it runs: nobody else needs Gluon

        columns, config = self.columns, self.config
        return Launch(
            quantize_ring,
            GROUPS=groups,
            form=columns.form,
            encoding=columns.how.encoding,
            config=config,
            num_warps=config.warps,
            **({"launch_pdl": True} if fills else {}),
        )

    def run(self, operands: Sequence[Operand], groups: Groups) -> None:
        config, widths = self.config, self.columns.widths
        jagged = groups.offs is not None
        if groups.count == 0 and not jagged:
            return
        x, codes, scales = operands[0].pointers(words=True)
        device = x.device
        programs = config.programs * processors_of(device)
        most_chunks = max(1, programs // config.stripes)
        fills = jagged or groups.code_rows > self.held_rows  # chunks may have to meet
        if jagged:  # of all panels side by side, at most
            chunks = groups.code_rows // self.held_rows + groups.count + 1
        else:
            chunks = groups.count * max(1, min(cdiv(groups.code_rows, self.held_rows), most_chunks))
        words = chunks * self.pairs
        amax = x.new_empty(words)
        if fills:
            _zeroing()(device, cdiv(words, _ZEROS), amax, words)
        stride_g, stride_t, _ = x.stride()
        of_second: tuple[Any, ...] = (None,) * 5
        if len(operands) == 2:
            pointers = operands[1].pointers(words=True)
            of_second = (*pointers, widths[1], pointers[0].stride(1))
        self.launch(power_of_two(groups.count, 32), fills)(
            device, programs, x, groups.offs, codes, scales, amax, groups.count, groups.code_rows, widths[0],
            stride_t, stride_g, *of_second, groups.padded_offs, most_chunks,
        )  # fmt: skip


@cache
def _zeroing() -> Launch:
    from kernels.fp8.ring import zero_words

    return Launch(zero_words, BLOCK=_ZEROS, num_warps=8)
