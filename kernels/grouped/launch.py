"""From tensors to launches: layouts, descriptors, grids. The only caller of the Triton kernels."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.grouped.configs import Config, Form, candidates
from kernels.grouped.groups import multiply_groups
from kernels.grouped.rows import multiply_rows
from kernels.grouped.zero import clear_empty_groups, clear_unused_rows
from kernels.hardware import arch_of, processors_of
from kernels.launch import Launch, Tiles, pick, power_of_two

Size = tuple[int, ...]
_CLEAR_BLOCK = 4096  # elements a program clears at a time
_PLANS = 1024  # kept of a form: a stride may be a number of rows, of which there may be many


# ---- form "rows" -----------------------------------------------------------------------------------------------------


def rows_product(a: Tensor, b: Tensor, offs: Tensor, out: Tensor, candidate: int | None) -> None:
    """a (R, K), b (E, K, N), offs (E,) -> out (R, N) contiguous; any strides in."""
    rows, inner = a.shape
    outer = b.shape[2]
    if out.numel() == 0:
        return
    device, groups, a_strides, b_strides = a.device, offs.shape[0], a.stride(), b.stride()
    config, launch, a_tiles, b_tiles = rows_plan(
        arch_of(device), a.element_size(), _on_units(a, b), (min(rows, 2), inner), a_strides, b.shape, b_strides,
        groups, candidate,
    )  # fmt: skip
    tiles = a_tiles and a_tiles.over(a, [rows, inner]), b_tiles and b_tiles.over(b)
    sizes = groups, rows, inner, outer, *a_strides, *b_strides
    launch(device, programs_of(device, config), a, b, *tiles, offs.contiguous(), out, *sizes)


class RowsPlan(NamedTuple):
    """`multiply_rows` for some operands, with their tiles where it loads whole ones."""

    config: Config
    launch: Launch
    a_tiles: Tiles | None
    b_tiles: Tiles | None


@lru_cache(_PLANS)
def rows_plan(
    arch: str, itemsize: int, on_units: bool, a_shape: Size, a_strides: Size, b_shape: Size, b_strides: Size,
    groups: int, candidate: int | None,
) -> RowsPlan:  # fmt: skip
    """a (R, K), of which 2 rows stand for any number above 1; b (E, K, N)."""
    experts, inner, outer = b_shape
    b_transposed = not is_aligned(b_shape, b_strides, itemsize)
    if b_transposed:
        b_shape, b_strides = (experts, outer, inner), (b_strides[0], b_strides[2], b_strides[1])
    # A group may start at any row, and the copy engine at whole units only: rows may not lie side by side.
    aligned = on_units and is_aligned(a_shape, a_strides, itemsize) and is_aligned(b_shape, b_strides, itemsize)
    config = configuration(arch, "rows", itemsize, outer, aligned, candidate)
    even, tables = inner % config.depth == 0, power_of_two(groups + 1)
    if not (config.descriptors and aligned):
        return RowsPlan(config, rows_launch(config, False, False, even, tables), None, None)
    b_tile = [1, config.width, config.depth] if b_transposed else [1, config.depth, config.width]
    return RowsPlan(
        config,
        rows_launch(config, True, b_transposed, even, tables),
        _tiles(a_shape, a_strides, itemsize, [config.height, config.depth]),
        _tiles(b_shape, b_strides, itemsize, b_tile),
    )


@cache
def rows_launch(config: Config, described: bool, b_transposed: bool, even: bool, groups: int) -> Launch:
    """`multiply_rows` with tables of so many groups. `even`: steps fill the inner width."""
    constants = {"GROUPS": groups, "EVEN": even, "DESCRIBED": described, "B_TRANSPOSED": b_transposed}
    return Launch(multiply_rows, **constants, config=config, num_warps=config.warps, num_stages=config.stages)


# ---- form "groups" ---------------------------------------------------------------------------------------------------


def groups_product(a: Tensor, b: Tensor, offs: Tensor, out: Tensor, candidate: int | None) -> None:
    """a (K, R), b (R, N), offs (E,) -> out (E, K, N) contiguous; any strides in."""
    if out.numel() == 0:
        return
    device, (rows, outer), (groups, inner, _) = a.device, b.shape, out.shape
    a_strides, b_strides, aligned = a.stride(), b.stride(), groups_aligned(a, b)
    config, launch, a_tiles, b_tiles, out_tiles = groups_plan(
        arch_of(device), a.element_size(), aligned, min(rows, 2), a_strides, b_strides, out.shape, candidate
    )
    tiles = a_tiles and a_tiles.over(a, [rows, inner]), b_tiles and b_tiles.over(b, [rows, outer])
    programs, offs = programs_of(device, config), offs.contiguous()
    if out_tiles is not None:
        launch(device, programs, *tiles, out_tiles.over(out), offs, groups, rows, inner, outer)
        return
    sizes = groups, rows, inner, outer, *a_strides, *b_strides
    launch(device, programs, a, b, *tiles, offs, out, *sizes)


def groups_aligned(a: Tensor, b: Tensor) -> bool:
    """Whether rows of a.t() and b, of a (K, R) and b (R, N), can be read in whole units wherever a group starts."""
    inner, rows = a.shape
    kept = min(rows, 2)  # any number above 1
    sizes = (kept, inner), a.stride()[::-1], (kept, b.shape[1]), b.stride()
    return _on_units(a, b) and _both_aligned(*sizes, a.element_size())


@lru_cache(_PLANS)
def _both_aligned(a_shape: Size, a_strides: Size, b_shape: Size, b_strides: Size, itemsize: int) -> bool:
    return is_aligned(a_shape, a_strides, itemsize) and is_aligned(b_shape, b_strides, itemsize)


class GroupsPlan(NamedTuple):
    """`multiply_groups` for some operands, with their tiles, and the output's, where it moves whole ones."""

    config: Config
    launch: Launch
    a_tiles: Tiles | None
    b_tiles: Tiles | None
    out_tiles: Tiles | None


