"""From tensors to launches of `quantize_both`: what has to begin at zero is filled once, for several operands together.

Where rows do not lie side by side in memory, are too wide for registers, or one launch is not faster there, the two
families run one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton

from kernels.fp8.arguments import padded_rows
from kernels.fp8.both import quantize_both
from kernels.fp8.configs import ONE_LAUNCH, BothConfig, both_candidates
from kernels.fp8.encode import format_constants
from kernels.fp8.formats import format_of
from kernels.fp8.launch import (
    TRITON_DTYPES,
    Operand,
    holds_words,
    launch_columns,
    launch_rows,
    pick,
    slots_of,
    zeroed,
)
from kernels.hardware import arch_of
from kernels.paths import on


@dataclass(frozen=True)
class Both:
    """One input, quantised along its rows and down its columns.

    columns: x (G, M, K), its transposed codes and scales; with offs x is (1, M, K), reduced group by group.
    row_codes (G, M, K) and row_scales (G, M), in this order in memory. padded_offs (G,), which is written: codes are
    (K, padded_rows), and each group begins on a multiple of 16.
    """

    columns: Operand
    row_codes: torch.Tensor
    row_scales: torch.Tensor
    offs: torch.Tensor | None = None
    padded_offs: torch.Tensor | None = None

    @property
    def code_rows(self) -> int:
        rows = self.columns.x.shape[1]
        return rows if self.padded_offs is None else padded_rows(rows, self.padded_offs.numel())

    @property
    def holds_words(self) -> bool:
        return self.code_rows % 16 == 0 and holds_words(self.columns.x)

    @property
    def groups(self) -> int:
        return self.columns.x.shape[0] if self.offs is None else self.offs.numel()

    def candidates(self, arch: str) -> tuple[BothConfig, ...]:
        """None where one launch cannot do it."""
        if self.columns.x.numel() == 0 or self.columns.layout != "kept":
            return ()
        return both_candidates(arch, self.columns.width, self.offs is not None, self.holds_words)


def launch_both(
    inputs: Sequence[Both], dtype: torch.dtype, power_of_two: bool, candidate: int | None = None, inverse: bool = False
) -> None:
    """One fill, then a launch for each input. With `inverse` scales are stored as their reciprocals."""
    arch = arch_of(inputs[0].columns.x.device)
    configs = [_choice(one, arch, candidate) for one in inputs]
    sizes = [(0, 0) if config is None else _sizes(one, config) for one, config in zip(inputs, configs, strict=True)]
    with on(inputs[0].columns.x):
        spaces = zeroed(sizes, inputs[0].columns.x.device)
        for one, config, (word, amax) in zip(inputs, configs, spaces, strict=True):
            if config is None:
                launch_rows(one.columns.x, one.row_codes, one.row_scales, dtype, power_of_two, None, inverse)
                launch_columns(
                    [one.columns], one.offs, dtype, power_of_two, candidate,
                    atomic=True, padded_offs=one.padded_offs, inverse=inverse,
                )  # fmt: skip
            else:
                _launch(one, config, word, amax, format_constants(format_of(dtype), arch, power_of_two, inverse))


def _choice(one: Both, arch: str, candidate: int | None) -> BothConfig | None:
    """None: the two families."""
    candidates = one.candidates(arch)
    if not candidates or (candidate is None and arch not in ONE_LAUNCH):
        return None
    return pick(candidates, candidate)


def _sizes(one: Both, config: BothConfig) -> tuple[int, int]:
    """What `one` needs of zeros: words of panels, and amaxes of chunks."""
    _, all_slots, _ = slots_of(config.columns, one.columns.x, one.offs, one.code_rows)
    stripes = triton.cdiv(one.columns.width, config.columns.width)
    return one.groups * stripes, all_slots * one.columns.width


def _launch(
    one: Both, config: BothConfig, word: torch.Tensor, amax: torch.Tensor, constants: Mapping[str, Any]
) -> None:
    columns, x = config.columns, one.columns.x
    groups, rows, width = one.groups, x.shape[1], one.columns.width
    slots, all_slots, wait_rows = slots_of(columns, x, one.offs, one.code_rows)
    row_program_rows, row_block, row_tail = config.row_program(width)
    stripes = triton.cdiv(triton.cdiv(width, columns.width), columns.stripes) * columns.stripes
    row_programs = triton.cdiv(x.shape[0] * rows, row_program_rows)
    if one.offs is None:
        row_programs = triton.cdiv(row_programs, groups) * groups  # every expert has as many
    tiles = x.view(torch.int32) if one.holds_words else x
    quantize_both[(all_slots * stripes + row_programs,)](
        x,
        tiles,
        None if one.offs is None else one.offs.contiguous(),
        one.row_codes.view(torch.uint8),
        one.row_scales,
        one.columns.codes.view(torch.uint8),
        one.columns.scales,
        amax,
        word,
        one.padded_offs,
        groups,
        rows,
        width,
        slots,
        None if one.padded_offs is None else one.code_rows,
        *x.stride()[:2],
        *tiles.stride()[:2],
        X_DTYPE=TRITON_DTYPES[x.dtype],
        WORDS=one.holds_words,
        JAGGED=one.offs is not None,
        ROWS_ALIGNED=rows % 16 == 0 and one.padded_offs is None,
        WIDTH_ALIGNED=width % 16 == 0,
        **constants,
        R=row_program_rows,
        ROW_BLOCK=row_block,
        ROW_TAIL=row_tail,
        T=columns.rows,
        TAIL=columns.tail,
        W=columns.width,
        PACK=columns.pack,
        STRIPES=columns.stripes,
        CHUNKS=columns.chunks,
        POLLS=columns.polls,
        WAIT_ROWS=wait_rows,
        REST=min(columns.rows, columns.rest),
        OVERLAP=columns.overlap,
        num_warps=columns.warps,
        **columns.options,
    )
