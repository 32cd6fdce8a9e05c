"""Jagged rows times one matrix a group, (R, K) x (E, K, N) -> (R, N), for Hopper, in Gluon: as `specialised.py` has it.

Formula: `reference.py`; order of tiles: `rows.py`. `first_group`, `seek` and `write_until` serve the float8 kernel too.

Shape suffixes: H rows (of one warp group) and W columns of the output's tile, D depth of the contraction taken at a
time.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from kernels.grouped.specialised import (
    WORKER_REGISTERS,
    WORKER_WARPS,
    following,
    give_back,
    load_tile,
    rings,
    stage,
    store_tile,
)
from kernels.grouped.tiles import place


@gluon.jit
def first_group(offs_ptr, tile, groups, rows, wide, H: gl.constexpr):  # type: ignore[no-untyped-def]
    """(group, its first row, its end, its first tile, the next group's), as `seek` has them."""
    none = gl.to_tensor(0)
    return seek(offs_ptr, tile, gl.to_tensor(-1), none, none, none, none, groups, rows, wide, H)


@gluon.jit
def seek(offs_ptr, tile, group, start, end, first, last, groups, rows, wide, H: gl.constexpr):  # type: ignore[no-untyped-def]
    """On to the group in which `tile` lies: `groups` is the rest of the rows, and `groups` + 1 that there is none.

    Ends that decrease or pass the buffer are the caller's error, and still touch no foreign memory."""
    while (last <= tile) & (group <= groups):
        group += 1
        start = end
        end = gl.load(offs_ptr + group, mask=group < groups, other=rows)
        end = gl.minimum(gl.maximum(end, start), rows)
        first = last
        last += gl.cdiv(end - start, H) * wide
    return group, start, end, first, last


@gluon.jit
def write_until(out_HW, out_descriptor, out_ptr, buffer, row, row_end, column, columns):  # type: ignore[no-untyped-def]
    """Half a tile of rows, of which those from `row_end` on are the next group's: the bulk copy knows of no groups."""
    H: gl.constexpr = out_HW.shape[0]
    W: gl.constexpr = out_HW.shape[1]
    WIDE: gl.constexpr = gl.BlockedLayout([1, 8], [256 // W, W // 8], [gl.num_warps(), 1], [1, 0])
    stage(out_HW, buffer)
    if row + H <= row_end:
        store_tile(out_descriptor, [0, row, column], buffer)
    elif row < row_end:
        row_H = row + gl.arange(0, H, layout=gl.SliceLayout(1, WIDE))
        column_W = column + gl.arange(0, W, layout=gl.SliceLayout(0, WIDE))
        at_HW = out_ptr + row_H.to(gl.int64)[:, None] * columns + column_W[None, :]
        mask_HW = (row_H < row_end)[:, None] & (column_W < columns)[None, :]
        gl.store(at_HW, buffer.reshape((H, W)).load(WIDE), mask=mask_HW)


@gluon.jit
def _load(  # type: ignore[no-untyped-def]
    a_descriptor, b_descriptor, offs_ptr, x_ring, y_ring, full, empty, groups, rows, inner, outer,
    W: gl.constexpr, B_TRANSPOSED: gl.constexpr, BAND: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    H: gl.constexpr = x_ring.shape[1]
    D: gl.constexpr = x_ring.shape[2]
    wide = gl.cdiv(outer, W)
    slot = 0
    phase = 1  # an empty slot need not be waited for the first time round
    tile = gl.program_id(0)
    group, start, end, first, last = first_group(offs_ptr, tile, groups, rows, wide, H)
    while group < groups:
        down, across = place(tile - first, gl.cdiv(end - start, H), wide, BAND)
        for step in range(gl.cdiv(inner, D)):
            mbarrier.wait(empty.index(slot), phase)
            mbarrier.expect(full.index(slot), 2 * (H + W) * D)
            load_tile(a_descriptor, [start + down * H, step * D], full.index(slot), x_ring.index(slot))
            if B_TRANSPOSED:
                load_tile(b_descriptor, [group, across * W, step * D], full.index(slot), y_ring.index(slot))
            else:
                load_tile(b_descriptor, [group, step * D, across * W], full.index(slot), y_ring.index(slot))
            slot, phase = following(slot, phase, STAGES)
        tile += gl.num_programs(0)
        group, start, end, first, last = seek(offs_ptr, tile, group, start, end, first, last, groups, rows, wide, H)


@gluon.jit
def _multiply(  # type: ignore[no-untyped-def]
    out_descriptor, offs_ptr, out_ptr, x_ring, y_ring, out_ring, full, empty, groups, rows, inner, outer,
    half: gl.constexpr, W: gl.constexpr, B_TRANSPOSED: gl.constexpr, BAND: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    H: gl.constexpr = x_ring.shape[1] // 2
    D: gl.constexpr = x_ring.shape[2]
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, W, 16])
    wide = gl.cdiv(outer, W)
    slot = 0
    before = 0
    phase = 0
    tile = gl.program_id(0)
    group, start, end, first, last = first_group(offs_ptr, tile, groups, rows, wide, 2 * H)
    while group <= groups:
        down, across = place(tile - first, gl.cdiv(end - start, 2 * H), wide, BAND)
        is_group = group < groups  # the product of the rest is zero
        acc_HW = gl.zeros((H, W), gl.float32, layout=MMA)
        for step in range(gl.where(is_group, gl.cdiv(inner, D), 0)):
            mbarrier.wait(full.index(slot), phase)
            x_HD = x_ring.index(slot).slice(half * H, H, dim=0)
            if B_TRANSPOSED:
                y_DW = y_ring.index(slot).reshape((W, D)).permute((1, 0))
            else:
                y_DW = y_ring.index(slot).reshape((D, W))
            acc_HW = warpgroup_mma(x_HD, y_DW, acc_HW, use_acc=step > 0, is_async=True)
            acc_HW = warpgroup_mma_wait(1, deps=(acc_HW,))
            give_back(empty, before, step > 0)
            before = slot
            slot, phase = following(slot, phase, STAGES)
        acc_HW = warpgroup_mma_wait(0, deps=(acc_HW,))
        give_back(empty, before, is_group)
        out_HW = acc_HW.to(out_descriptor.dtype)
        row = start + (2 * down + half) * H
        write_until(out_HW, out_descriptor, out_ptr, out_ring.index(half), row, end, across * W, outer)
        tile += gl.num_programs(0)
        group, start, end, first, last = seek(offs_ptr, tile, group, start, end, first, last, groups, rows, wide, 2 * H)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["groups", "rows"])
def multiply_rows(  # type: ignore[no-untyped-def]
    a_descriptor, b_descriptor, out_descriptor, offs_ptr, out_ptr, groups, rows, inner, outer,
    W: gl.constexpr, B_TRANSPOSED: gl.constexpr, BAND: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """a (rows, inner) in tiles (2 H, D); b (groups, inner, outer) in (1, D, W), or B_TRANSPOSED (groups, outer, inner)
    in (1, W, D); out (1, rows, outer) in (1, H, W).

    A tile reads rows of the next group where its own ends; it does not write them.
    """
    x_ring, y_ring, out_ring, full, empty = rings(a_descriptor, b_descriptor, out_descriptor, STAGES)
    gl.warp_specialize(
        [
            (_multiply, (
                out_descriptor, offs_ptr, out_ptr, x_ring, y_ring, out_ring, full, empty, groups, rows, inner, outer,
                0, W, B_TRANSPOSED, BAND, STAGES,
            )),
            (_multiply, (
                out_descriptor, offs_ptr, out_ptr, x_ring, y_ring, out_ring, full, empty, groups, rows, inner, outer,
                1, W, B_TRANSPOSED, BAND, STAGES,
            )),
            (_load, (
                a_descriptor, b_descriptor, offs_ptr, x_ring, y_ring, full, empty, groups, rows, inner, outer,
                W, B_TRANSPOSED, BAND, STAGES,
            )),
        ],
        WORKER_WARPS,
        WORKER_REGISTERS,
    )  # fmt: skip
