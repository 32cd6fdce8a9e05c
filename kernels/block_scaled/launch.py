"""From tensors to launches: configurations, descriptors and grids of products with block scales.

A choice is a pure function of (architecture, kind of scales). Nothing has been swept: entries are what registers and
shared memory suggest, two accumulators of a tile among them. On sm_90 the first was the fastest of three, or within 2 %
of it, in all products of two MoE shapes on an H100. Every candidate is right for every input.

Shape suffixes: M rows, K contraction, N columns, E groups, P padded rows.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.block_scaled.products import multiply_groups, multiply_rows
from kernels.block_scaled.quantize import quantize_tokens
from kernels.block_scaled.reference import SQUARE, Coded
from kernels.fp8.encode import encoding_of
from kernels.grouped.configs import Config
from kernels.grouped.launch import programs_of
from kernels.hardware import arch_of
from kernels.launch import Launch, Tiles, cdiv, pick, power_of_two

# A tile is at most 128 wide, as a square of a weight: then its scale is one number.
_WIDE = Config(height=128, width=128, depth=128, warps=8, stages=4)
_LOW = Config(height=64, width=128, depth=128, warps=4, stages=3, programs=2)
_SHALLOW = Config(height=128, width=128, depth=64, warps=8, stages=4)
_GENERAL = (
    Config(height=128, width=128, depth=64, warps=8, stages=2),
    Config(height=64, width=128, depth=64, warps=4, stages=2, programs=2),
)
# Waves of four have 512 registers each, and those of eight have 256, which Triton 3.6 spills for a tile of 128 x 128.
_CDNA = (_GENERAL[1], Config(height=64, width=64, depth=64, warps=4, stages=2, programs=2))
_INTERPRETED = (
    Config(height=32, width=32, depth=64, warps=4, stages=1, band=2, programs=3, emulate=True),
    Config(height=16, width=64, depth=32, warps=4, stages=1, band=1, programs=5, emulate=True),
)
_TABLE = {
    "sm_90": ((_LOW, _WIDE), (_SHALLOW, _WIDE)),
    "sm_100": ((_WIDE, _LOW), (_WIDE, _SHALLOW)),
    "gfx942": (_CDNA, _CDNA),
    "gfx950": (_CDNA, _CDNA),
    "cpu": (_INTERPRETED, _INTERPRETED),
}


def candidates(arch: str, mx: bool) -> tuple[Config, ...]:
    """Of both products, the default first."""
    return _TABLE.get(arch, (_GENERAL, _GENERAL))[mx]


@cache
def _quantizing(arch: str, dtype: torch.dtype, mx: bool, power_of_two: bool, groups: int) -> Launch:
    """`quantize_tokens` with tables of so many groups. Of MX `power_of_two` says that exponents are rounded up."""
    width, warps = (64, 8) if mx else (SQUARE, 16)  # 32 values a thread
    return Launch(
        quantize_tokens, GROUPS=groups, MX=mx, R=SQUARE, C=width,
        encoding=encoding_of(dtype, arch, power_of_two or mx, inverse=True), num_warps=warps,
    )  # fmt: skip


def quantize(x: Tensor, offs: Tensor, rows: Coded, columns: Coded, mx: bool, powers: bool) -> None:
    """x (M, K), any strides -> codes and scales along rows, and along columns group by group."""
    (tokens, width), groups = x.shape, offs.numel()
    plan = arch_of(x.device), rows[0].dtype, mx, powers, power_of_two(groups + 1)
    launch, down = _quantizing(*plan), (tokens + (SQUARE - 1) * (groups + 1)) // SQUARE
    programs = down * cdiv(width, launch.constants["C"])
    launch(
        x.device,
        programs,
        x,
        offs,
        *map(_bytes, (*rows, *columns)),
        groups,
        tokens,
        width,
        columns[0].shape[1] // SQUARE,
        *x.stride(),
    )


def rows_product(a: Coded, b: Coded, offs: Tensor, out_MN: Tensor, candidate: int | None = None) -> None:
    """Codes whose widths are multiples of 16, none of them 0; offs contiguous; rows past `offs[-1]` become zero."""
    (a_MK, a_scales), (b_ENK, b_scales) = a, b
    (rows, inner), (groups, outer) = a_MK.shape, b_ENK.shape[:2]
    config, launch = _plan(arch_of(a_MK.device), "rows", _is_mx(a_scales), power_of_two(groups + 1), candidate)
    tiles = _tiles(a_MK, config.height, config.depth), _tiles(b_ENK, 1, config.width, config.depth)
    launch(
        a_MK.device, programs_of(a_MK.device, config), *tiles, _bytes(a_scales), _bytes(b_scales), offs, out_MN,
        groups, rows, inner, outer,
    )  # fmt: skip


def groups_product(a: Coded, b: Coded, offs: Tensor, rows: int, out_ENK: Tensor, candidate: int | None = None) -> None:
    """Codes (N, P) and (K, P) of padded groups of `rows` rows, no size 0; offs contiguous; empty groups are zero."""
    (a_NP, a_scales), (b_KP, b_scales) = a, b
    groups, height, width = out_ENK.shape
    config, launch = _plan(arch_of(a_NP.device), "groups", _is_mx(a_scales), power_of_two(groups + 1), candidate)
    tiles = _tiles(a_NP, config.height, config.depth), _tiles(b_KP, config.width, config.depth)
    launch(
        a_NP.device, programs_of(a_NP.device, config), *tiles, _bytes(a_scales), _bytes(b_scales), offs, out_ENK,
        groups, rows, a_NP.shape[1] // SQUARE, height, width,
    )  # fmt: skip


@cache
def _plan(arch: str, form: str, mx: bool, groups: int, candidate: int | None) -> tuple[Config, Launch]:
    """`groups`: a power of two above their number."""
    config = pick(candidates(arch, mx), candidate)
    kernel: Any = multiply_rows if form == "rows" else multiply_groups
    takes_scales = arch.startswith("sm_") or arch == "gfx950"  # of others Triton 3.6 makes no binary
    constants = {"MX": mx, "TAKES_SCALES": takes_scales, "config": config}
    return config, Launch(kernel, GROUPS=groups, **constants, num_warps=config.warps, num_stages=config.stages)


def _tiles(codes: Tensor, *tile: int) -> object:
    """Of contiguous codes, whose rows are whole units of 16 bytes."""
    strides = [codes.shape[-2] * codes.shape[-1], codes.shape[-1], 1][-codes.ndim :]
    return Tiles(TensorDescriptor, shape=list(codes.shape), strides=strides, block_shape=list(tile)).over(codes)


def _is_mx(scales: Tensor) -> bool:
    return scales.dtype == torch.float8_e8m0fnu


def _bytes(x: Tensor) -> Tensor:
    """Codes to write, and exponents, as Triton takes them."""
    return x.view(torch.uint8) if x.dtype.itemsize == 1 else x
