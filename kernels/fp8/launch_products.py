"""The grouped matmuls of `products.py`: their committed configurations, descriptors and grids.

A choice is a pure function of (architecture, static width, way of accumulating), never of a count of rows or
groups, and nothing is timed in a user's process. Every candidate is correct for every input; they differ in the order
of summation alone.

Shape suffixes: R rows, K contraction and N columns of form "rows"; N and K the sides, P padded tokens of "groups".
"""

from __future__ import annotations

from functools import cache
from typing import Literal

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.fp8 import specialised
from kernels.fp8.products import multiply_groups, multiply_rows
from kernels.grouped.configs import Config, waste
from kernels.grouped.launch import programs_of
from kernels.hardware import arch_of
from kernels.launch import Launch, Tiles, pick, power_of_two

Form = Literal["rows", "groups"]


# Tiles of 128 x 256 read least for each product. Where the width is not made of 256s, 1408 for one, the long side lies
# along the rows. On an H200 (2026-11-22), us, with the first and the second: 16,640 rows of 5120 -> 8192 take 1205 and
# 1326, dgrad 1065 and 1200, wgrad 1505 and 1499; 32,768 rows of 2048 -> 1408 take 165 and 155, dgrad 162 and 164, wgrad
# 197 and 206. With the others (2026-11-21, when a first one took 1089 and 179) 1105 and 1236, and 182 and 176. Steps of
# 64 codes, of which six fit, made forward and backward together 12 % slower at the first shape.
_HOPPER = (
    Config(height=128, width=256, depth=128, warps=4, stages=4, specialised=True),
    Config(height=256, width=128, depth=128, warps=4, stages=4, specialised=True),
    Config(height=128, width=256, depth=128, warps=8, stages=4),
    Config(height=256, width=128, depth=128, warps=8, stages=4),
)
# Sums that leave the matrix unit need its accumulators twice.
_ACCURATE = (
    Config(height=128, width=128, depth=128, warps=8, stages=3),
    Config(height=64, width=128, depth=128, warps=4, stages=3, programs=2),
)
# Everything else: fits 99 KB and 64 KB.
_GENERAL = (
    Config(height=128, width=128, depth=64, warps=8, stages=3),
    Config(height=64, width=128, depth=64, warps=4, stages=3, programs=2),
)
_INTERPRETED = (
    Config(height=32, width=32, depth=32, warps=4, stages=1, band=2, programs=3, emulate=True),
    Config(height=16, width=32, depth=16, warps=4, stages=1, band=1, programs=5, emulate=True),
)


def candidates(arch: str, width: int, fast_accum: bool) -> tuple[Config, ...]:
    """Candidates for outputs of so many columns, the default first."""
    if arch == "cpu":
        return _INTERPRETED
    configs = _GENERAL if arch != "sm_90" else _HOPPER if fast_accum else _ACCURATE
    return tuple(sorted(configs, key=lambda config: waste(width, config.width) > 1 / 16))


def rows_product(
    a_RK: Tensor,
    b_GNK: Tensor,
    a_inverse_R: Tensor,
    b_inverse_GN: Tensor,
    offs: Tensor,
    fast_accum: bool,
    candidate: int | None = None,
) -> Tensor:
    """Codes whose widths are multiples of 16, none of them 0; offs contiguous -> (R, N) bf16; rows past `offs[-1]` are
    zero."""
    (rows, inner), (groups, outer) = a_RK.shape, b_GNK.shape[:2]
    a_RK, b_GNK = _dense(a_RK), _dense(b_GNK)
    out_RN = a_RK.new_empty((rows, outer), dtype=torch.bfloat16)
    device = out_RN.device
    config, launch = plan(arch_of(device), "rows", outer, fast_accum, power_of_two(groups + 1), candidate)
    tiles: tuple[object, ...]
    if config.specialised:
        tiles = (*_operands(a_RK, b_GNK.flatten(0, 1), config, config.depth), _output(out_RN[None], config))
    else:
        a_tile, b_tile = [config.height, config.depth], [1, config.width, config.depth]
        tiles = _descriptor(a_RK, a_tile), _descriptor(b_GNK, b_tile)
    inverses_and_ends = a_inverse_R.contiguous(), b_inverse_GN.contiguous(), offs
    programs = programs_of(device, config)
    launch(device, programs, *tiles, *inverses_and_ends, out_RN, groups, rows, inner, outer)
    return out_RN