@lru_cache(_PLANS)
def groups_plan(
    arch: str, itemsize: int, aligned: bool, rows: int, a_strides: Size, b_strides: Size, out_shape: Size,
    candidate: int | None,
) -> GroupsPlan:  # fmt: skip
    """out (E, K, N); 2 rows stand for any number above 1."""
    _, inner, outer = out_shape
    config = configuration(arch, "groups", itemsize, outer, aligned, candidate)
    a_lies, b_lies = ((rows, inner), a_strides[::-1], itemsize), ((rows, outer), b_strides, itemsize)
    if config.specialised:  # operands of 16 bits and an output whose rows are whole units
        from kernels.grouped import specialised  # where it runs: nobody else needs Gluon

        def tiles(shape: Size, strides: Size, itemsize: int, tile: list[int]) -> Tiles:
            layout = specialised.layout_16_bit(len(tile))
            return _tiles(shape, strides, itemsize, tile, specialised.Descriptor, layout=layout)

        half = config.height // 2
        out_lies = out_shape, (inner * outer, outer, 1), itemsize
        return GroupsPlan(
            config,
            specialised_launch(config),
            tiles(*a_lies, [config.depth, half]),
            tiles(*b_lies, [config.depth, config.width]),
            tiles(*out_lies, [1, half, config.width]),
        )
    if not (config.descriptors and aligned):
        return GroupsPlan(config, groups_launch(config, False), None, None, None)
    a_tiles = _tiles(*a_lies, [config.depth, config.height])
    return GroupsPlan(config, groups_launch(config, True), a_tiles, _tiles(*b_lies, [config.depth, config.width]), None)


@cache
def groups_launch(config: Config, described: bool) -> Launch:
    """`multiply_groups`."""
    options = {"num_warps": config.warps, "num_stages": config.stages}
    return Launch(multiply_groups, DESCRIBED=described, config=config, **options)


@cache
def specialised_launch(config: Config) -> Launch:
    """`specialised.multiply_groups`."""
    from kernels.grouped import specialised

    return Launch(specialised.multiply_groups, BAND=config.band, STAGES=config.stages, num_warps=config.warps)


# ---- what nobody wrote -----------------------------------------------------------------------------------------------


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


# ---- how operands lie in memory --------------------------------------------------------------------------------------


def _on_units(a: Tensor, b: Tensor) -> bool:
    """Whether both start on 16 bytes."""
    return (a.data_ptr() | b.data_ptr()) % 16 == 0


def is_aligned(shape: Size, strides: Size, itemsize: int) -> bool:
    """Whether the last dimension is contiguous and all else starts 16 bytes apart, or a multiple, without overlap."""
    *others, width = shape
    *apart, last = strides
    if last != 1 or 0 in shape:
        return False
    unit = 16 // itemsize
    # The stride of a dimension of size 1 is never used, and may be anything.
    return all(
        size == 1 or (stride % unit == 0 and stride >= width) for size, stride in zip(others, apart, strict=True)
    )


def _tiles(
    shape: Size, strides: Size, itemsize: int, tile: list[int], kind: type = TensorDescriptor, **options: object
) -> Tiles:
    """Of what `is_aligned`; a stride that may be anything is told anew."""
    unit = 16 // itemsize
    unused = -(-shape[-1] // unit) * unit
    used = [stride if size > 1 else unused for size, stride in zip(shape, strides, strict=True)]
    return Tiles(kind, shape=list(shape), strides=[*used[:-1], 1], block_shape=tile, **options)


def programs_of(device: torch.device, config: Config) -> int:
    """Programs of a persistent launch."""
    return config.programs if device.type == "cpu" else config.programs * processors_of(device)


@cache
def configuration(
    arch: str, form: Form, itemsize: int, outer: int, aligned: bool, candidate: int | None = None
) -> Config:
    """What runs on this architecture for outputs of so many columns; `aligned` as `configs.candidates` has it."""
    return pick(candidates(arch, form, itemsize, outer, aligned), candidate)
