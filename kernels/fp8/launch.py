"""From tensors to launches: plans, grids, workspaces. The only caller of the quantisers' Triton kernels.

A plan is a pure, cached function of (architecture, dtypes, static widths, layout); what is left for a call is
arithmetic on counts of rows, workspace, and one launch for each kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

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
from kernels.fp8.encode import Encoding, encoding_of
from kernels.fp8.rows import quantize_rows
from kernels.fp8.transposed import Form
from kernels.hardware import arch_of, processors_of
from kernels.launch import MAX_CANDIDATES, Launch, cdiv, pick, power_of_two

_ZEROS = 4096  # words a program writes
_NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}  # of dtypes, Triton's


class How(NamedTuple):
    """What a caller asks of codes and scales. `inverse`: scales are stored as their reciprocals."""

    dtype: torch.dtype
    power_of_two: bool
    candidate: int | None
    inverse: bool = False

    def encoding(self, arch: str) -> Encoding:
        return encoding_of(self.dtype, arch, self.power_of_two, self.inverse)


# ---- along rows ------------------------------------------------------------------------------------------------------


@cache
def rows_plan(arch: str, x_dtype: torch.dtype, width: int, is_contiguous: bool, how: How) -> tuple[RowsConfig, Launch]:
    """For rows of so many values, which lie side by side in memory or do not."""
    layout: Layout = "reduced" if is_contiguous else "strided"
    config = pick(rows_candidates(arch, x_dtype, width, layout), how.candidate)
    encoding = how.encoding(arch)
    return config, Launch(quantize_rows, UNIT=is_contiguous, encoding=encoding, config=config, num_warps=config.warps)


def launch_rows(x_ERK: Tensor, codes: Tensor, scales: Tensor, how: How) -> None:
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

    x: Tensor
    codes: Tensor
    scales: Tensor

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

    def pointers(self, words: bool) -> tuple[Tensor, Tensor, Tensor]:
        """x, codes and scales as kernels take them."""
        return self.x.view(torch.int32) if words else self.x, self.codes.view(torch.uint8), self.scales


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

    @property
    def form(self) -> Form:
        unit = {"kept": "k", "reduced": "t", "strided": ""}[self.layout]
        aligned = all(width % 16 == 0 for width in self.widths)
        return Form(_NAMES[self.x_dtype], unit, self.words, self.rows_aligned, aligned)


class Groups(NamedTuple):
    """How the rows of a call fall apart: by offs, or, without, into the equal experts of a weight.

    Attributes:
        code_rows: of a column of codes.
        padded_offs: is written, where groups begin on multiples of 16.
    """

    offs: Tensor | None
    count: int
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
    operands = [operand for operand in operands if operand.width > 0]
    if not operands:
        if padded_offs is not None and offs is not None:
            padded_offs.copy_(padded_ends(offs))
        return
    x = operands[0].x
    batches, rows, _ = x.shape
    count = batches if offs is None else offs.shape[0]
    layouts = {operand.layout for operand in operands}
    code_rows = rows if padded_offs is None else padded_rows(rows, count)
    layout = layouts.pop() if len(layouts) == 1 else "strided"
    plan = columns_plan(
        Columns(
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
    )
    plan.run(operands, Groups(None if offs is None else offs.contiguous(), count, code_rows, padded_offs))


@cache
def columns_plan(columns: Columns) -> PanelsPlan | RingPlan | ChunksPlan:
    """Panels in shared memory, a ring, or chunks in registers: what runs there."""
    arch, dtype, rows = columns.arch, columns.how.dtype, columns.weight_rows
    configs: list[PanelsConfig | RingConfig | ColumnsConfig] = []
    if columns.words and rows is not None:
        configs += panels_candidates(arch, dtype, rows, columns.widths[0])
    if columns.words:
        configs += ring_candidates(arch, dtype, rows is None)
    configs += columns_candidates(arch, rows is None, columns.layout, columns.words)
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
            encoding=columns.how.encoding(columns.arch),
            config=config,
            num_warps=config.warps,
            **config.options,
        )

    @staticmethod
    def _slots_of_weight(config: ColumnsConfig, rows: int) -> int:
        return min(config.chunks, max(1, cdiv(rows, config.held)))

    def run(self, operands: Sequence[Operand], groups: Groups) -> None:
        config, words = self.config, self.columns.words
        first, second = operands[0], operands[-1]
        rows, device = first.x.shape[1], first.x.device
        if groups.offs is None:  # places for chunks down a column of panels, and those of all groups
            slots = self._slots_of_weight(config, rows)
            all_slots = slots * groups.count
        else:
            all_slots = slots = groups.code_rows // config.held + groups.count + 1
        orders = all_slots // slots
        stripes = [cdiv(width, config.width) for width in self.columns.widths]
        programs = [orders * slots * cdiv(n, config.stripes) * config.stripes for n in stripes]
        if sum(programs) == 0:
            return
        word, amax = _zeroed(groups.count * sum(stripes), all_slots * sum(self.columns.widths), device)
        x, codes, scales = first.pointers(words)
        of_second: tuple[Any, ...] = (None,) * 6
        if len(operands) == 2:
            pointers = second.pointers(words)
            of_second = (*pointers, second.width, *pointers[0].stride()[1:])
        padded = None if groups.padded_offs is None else groups.code_rows
        self.launch(
            device, sum(programs), x, groups.offs, codes, scales, amax, word, groups.count, rows, first.width, slots,
            *x.stride(), *of_second, programs[0], groups.padded_offs, padded,
        )  # fmt: skip


def _zeroed(panels: int, slices: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """A word a panel, int64, and the amax of each slice of a chunk, uint32.

    One fill, as both have to begin at zero.
    """
    # Has to be a kernel launched the usual way: with `overlap` the quantiser begins as this ends, and relies on all
    # that came before this being done.
    zeros = torch.zeros(2 * panels + slices, dtype=torch.int32, device=device)
    return zeros[: 2 * panels].view(torch.int64), zeros[2 * panels :].view(torch.uint32)


class PanelsPlan:
    """`quantize_panels`: whole weights in shared memory."""

    def __init__(self, columns: Columns, config: PanelsConfig) -> None:
        from kernels.fp8.panels import quantize_panels  # where it runs: nobody else needs Gluon

        assert columns.weight_rows is not None
        self.config = config
        self.launch = Launch(
            quantize_panels,
            TILES=config.tiles(columns.weight_rows),
            form=columns.form,
            encoding=columns.how.encoding(columns.arch),
            config=config,
            num_warps=config.warps,
        )

    def run(self, operands: Sequence[Operand], groups: Groups) -> None:
        (operand,) = operands
        if groups.count == 0:
            return
        x, codes, scales = operand.pointers(words=True)
        programs = groups.count * cdiv(operand.width, self.config.width)
        sizes = groups.count, groups.code_rows, operand.width
        self.launch(x.device, programs, x, codes, scales, *sizes, *x.stride()[:2])


class RingPlan:
    """`quantize_ring`: chunks through a ring in shared memory."""

    def __init__(self, columns: Columns, config: RingConfig) -> None:
        self.columns, self.config = columns, config

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
            encoding=columns.how.encoding(columns.arch),
            config=config,
            num_warps=config.warps,
            **({"launch_pdl": True} if config.overlap and fills else {}),
        )

    def run(self, operands: Sequence[Operand], groups: Groups) -> None:
        config, device = self.config, operands[0].x.device
        jagged = groups.offs is not None
        if groups.count == 0 and not jagged:
            return
        programs = config.programs * (processors_of(device) if device.type == "cuda" else 1)  # else it is only compiled
        most_chunks = max(1, programs // config.stripes)
        chunks = groups.code_rows // config.held_rows + groups.count + 1  # of all panels side by side, at most
        if not jagged:
            chunks = groups.count * max(1, min(cdiv(groups.code_rows, config.held_rows), most_chunks))
        amax = torch.empty(chunks * (sum(self.columns.widths) // 2), dtype=torch.int32, device=device)
        fills = jagged or groups.code_rows > config.held_rows  # chunks may have to meet
        launch = self.launch(power_of_two(groups.count, 32), fills)
        if fills:
            _zeroing()(device, cdiv(amax.shape[0], _ZEROS), amax, amax.shape[0])
        x, codes, scales = operands[0].pointers(words=True)
        of_second: tuple[Any, ...] = (None,) * 5
        if len(operands) == 2:
            pointers = operands[1].pointers(words=True)
            of_second = (*pointers, operands[1].width, pointers[0].stride(1))
        launch(
            device, programs, x, groups.offs, codes, scales, amax, groups.count, groups.code_rows, operands[0].width,
            x.stride(1), x.stride(0), *of_second, groups.padded_offs, most_chunks,
        )  # fmt: skip


@cache
def _zeroing() -> Launch:
    from kernels.fp8.ring import zero_words

    return Launch(zero_words, BLOCK=_ZEROS, num_warps=8)