def groups_product(
    a_NP: Tensor,
    b_KP: Tensor,
    a_inverse_GN: Tensor,
    b_inverse_GK: Tensor,
    offs: Tensor,
    fast_accum: bool,
    candidate: int | None = None,
) -> Tensor:
    """Codes whose P and `offs` are multiples of 16, no size 0; offs contiguous -> (G, N, K) bf16; empty groups are
    zero."""
    (height, codes), width, groups = a_NP.shape, b_KP.shape[0], offs.numel()
    a_NP, b_KP = _dense(a_NP), _dense(b_KP)
    out_GNK = a_NP.new_empty((groups, height, width), dtype=torch.bfloat16)
    device = out_GNK.device
    config, launch = plan(arch_of(device), "groups", width, fast_accum, 0, candidate)
    inverses_and_ends = a_inverse_GN.contiguous(), b_inverse_GK.contiguous(), offs
    operands: tuple[object, ...]
    if config.specialised:
        tiles = *_operands(a_NP, b_KP, config, config.depth), *_operands(a_NP, b_KP, config, specialised.PIECE)
        operands = (*tiles, _output(out_GNK, config), *inverses_and_ends)
    else:
        a_tile, b_tile = [config.height, config.depth], [config.width, config.depth]
        operands = a_NP, b_KP, _descriptor(a_NP, a_tile), _descriptor(b_KP, b_tile), *inverses_and_ends, out_GNK
    launch(device, programs_of(device, config), *operands, groups, codes, height, width)
    return out_GNK


@cache
def plan(
    arch: str, form: Form, width: int, fast_accum: bool, groups: int, candidate: int | None = None
) -> tuple[Config, Launch]:
    """For outputs of so many columns. `groups`: of form "rows", a power of two above their number."""
    config = pick(candidates(arch, width, fast_accum), candidate)
    rows = form == "rows"
    if config.specialised:  # the tile is its descriptors'
        kernel = specialised.multiply_rows if rows else specialised.multiply_groups
        return config, Launch(kernel, BAND=config.band, STAGES=config.stages, num_warps=config.warps)
    options = {"num_warps": config.warps, "num_stages": config.stages}
    constants = {"ACCURATE": not fast_accum, "config": config, **options}
    if rows:
        return config, Launch(multiply_rows, GROUPS=groups, **constants)
    return config, Launch(multiply_groups, **constants)


def _dense(codes: Tensor) -> Tensor:
    """Contiguous and on 16 bytes, as the bulk copy engine wants it; what the quantisers write already is."""
    codes = codes.contiguous()
    return codes if codes.data_ptr() % 16 == 0 else codes.clone()


def _descriptor(x: Tensor, tile: list[int], kind: type = TensorDescriptor, **layout: object) -> object:
    """Of contiguous memory that starts on 16 bytes, as all rows of codes and of results do here."""
    return Tiles(kind, shape=list(x.shape), strides=_strides(x), block_shape=tile, **layout).over(x)


def _operands(a: Tensor, b: Tensor, config: Config, depth: int) -> tuple[object, object]:
    kind, layout = specialised.Descriptor, specialised.operand_layout(depth)
    a_tiles = _descriptor(a, [config.height, depth], kind, layout=layout)
    return a_tiles, _descriptor(b, [config.width, depth], kind, layout=layout)


def _output(out: Tensor, config: Config) -> object:
    """What a warp group writes at a time."""
    tile = [1, config.height // 2, specialised.OUT_COLUMNS]
    return _descriptor(out, tile, specialised.Descriptor, layout=specialised.layout_16_bit(3))


def _strides(x: Tensor) -> list[int]:
    """Of contiguous memory, told anew: torch's of a dimension of size 1 may be anything."""
    strides = [1]
    for size in reversed(x.shape[1:]):
        strides.insert(0, strides[0] * size)
    return strides
