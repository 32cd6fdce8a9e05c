"""From tensors to launches: layouts, descriptors, grids. The only caller of the Triton kernels."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.grouped.configs import Config, Form, candidates
from kernels.grouped.groups import multiply_groups
from kernels.grouped.rows import multiply_rows
from kernels.grouped.zero import clear_empty_groups, clear_unused_rows
from kernels.hardware import arch_of, processors_of
from kernels.launch import Launch, pick, power_of_two

_CLEAR_BLOCK = 4096  # elements a program clears at a time


def rows_product(a: Tensor, b: Tensor, offs: Tensor, out: Tensor, candidate: int | None) -> None:
    """a (R, K), b (E, K, N), offs (E,) -> out (R, N) contiguous; any strides in."""
    rows, inner = a.shape
    outer = b.shape[2]
    if out.numel() == 0:
        return
    b_transposed = not is_aligned(b)
    # A group may start at any row, and the copy engine at whole units only: rows may not lie side by side.
    aligned = is_aligned(a) and (not b_transposed or is_aligned(b.mT))
    config = configuration(arch_of(a.device), "rows", a.element_size(), outer, aligned, candidate)
    described = config.descriptors and aligned
    a_tiles = b_tiles = None
    if described:
        b_tile = [1, config.width, config.depth] if b_transposed else [1, config.depth, config.width]
        a_tiles = _descriptor(a, [config.height, config.depth])
        b_tiles = _descriptor(b.mT if b_transposed else b, b_tile)
    groups = offs.shape[0]
    launch = rows_launch(
        config, described, described and b_transposed, inner % config.depth == 0, power_of_two(groups + 1)
    )
    operands = a, b, a_tiles, b_tiles, offs.contiguous(), out
    launch(a.device, programs_of(a.device, config), *operands, groups, rows, inner, outer, *a.stride(), *b.stride())


@cache
def rows_launch(config: Config, described: bool, b_transposed: bool, even: bool, groups: int) -> Launch:
    """`multiply_rows` with tables of so many groups. `even`: steps fill the inner width."""
    constants = {"GROUPS": groups, "EVEN": even, "DESCRIBED": described, "B_TRANSPOSED": b_transposed}
    return Launch(multiply_rows, **constants, config=config, num_warps=config.warps, num_stages=config.stages)


def groups_product(a: Tensor, b: Tensor, offs: Tensor, out: Tensor, candidate: int | None) -> None:
    """a (K, R), b (R, N), offs (E,) -> out (E, K, N) contiguous; any strides in."""
    rows, outer = b.shape
    if out.numel() == 0:
        return
    aligned = is_aligned(a.t()) and is_aligned(b)
    config = configuration(arch_of(a.device), "groups", a.element_size(), outer, aligned, candidate)
    if config.specialised:
        _specialised_groups_product(a, b, offs, out, config)
        return
    described = config.descriptors and aligned
    a_tiles = _descriptor(a.t(), [config.depth, config.height]) if described else None
    b_tiles = _descriptor(b, [config.depth, config.width]) if described else None
    operands = a, b, a_tiles, b_tiles, offs.contiguous(), out
    sizes = offs.shape[0], rows, a.shape[0], outer, *a.stride(), *b.stride()
    groups_launch(config, described)(a.device, programs_of(a.device, config), *operands, *sizes)


@cache
def groups_launch(config: Config, described: bool) -> Launch:
    """`multiply_groups`."""
    options = {"num_warps": config.warps, "num_stages": config.stages}
    return Launch(multiply_groups, DESCRIBED=described, config=config, **options)


def _specialised_groups_product(a: Tensor, b: Tensor, offs: Tensor, out: Tensor, config: Config) -> None:
    """Operands of 16 bits and an output whose rows are whole units."""
    from kernels.grouped import specialised  # where it runs: nobody else needs Gluon

    def tiles(x: Tensor, tile: list[int]) -> object:
        return specialised.Descriptor(x, list(x.shape), _strides(x), tile, specialised.layout_16_bit(len(tile)))

    half = config.height // 2
    specialised_launch(config)(
        a.device,
        programs_of(a.device, config),
        tiles(a.t(), [config.depth, half]),
        tiles(b, [config.depth, config.width]),
        tiles(out, [1, half, config.width]),
        offs.contiguous(),
        offs.shape[0],
        b.shape[0],
        a.shape[0],
        b.shape[1],
    )


@cache
def specialised_launch(config: Config) -> Launch:
    """`specialised.multiply_groups`."""
    from kernels.grouped import specialised

    return Launch(specialised.multiply_groups, BAND=config.band, STAGES=config.stages, num_warps=config.warps)


def clear_rows(out: Tensor, offs: Tensor) -> None:
    """out (R, N) contiguous: zeros from row offs[-1] on."""
    programs = processors_of(out.device)
    _clearing(clear_unused_rows)(out.device, programs, out, offs.contiguous(), offs.shape[0], *out.shape)


def clear_groups(out: Tensor, offs: Tensor) -> None:
    """out (E, K, N) contiguous: zeros in every group that has no rows."""
    groups, inner, outer = out.shape
    programs = processors_of(out.device)
    _clearing(clear_empty_groups)(out.device, programs, out, offs.contiguous(), groups, inner * outer)


@cache
def _clearing(kernel: Any) -> Launch:
    return Launch(kernel, BLOCK=_CLEAR_BLOCK)


def is_aligned(x: Tensor) -> bool:
    """Whether the last dimension is contiguous and all else starts on 16 bytes, without overlapping."""
    *others, width = x.shape
    *strides, last = x.stride()
    if last != 1 or x.data_ptr() % 16 or x.numel() == 0:
        return False
    unit = 16 // x.element_size()
    # The stride of a dimension of size 1 is never used, and may be anything.
    return all(
        size == 1 or (stride % unit == 0 and stride >= width) for size, stride in zip(others, strides, strict=True)
    )


def _descriptor(x: Tensor, tile: list[int]) -> TensorDescriptor:
    """Tiles of `x`, whose memory has whole units."""
    return TensorDescriptor(x, list(x.shape), _strides(x), tile)


def _strides(x: Tensor) -> list[int]:
    """Those of `x`, told anew where torch's may be anything: of a dimension of size 1."""
    unit = 16 // x.element_size()
    unused = -(-x.shape[-1] // unit) * unit
    strides = [stride if size > 1 else unused for size, stride in zip(x.shape, x.stride(), strict=True)]
    strides[-1] = 1
    return strides


def programs_of(device: torch.device, config: Config) -> int:
    """Programs of a persistent launch."""
    return config.programs if device.type == "cpu" else config.programs * processors_of(device)


@cache
def configuration(
    arch: str, form: Form, itemsize: int, outer: int, aligned: bool, candidate: int | None = None
) -> Config:
    """What runs on this architecture for outputs of so many columns; `aligned` as `configs.candidates` has it."""
    return pick(candidates(arch, form, itemsize, outer, aligned), candidate)
