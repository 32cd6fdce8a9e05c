"""From tensors to launches: strides, grids, workspaces. The only caller of the quantisers' Triton kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import triton
import triton.language as tl

from kernels.fp8.arguments import padded_ends, padded_rows
from kernels.fp8.columns import quantize_columns
from kernels.fp8.configs import (
    MAX_CANDIDATES,
    ColumnsConfig,
    Layout,
    PanelsConfig,
    RingConfig,
    columns_candidates,
    panels_candidates,
    ring_candidates,
    rows_candidates,
)
from kernels.fp8.encode import format_constants
from kernels.fp8.formats import format_of
from kernels.fp8.rows import quantize_rows
from kernels.hardware import arch_of
from kernels.paths import on

Config = TypeVar("Config")
_ZEROS = 4096  # words a program writes
TRITON_DTYPES = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}


def launch_rows(
    x_ERK: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    dtype: torch.dtype,
    power_of_two: bool,
    candidate: int | None,
    inverse: bool = False,
) -> None:
    """x (E, R, K) reduced over K; codes (E, R, K) contiguous in this order of axes, scales (E * R,).

    With `inverse` scales are stored as their reciprocals."""
    experts, inner_rows, width = x_ERK.shape
    rows = experts * inner_rows
    if rows == 0:
        return
    arch = arch_of(x_ERK.device)
    layout: Layout = "reduced" if x_ERK.stride(2) == 1 else "strided"
    config = pick(rows_candidates(arch, x_ERK.dtype, width, layout), candidate)
    with on(x_ERK):
        quantize_rows[(triton.cdiv(rows, config.rows),)](
            x_ERK,
            codes.view(torch.uint8),
            scales,
            rows,
            inner_rows,
            width,
            *x_ERK.stride(),
            **format_constants(format_of(dtype), arch, power_of_two, inverse),
            UNIT=x_ERK.stride(2) == 1,
            R=config.rows,
            BLOCK=config.block,
            TAIL=config.tail,
            WHOLE=config.whole,
            num_warps=config.warps,
        )


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
        return "kept" if self.x.stride(2) == 1 else "reduced" if self.x.stride(1) == 1 else "strided"


def launch_columns(
    operands: Sequence[Operand],
    offs: torch.Tensor | None,
    dtype: torch.dtype,
    power_of_two: bool,
    candidate: int | None,
    atomic: bool = False,
    padded_offs: torch.Tensor | None = None,
    inverse: bool = False,
) -> None:
    """One operand, or two that share offs, in one launch after the fill of what has to begin at zero.

    Where shared memory holds a weight whole, nothing has to; `atomic` says how programs of a panel meet, and there
    none do.
    With `padded_offs` (G,), which is written, codes are (K, padded_rows) and each group begins on a multiple of 16.
    With `inverse` scales are stored as their reciprocals.
    """
    operands = [operand for operand in operands if operand.width > 0]
    if not operands:
        if padded_offs is not None and offs is not None:
            padded_offs.copy_(padded_ends(offs))
        return
    first, second = operands[0], operands[-1]
    batches, rows, _ = first.x.shape
    groups = batches if offs is None else offs.numel()
    device = first.x.device
    arch = arch_of(device)
    layout: Layout = first.layout if first.layout == second.layout else "strided"
    code_rows = rows if padded_offs is None else padded_rows(rows, groups)
    words = layout == "kept" and code_rows % 16 == 0 and all(_holds_words(operand.x) for operand in operands)
    configs: list[PanelsConfig | RingConfig | ColumnsConfig] = []
    if words and offs is None:
        configs += panels_candidates(arch, dtype, rows, first.width)
    if words:
        configs += ring_candidates(arch, dtype, offs is not None)
    configs += columns_candidates(arch, offs is not None, layout, words)
    config = pick(configs[:MAX_CANDIDATES], candidate)
    constants = format_constants(format_of(dtype), arch, power_of_two, inverse)
    if isinstance(config, PanelsConfig):
        _launch_panels(first, config, constants)
        return
    if isinstance(config, RingConfig):
        _launch_ring(operands, offs, padded_offs, config, constants)
        return

    slots, all_slots, wait_rows = _slots_of(config, first.x, offs, code_rows)
    orders = all_slots // slots
    offs = None if offs is None else offs.contiguous()
    stripes = [triton.cdiv(operand.width, config.width) for operand in operands]
    programs = [orders * slots * triton.cdiv(n, config.stripes) * config.stripes for n in stripes]
    if sum(programs) == 0:
        return
    xs = [operand.x.view(torch.int32) if words else operand.x for operand in operands]
    width = sum(operand.width for operand in operands)
    word, amax = _zeroed(groups * sum(stripes), all_slots * width, device)
    two = len(operands) == 2
    with on(first.x):
        quantize_columns[(sum(programs),)](
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
            xs[1] if two else None,
            second.codes.view(torch.uint8) if two else None,
            second.scales if two else None,
            second.width if two else None,
            xs[1].stride(1) if two else None,
            xs[1].stride(2) if two else None,
            programs[0],
            padded_offs,
            None if padded_offs is None else code_rows,
            SECOND=two,
            UNIT={"kept": "k", "reduced": "t", "strided": ""}[layout],
            X_DTYPE=TRITON_DTYPES[first.x.dtype],
            WORDS=words,
            JAGGED=offs is not None,
            ATOMIC=atomic,
            ROWS_ALIGNED=rows % 16 == 0 and padded_offs is None,
            WIDTH_ALIGNED=all(operand.width % 16 == 0 for operand in operands),
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


def _launch_panels(operand: Operand, config: PanelsConfig, constants: Mapping[str, Any]) -> None:
    from kernels.fp8.panels import quantize_panels  # where it runs: nobody else needs Gluon

    groups, rows, width = operand.x.shape
    if groups == 0:
        return
    words = operand.x.view(torch.int32)
    with on(operand.x):
        quantize_panels[(groups * triton.cdiv(width, config.width),)](
            words,
            operand.codes.view(torch.uint8),
            operand.scales,
            groups,
            rows,
            width,
            *words.stride()[:2],
            X_DTYPE=TRITON_DTYPES[operand.x.dtype],
            **{name: constants[name] for name in ("MAX", "NATIVE", "POWER_OF_TWO", "INVERSE")},
            TILES=config.tiles(rows),
            T=config.rows,
            PAIRS=config.width // 2,
            STRIPES=config.stripes,
            num_warps=config.warps,
        )


def _launch_ring(
    operands: Sequence[Operand],
    offs: torch.Tensor | None,
    padded_offs: torch.Tensor | None,
    config: RingConfig,
    constants: Mapping[str, Any],
) -> None:
    from kernels.fp8 import ring  # where it runs: nobody else needs Gluon

    first, second = operands[0], operands[-1]
    two = len(operands) == 2
    device = first.x.device
    batches, rows, _ = first.x.shape
    groups = batches if offs is None else offs.numel()
    if groups == 0 and offs is None:
        return
    code_rows = rows if padded_offs is None else padded_rows(rows, groups)
    programs = config.programs
    if device.type == "cuda":  # else it is only compiled
        programs *= torch.cuda.get_device_properties(device).multi_processor_count
    most_chunks = max(1, programs // config.stripes)
    chunks = code_rows // config.held_rows + groups + 1  # of all panels side by side, at most
    if offs is None:
        chunks = groups * max(1, min(triton.cdiv(rows, config.held_rows), most_chunks))
    amax = torch.empty(chunks * sum(operand.width // 2 for operand in operands), dtype=torch.int32, device=device)
    if offs is not None or rows > config.held_rows:  # chunks may have to meet
        with on(amax):
            ring.zero_words[(triton.cdiv(amax.numel(), _ZEROS),)](amax, amax.numel(), BLOCK=_ZEROS, num_warps=8)
    x = first.x.view(torch.int32)
    x2 = second.x.view(torch.int32) if two else None
    with on(first.x):
        ring.quantize_ring[(programs,)](
            x,
            None if offs is None else offs.contiguous(),
            first.codes.view(torch.uint8),
            first.scales,
            amax,
            groups,
            code_rows,
            first.width,
            x.stride(1),
            x.stride(0),
            x2,
            second.codes.view(torch.uint8) if two else None,
            second.scales if two else None,
            second.width if two else None,
            x2.stride(1) if x2 is not None else None,
            padded_offs,
            most_chunks,
            X_DTYPE=TRITON_DTYPES[first.x.dtype],
            **{name: constants[name] for name in ("MAX", "NATIVE", "POWER_OF_TWO", "INVERSE")},
            ALIGNED=all(operand.width % 16 == 0 for operand in operands),
            GROUPS=max(32, triton.next_power_of_2(groups + 1)),
            T=config.rows,
            PAIRS=config.width // 2,
            SLOTS=config.slots,
            HELD=config.held_rows,
            STRIPES=config.stripes,
            POLLS=config.polls,
            num_warps=config.warps,
            **({"launch_pdl": True} if config.overlap else {}),
        )


def _slots_of(
    config: ColumnsConfig, x_GMK: torch.Tensor, offs: torch.Tensor | None, code_rows: int
) -> tuple[int, int, int]:
    """(places for chunks down a column of panels, those of all groups, chunks to look at together while waiting)."""
    if offs is not None:
        slots = code_rows // config.held + offs.numel() + 1
        return slots, slots, config.wait_rows
    groups, rows, _ = x_GMK.shape
    slots = min(config.chunks, max(1, triton.cdiv(rows, config.held)))
    return slots, slots * groups, min(config.wait_rows, triton.next_power_of_2(slots))  # a panel has no more chunks


def _zeroed(panels: int, slices: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """A word a panel, int64, and the amax of each slice of a chunk, uint32.

    One fill, as both have to begin at zero.
    """
    # Has to be a kernel launched the usual way: with `overlap` the quantiser begins as this ends, and relies on all
    # that came before this being done.
    zeros = torch.zeros(2 * panels + slices, dtype=torch.int32, device=device)
    return zeros[: 2 * panels].view(torch.int64), zeros[2 * panels :].view(torch.uint32)


def _holds_words(x_GMK: torch.Tensor) -> bool:
    """Whether rows are whole aligned 32-bit words of two 16-bit values."""
    even = (x_GMK.shape[2], x_GMK.stride(0), x_GMK.stride(1), x_GMK.storage_offset())
    return x_GMK.element_size() == 2 and all(number % 2 == 0 for number in even)


def pick(configs: Sequence[Config], candidate: int | None) -> Config:
    if candidate is None:
        return configs[0]
    if not 0 <= candidate < len(configs):
        raise ValueError(f"candidate: is {candidate}; may be 0 to {len(configs) - 1} here")
    return configs[candidate]
