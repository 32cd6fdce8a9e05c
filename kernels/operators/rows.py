"""Rows fetched from elsewhere, and rows of groups added up: what gather, scatter and bias addition stand on.

Shape suffixes: R rows of a tile, C columns of a tile, G groups.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from kernels.hardware import arch_of
from kernels.jit import Path, jit, path_of, tl
from kernels.launch import Launch, cdiv, pick, power_of_two
from kernels.operators.configs import Layout, SumConfig, TileConfig, row_candidates, sum_candidates
from kernels.operators.launch import layout_of, strides
from kernels.operators.tiles import tile
from kernels.rounding import rounded


def path(device: torch.device | str) -> Path:
    """What an operator runs on this device now (`kernels.jit`)."""
    return path_of(_fetch, device)


def fetch_rows(
    x: Tensor, source: Tensor, out: Tensor, missing: float, candidate: int | None, *, reused: bool = False
) -> None:
    """out[i] = x[source[i]] bit for bit; `missing` (0 or NaN) in every row whose source is not in [0, rows of x).

    x (rows, width) any strides; source (n or more,) int64 or int32, contiguous; out (n, width) with contiguous rows.
    `reused` says that rows of x may be asked for often: then a band of columns of all rows is fetched before the next
    one, so that what is asked for again is still in the cache.
    """
    device, (count, width) = x.device, out.shape
    if out.numel() == 0:
        return
    if path_of(_fetch, device) == "eager":
        source = source[:count]
        inside = (source >= 0) & (source < x.shape[0])
        out.copy_(x.index_select(0, source * inside) if x.shape[0] else torch.zeros_like(out))
        out.masked_fill_(~inside[:, None], missing)
        return
    config, launch = _fetching(arch_of(device), width, layout_of(x), missing != missing, reused, candidate)
    programs = cdiv(count, config.rows) * cdiv(width, config.columns)
    launch(device, programs, x, source, out, count, width, x.shape[0], *strides(x, out))


@cache
def _fetching(
    arch: str, width: int, layout: Layout, missing_is_nan: bool, reused: bool, candidate: int | None
) -> tuple[TileConfig, Launch]:
    config = pick(row_candidates(arch, width, layout, reused), candidate)
    sizes = {"R": config.rows, "C": config.columns, "num_warps": config.warps}
    return config, Launch(_fetch, MISSING_IS_NAN=missing_is_nan, BANDS=reused, **sizes)


def sum_groups(x: Tensor, offs: Tensor, out: Tensor, candidate: int | None) -> None:
    """out[g] = sum of the rows of group g, [offs[g - 1], offs[g]) clamped to the rows of x, in fp32; an empty one is 0.

    One launch where the columns alone make enough programs. Else two: parts of groups, none of which reaches over the
    end of its group, then the parts of a group; so no program has more to do than a part. No atomics, no host read.
    x (rows, width) any strides; offs (G,) int32 or int64, contiguous; out (G, width) with contiguous rows.
    """
    groups, width = out.shape
    if out.numel() == 0:
        return
    rows = x.shape[0]
    if path_of(_sum_groups, x.device) == "eager":
        number = torch.arange(rows, device=x.device)
        group = torch.searchsorted(offs.long().clamp(0, rows), number, right=True)
        kept = group < groups
        sums = torch.zeros(out.shape, dtype=torch.float32, device=out.device)
        out.copy_(sums.index_add_(0, group[kept], x[kept].float()))
        return
    config, parts, launch = _summing(arch_of(x.device), width, power_of_two(groups, 16), candidate)
    values, columns = x, config.columns
    if config.part is not None:
        # A bound that needs no data: each group ends with at most one part that is not whole.
        values = x.new_empty((rows // config.part + groups, width), dtype=torch.float32)
        parts(x.device, values.shape[0] * cdiv(width, columns), x, offs, values, rows, width, groups, *strides(x))
        columns = config.part_columns
    steps = strides(values, out)
    launch(x.device, groups * cdiv(width, columns), values, offs, out, rows, width, groups, *steps)


@cache
def _summing(arch: str, width: int, groups: int, candidate: int | None) -> tuple[SumConfig, Launch, Launch]:
    """`groups`: a power of two that is not below their number. The first launch is of use where groups have parts."""
    config = pick(sum_candidates(arch, width), candidate)
    constants = {"PART": config.part, "G": groups, "num_warps": config.warps}
    sizes = {"AHEAD": config.ahead, "R": config.rows, "C": config.columns}
    parts = Launch(_sum_parts, **constants, **sizes)
    if config.part is not None:
        sizes = {"AHEAD": 1, "R": config.part_rows, "C": config.part_columns}
    return config, parts, Launch(_sum_groups, BY_HAND=arch == "cpu", **constants, **sizes)


@jit(do_not_specialize=["count", "source_rows"])
def _fetch(  # type: ignore[no-untyped-def]
    x_ptr, source_ptr, out_ptr, count, width, source_rows, x_row, x_column, out_row, out_column,
    MISSING_IS_NAN: tl.constexpr, BANDS: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    row, column, inside = tile(count, width, R, C, BANDS)
    source = tl.load(source_ptr + row, mask=row < count, other=-1).to(tl.int64)
    exists = (source >= 0) & (source < source_rows)
    value_RC = tl.load(x_ptr + source * x_row + column * x_column, mask=inside & exists, other=0.0)
    if MISSING_IS_NAN:
        value_RC = tl.where(exists, value_RC, float("nan")).to(x_ptr.dtype.element_ty)
    to_RC = out_ptr + row * out_row + column * out_column
    if BANDS:  # what is written is not read here: it makes room before a row of x does
        tl.store(to_RC, value_RC, mask=inside, cache_modifier=".cs")
    else:
        tl.store(to_RC, value_RC, mask=inside)


@jit()
def _sum(  # type: ignore[no-untyped-def]
    x_ptr, start, end, column_C, width, x_row, x_column, AHEAD: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """The sum (C,) of rows [start, end): each thread adds its own rows as they come, over R once at the end.

    All but one of AHEAD tiles are on their way to shared memory while one is added, so that few registers are enough
    and many programs fit.
    """
    sum_RC = tl.zeros((R, C), tl.float32)
    for first in tl.range(start, end, R, num_stages=AHEAD):
        row_R = first + tl.arange(0, R)
        inside_RC = (row_R < end)[:, None] & (column_C < width)[None, :]
        x_RC = tl.load(x_ptr + row_R[:, None] * x_row + column_C[None, :] * x_column, mask=inside_RC, other=0.0)
        sum_RC += x_RC.to(tl.float32)
    return tl.sum(sum_RC, 0)


@jit()
def _ends(offs_ptr, rows, groups, PART: tl.constexpr, G: tl.constexpr):  # type: ignore[no-untyped-def]
    """Of each group: its number, first row, end, and the running end of its parts; all (G,)."""
    group_G = tl.arange(0, G)
    start_G = tl.load(offs_ptr + group_G - 1, mask=(group_G > 0) & (group_G < groups), other=0)
    end_G = tl.load(offs_ptr + group_G, mask=group_G < groups, other=0)
    start_G = tl.minimum(tl.maximum(start_G, 0), rows)
    end_G = tl.where(group_G < groups, tl.minimum(tl.maximum(end_G, start_G), rows), start_G)
    return group_G, start_G, end_G, tl.cumsum((end_G - start_G + PART - 1) // PART, 0)


@jit(do_not_specialize=["rows", "groups"])
def _sum_parts(  # type: ignore[no-untyped-def]
    x_ptr, offs_ptr, partial_ptr, rows, width, groups, x_row, x_column,
    PART: tl.constexpr, G: tl.constexpr, AHEAD: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """One part of a group; programs past the last part have nothing to do."""
    blocks = tl.cdiv(width, C)
    number = (tl.program_id(0) // blocks).to(tl.int64)
    group_G, start_G, end_G, parts_G = _ends(offs_ptr, rows, groups, PART, G)
    group = tl.sum((parts_G <= number).to(tl.int32), 0)  # so many groups have all their parts before this one
    if group < groups:
        before = tl.max(tl.where(group_G < group, parts_G, 0), 0)
        start = tl.max(tl.where(group_G == group, start_G, 0), 0) + (number - before) * PART
        end = tl.minimum(tl.max(tl.where(group_G == group, end_G, 0), 0), start + PART)
        column_C = (tl.program_id(0) % blocks).to(tl.int64) * C + tl.arange(0, C)
        sum_C = _sum(x_ptr, start, end, column_C, width, x_row, x_column, AHEAD, R, C)
        tl.store(partial_ptr + number * width + column_C, sum_C, mask=column_C < width)


@jit(do_not_specialize=["rows", "groups"])
def _sum_groups(  # type: ignore[no-untyped-def]
    values_ptr, offs_ptr, out_ptr, rows, width, groups, values_row, values_column, out_row, out_column,
    BY_HAND: tl.constexpr, PART: tl.constexpr, G: tl.constexpr,
    AHEAD: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """What the rows of a group sum up to, or the parts of it."""
    blocks = tl.cdiv(width, C)
    group = (tl.program_id(0) // blocks).to(tl.int64)
    if PART is None:
        start = tl.load(offs_ptr + group - 1, mask=group > 0, other=0).to(tl.int64)
        start = tl.minimum(tl.maximum(start, 0), rows)
        end = tl.minimum(tl.maximum(tl.load(offs_ptr + group), start), rows)
    else:
        group_G, _, _, parts_G = _ends(offs_ptr, rows, groups, PART, G)
        start = tl.max(tl.where(group_G < group, parts_G, 0), 0).to(tl.int64)
        end = tl.max(tl.where(group_G <= group, parts_G, 0), 0)
    column_C = (tl.program_id(0) % blocks).to(tl.int64) * C + tl.arange(0, C)
    sum_C = _sum(values_ptr, start, end, column_C, width, values_row, values_column, AHEAD, R, C)
    to_C = out_ptr + group * out_row + column_C * out_column
    tl.store(to_C, rounded(sum_C, out_ptr.dtype.element_ty, BY_HAND), mask=column_C < width)
