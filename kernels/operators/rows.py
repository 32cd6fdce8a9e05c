"""Rows fetched from elsewhere, and rows added up: what gather, scatter and bias addition stand on.

Shape suffixes: R rows of a tile, C columns of a tile, S segments, G groups, T partial sums.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.hardware import arch_of
from kernels.jit import jit, tl
from kernels.operators.configs import pick, power_of_two, row_candidates, sum_candidates
from kernels.operators.launch import cdiv, layout_of, strides
from kernels.operators.tiles import tile
from kernels.paths import Path, on, path_of
from kernels.rounding import rounded


def path(device: torch.device | str) -> Path:
    """What an operator runs on this device now (`kernels.paths`)."""
    return path_of(_fetch, device)


def fetch_rows(x: Tensor, source: Tensor, out: Tensor, missing: float, candidate: int | None) -> None:
    """out[i] = x[source[i]] bit for bit; `missing` (0 or NaN) in every row whose source is not in [0, rows of x).

    x (rows, width) any strides; source (n,) int64 or int32, contiguous; out (n, width) with contiguous rows.
    """
    count, width = out.shape
    if out.numel() == 0:
        return
    if path_of(_fetch, x.device) == "eager":
        inside = (source >= 0) & (source < x.shape[0])
        out.copy_(x.index_select(0, source * inside) if x.shape[0] else torch.zeros_like(out))
        out.masked_fill_(~inside[:, None], missing)
        return
    config = pick(row_candidates(arch_of(x.device), width, layout_of(x)), candidate)
    with on(x):
        _fetch[(cdiv(count, config.rows) * cdiv(width, config.columns),)](
            x, source, out, count, width, x.shape[0], *strides(x, out),
            MISSING_IS_NAN=missing != missing, R=config.rows, C=config.columns, num_warps=config.warps,
        )  # fmt: skip


def sum_segments(x: Tensor, order: Tensor, borders: Tensor, out: Tensor, candidate: int | None) -> None:
    """out[s] = sum over i in [borders[s], borders[s + 1]) of x[order[i]], in fp32 and in this order; an empty one is 0.

    One program a segment and columns: for many short segments. `sum_groups` is for few long ones.
    x (n, width) any strides; order (n,) and borders (S + 1,) int64, contiguous, the latter never decreasing and in
    [0, n]; out (S, width) with contiguous rows.
    """
    segments, width = out.shape
    if out.numel() == 0:
        return
    if path_of(_sum_segments, x.device) == "eager":
        first, number = borders[0], torch.arange(x.shape[0], device=x.device)
        segment = torch.searchsorted(borders[1:], number, right=True)
        kept = (segment < segments) & (number >= first)
        _sum_eagerly(x[order[kept]], segment[kept], out)
        return
    arch = arch_of(x.device)
    config = pick(sum_candidates(arch, width), candidate)
    with on(x):
        _sum_segments[(segments * cdiv(width, config.columns),)](
            x, order, borders, out, width, *strides(x, out),
            BY_HAND=arch == "cpu", R=config.rows, C=config.columns, num_warps=config.warps,
        )  # fmt: skip


def sum_groups(x: Tensor, offs: Tensor, out: Tensor, candidate: int | None) -> None:
    """out[g] = sum of the rows of group g, [offs[g - 1], offs[g]) clamped to the rows of x, in fp32; an empty one is 0.

    First in tiles of rows, none of which reaches over the end of its group, then over the tiles of a group: however
    rows fall into groups, no program has more to do than a tile. Two launches, no atomics, no host read.
    x (rows, width) any strides; offs (G,) int32 or int64, contiguous; out (G, width) with contiguous rows.
    """
    groups, width = out.shape
    if out.numel() == 0:
        return
    rows = x.shape[0]
    if path_of(_sum_tiles, x.device) == "eager":
        number = torch.arange(rows, device=x.device)
        group = torch.searchsorted(offs.long().clamp(0, rows), number, right=True)
        kept = group < groups
        _sum_eagerly(x[kept], group[kept], out)
        return
    arch = arch_of(x.device)
    config = pick(sum_candidates(arch, width), candidate)
    blocks = cdiv(width, config.columns)
    tiles = rows // config.tile + groups  # a bound that needs no data: each group ends with at most one part of a tile
    partial_TC = x.new_empty((tiles, width), dtype=torch.float32)
    constants = {
        "G": power_of_two(groups), "TILE": config.tile, "R": config.rows, "C": config.columns,
        "num_warps": config.warps,
    }  # fmt: skip
    with on(x):
        _sum_tiles[(tiles * blocks,)](x, offs, partial_TC, rows, width, groups, *strides(x), **constants)
        _sum_partials[(groups * blocks,)](
            partial_TC, offs, out, rows, width, groups, tiles, *strides(out), BY_HAND=arch == "cpu", **constants
        )


def _sum_eagerly(values: Tensor, segment: Tensor, out: Tensor) -> None:
    sums = torch.zeros(out.shape, dtype=torch.float32, device=out.device)
    out.copy_(sums.index_add_(0, segment, values.float()))


@jit(do_not_specialize=["count", "source_rows"])
def _fetch(  # type: ignore[no-untyped-def]
    x_ptr, source_ptr, out_ptr, count, width, source_rows, x_row, x_column, out_row, out_column,
    MISSING_IS_NAN: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    row, column, inside = tile(count, width, R, C)
    source = tl.load(source_ptr + row, mask=row < count, other=-1).to(tl.int64)
    exists = (source >= 0) & (source < source_rows)
    value_RC = tl.load(x_ptr + source * x_row + column * x_column, mask=inside & exists, other=0.0)
    if MISSING_IS_NAN:
        value_RC = tl.where(exists, value_RC, float("nan")).to(x_ptr.dtype.element_ty)
    tl.store(out_ptr + row * out_row + column * out_column, value_RC, mask=inside)


@jit()
def _sum_segments(  # type: ignore[no-untyped-def]
    x_ptr, order_ptr, borders_ptr, out_ptr, width, x_row, x_column, out_row, out_column,
    BY_HAND: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(width, C)
    segment = (tl.program_id(0) // blocks).to(tl.int64)
    column_C = (tl.program_id(0) % blocks).to(tl.int64) * C + tl.arange(0, C)
    end = tl.load(borders_ptr + segment + 1)
    sum_C = tl.zeros((C,), tl.float32)
    for first in range(tl.load(borders_ptr + segment), end, R):
        row_R = first + tl.arange(0, R)
        from_R = tl.load(order_ptr + row_R, mask=row_R < end, other=0)
        inside_RC = (row_R < end)[:, None] & (column_C < width)[None, :]
        x_RC = tl.load(x_ptr + from_R[:, None] * x_row + column_C[None, :] * x_column, mask=inside_RC, other=0.0)
        sum_C += tl.sum(x_RC.to(tl.float32), 0)
    to_C = out_ptr + segment * out_row + column_C * out_column
    tl.store(to_C, rounded(sum_C, out_ptr.dtype.element_ty, BY_HAND), mask=column_C < width)


@jit()
def _tiles(offs_ptr, rows, groups, TILE: tl.constexpr, G: tl.constexpr):  # type: ignore[no-untyped-def]
    """Of each group: its number, first row, end, and the running end of its tiles; all int64 (G,)."""
    group_G = tl.arange(0, G)
    start_G = tl.load(offs_ptr + group_G - 1, mask=(group_G > 0) & (group_G < groups), other=0).to(tl.int64)
    end_G = tl.load(offs_ptr + group_G, mask=group_G < groups, other=0).to(tl.int64)
    start_G = tl.minimum(tl.maximum(start_G, 0), rows)
    end_G = tl.where(group_G < groups, tl.minimum(tl.maximum(end_G, start_G), rows), start_G)
    return group_G, start_G, end_G, tl.cumsum((end_G - start_G + TILE - 1) // TILE, 0)


@jit(do_not_specialize=["rows", "groups"])
def _sum_tiles(  # type: ignore[no-untyped-def]
    x_ptr, offs_ptr, partial_ptr, rows, width, groups, x_row, x_column,
    G: tl.constexpr, TILE: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """One tile of a group's rows; programs past the last tile have nothing to do."""
    blocks = tl.cdiv(width, C)
    number = (tl.program_id(0) // blocks).to(tl.int64)
    group_G, start_G, end_G, tiles_G = _tiles(offs_ptr, rows, groups, TILE, G)
    group = tl.sum((tiles_G <= number).to(tl.int32), 0)  # so many groups have all their tiles before this one
    if group < groups:
        before = tl.max(tl.where(group_G < group, tiles_G, 0), 0)
        start = tl.sum(tl.where(group_G == group, start_G, 0), 0) + (number - before) * TILE
        end = tl.minimum(tl.sum(tl.where(group_G == group, end_G, 0), 0), start + TILE)
        column_C = (tl.program_id(0) % blocks).to(tl.int64) * C + tl.arange(0, C)
        sum_C = tl.zeros((C,), tl.float32)
        for first in range(start, end, R):
            row_R = first + tl.arange(0, R)
            inside_RC = (row_R < end)[:, None] & (column_C < width)[None, :]
            x_RC = tl.load(x_ptr + row_R[:, None] * x_row + column_C[None, :] * x_column, mask=inside_RC, other=0.0)
            sum_C += tl.sum(x_RC.to(tl.float32), 0)
        tl.store(partial_ptr + number * width + column_C, sum_C, mask=column_C < width)


@jit(do_not_specialize=["rows", "groups", "tiles"])
def _sum_partials(  # type: ignore[no-untyped-def]
    partial_ptr, offs_ptr, out_ptr, rows, width, groups, tiles, out_row, out_column,
    BY_HAND: tl.constexpr, G: tl.constexpr, TILE: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """What the tiles of a group sum up to."""
    blocks = tl.cdiv(width, C)
    group = (tl.program_id(0) // blocks).to(tl.int64)
    group_G, _, _, tiles_G = _tiles(offs_ptr, rows, groups, TILE, G)
    end = tl.minimum(tl.max(tl.where(group_G <= group, tiles_G, 0), 0), tiles)
    column_C = (tl.program_id(0) % blocks).to(tl.int64) * C + tl.arange(0, C)
    sum_C = tl.zeros((C,), tl.float32)
    for first in range(tl.max(tl.where(group_G < group, tiles_G, 0), 0), end, R):
        row_R = first + tl.arange(0, R)
        inside_RC = (row_R < end)[:, None] & (column_C < width)[None, :]
        sum_C += tl.sum(tl.load(partial_ptr + row_R[:, None] * width + column_C[None, :], mask=inside_RC, other=0.0), 0)
    to_C = out_ptr + group * out_row + column_C * out_column
    tl.store(to_C, rounded(sum_C, out_ptr.dtype.element_ty, BY_HAND), mask=column_C < width)
