"""The gradient of the weights, (K, R) x (R, N) -> (E, K, N), for Hopper, in Gluon: one warp loads, the others multiply.

Formula: `reference.py`; order of tiles: `groups.py`.

Shape suffixes: H rows and W columns of the output's tile, D rows of a group taken at a time.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as Descriptor

from kernels.grouped.tiles import place

# As Triton calls them up to 3.6, and later.
wait_for_all = getattr(gl, "thread_barrier", None) or gl.barrier
load_tile = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
store_tile = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
LOADER_WARPS = gl.constexpr(1)
LOADER_REGISTERS = gl.constexpr(24)  # a thread
UNIT = gl.constexpr(16)  # rows that one instruction of the matrix units takes


def shared_layout(rank: int = 2) -> gl.NVMMASharedLayout:
    return gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=rank)


@gluon.jit
def _next(slot, phase, STAGES: gl.constexpr):
    slot += 1
    wrapped = slot == STAGES
    return gl.where(wrapped, 0, slot), gl.where(wrapped, phase ^ 1, phase)


@gluon.jit
def _ends(offs_ptr, group, rows):
    start = gl.load(offs_ptr + group - 1, mask=group > 0, other=0)
    end = gl.load(offs_ptr + group)
    start = gl.minimum(gl.maximum(start, 0), rows)
    return start, gl.minimum(gl.maximum(end, start), rows)


@gluon.jit
def _load(
    a_descriptor, b_descriptor, offs_ptr, x_ring, y_ring, full, empty, groups, rows, inner, outer,
    HALF: gl.constexpr, W: gl.constexpr, D: gl.constexpr, BAND: gl.constexpr, STAGES: gl.constexpr,
):
    high = gl.cdiv(inner, 2 * HALF)
    wide = gl.cdiv(outer, W)
    slot = 0
    phase = 1
    for tile in range(gl.program_id(0), groups * high * wide, gl.num_programs(0)):
        group = tile // (high * wide)
        down, across = place(tile - group * (high * wide), high, wide, BAND)
        start, end = _ends(offs_ptr, group, rows)
        for first in range(start, end, D):
            mbarrier.wait(empty.index(slot), phase)
            mbarrier.expect(full.index(slot), (2 * HALF + W) * D * 2)
            for part in gl.static_range(2):
                load_tile(
                    a_descriptor, [first, (down * 2 + part) * HALF], full.index(slot),
                    x_ring.index(slot * 2 + part),
                )
            load_tile(b_descriptor, [first, across * W], full.index(slot), y_ring.index(slot))
            slot, phase = _next(slot, phase, STAGES)


@gluon.jit
def _clear_from(tile, left, COLUMNS: gl.constexpr):
    """Rows from `left` on of a tile (UNIT, COLUMNS) in shared memory become zero."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [256 // COLUMNS, COLUMNS // 8], [gl.num_warps(), 1], [1, 0])
    row = gl.arange(0, UNIT, layout=gl.SliceLayout(1, LAYOUT))
    values = tile.load(LAYOUT)
    zeros = gl.zeros((UNIT, COLUMNS), values.dtype, layout=LAYOUT)
    tile.store(gl.where((row < left)[:, None], values, zeros))


@gluon.jit
def _halves(x_HW, H: gl.constexpr, W: gl.constexpr):
    return x_HW.reshape((H, 2, W // 2)).permute((0, 2, 1)).split()


@gluon.jit
def _store(
    x_HW, out_descriptor, out_ring, first, number: gl.constexpr, group, row, column,
    H: gl.constexpr, W: gl.constexpr, PENDING: gl.constexpr,
):
    """Through shared memory, once what lay there before is read."""
    buffer = out_ring.index(first + number)
    tma.store_wait(PENDING)
    wait_for_all()
    buffer.reshape((H, W)).store(x_HW)
    fence_async_shared()
    wait_for_all()
    store_tile(out_descriptor, [group, row, column], buffer)


@gluon.jit
def _multiply(
    out_descriptor, offs_ptr, out_ptr, x_ring, y_ring, out_ring, full, empty, groups, rows, inner, outer,
    part: gl.constexpr, HALF: gl.constexpr, W: gl.constexpr, D: gl.constexpr, BAND: gl.constexpr,
    STAGES: gl.constexpr, BY_TMA: gl.constexpr, PIECES: gl.constexpr, STORES: gl.constexpr,
):
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, W, 16])
    high = gl.cdiv(inner, 2 * HALF)
    wide = gl.cdiv(outer, W)
    slot = 0
    before = 0
    phase = 0
    for tile in range(gl.program_id(0), groups * high * wide, gl.num_programs(0)):
        group = tile // (high * wide)
        down, across = place(tile - group * (high * wide), high, wide, BAND)
        start, end = _ends(offs_ptr, group, rows)
        acc_HW = gl.zeros((HALF, W), gl.float32, layout=MMA)
        whole = start + (end - start) // D * D if PIECES else end
        for first in range(start, whole, D):
            mbarrier.wait(full.index(slot), phase)
            if not PIECES:
                if end - first < D:
                    for piece in gl.static_range(D // UNIT):
                        x_UH = x_ring.index(slot * 2 + part).slice(piece * UNIT, UNIT, dim=0)
                        y_UW = y_ring.index(slot).slice(piece * UNIT, UNIT, dim=0)
                        _clear_from(x_UH, end - first - piece * UNIT, HALF)
                        _clear_from(y_UW, end - first - piece * UNIT, W)
                    fence_async_shared()
                    wait_for_all()
            x_HD = x_ring.index(slot * 2 + part).permute((1, 0))
            acc_HW = warpgroup_mma(x_HD, y_ring.index(slot), acc_HW, use_acc=first > start, is_async=True)
            acc_HW = warpgroup_mma_wait(1, deps=(acc_HW,))
            wait_for_all()
            mbarrier.arrive(empty.index(before), count=1, pred=first > start)
            before = slot
            slot, phase = _next(slot, phase, STAGES)
        acc_HW = warpgroup_mma_wait(0, deps=(acc_HW,))
        wait_for_all()
        mbarrier.arrive(empty.index(before), count=1, pred=whole > start)
        if PIECES:
            if whole < end:
                mbarrier.wait(full.index(slot), phase)
                for piece in gl.static_range(D // UNIT):
                    left = end - whole - piece * UNIT
                    if left > 0:
                        x_UH = x_ring.index(slot * 2 + part).slice(piece * UNIT, UNIT, dim=0)
                        y_UW = y_ring.index(slot).slice(piece * UNIT, UNIT, dim=0)
                        if left < UNIT:
                            _clear_from(x_UH, left, HALF)
                            _clear_from(y_UW, left, W)
                            fence_async_shared()
                            wait_for_all()
                        acc_HW = warpgroup_mma(
                            x_UH.permute((1, 0)), y_UW, acc_HW, use_acc=(whole > start) | (piece > 0), is_async=True
                        )
                        acc_HW = warpgroup_mma_wait(0, deps=(acc_HW,))
                wait_for_all()
                mbarrier.arrive(empty.index(slot), count=1)
                slot, phase = _next(slot, phase, STAGES)
        first_row = (down * 2 + part) * HALF
        out_HW = acc_HW.to(out_ptr.dtype.element_ty)
        if BY_TMA:
            if STORES == 1:
                _store(out_HW, out_descriptor, out_ring, part, 0, group, first_row, across * W, HALF, W, 0)
            elif STORES == 2:
                left_HW, right_HW = _halves(out_HW, HALF, W)
                _store(left_HW, out_descriptor, out_ring, part, 0, group, first_row, across * W, HALF, W // 2, 0)
                _store(right_HW, out_descriptor, out_ring, part, 0, group, first_row, across * W + W // 2, HALF, W // 2, 0)
            else:
                left_HW, right_HW = _halves(out_HW, HALF, W)
                first_HW, second_HW = _halves(left_HW, HALF, W // 2)
                third_HW, fourth_HW = _halves(right_HW, HALF, W // 2)
                _store(first_HW, out_descriptor, out_ring, 2 * part, 0, group, first_row, across * W, HALF, W // 4, 1)
                _store(second_HW, out_descriptor, out_ring, 2 * part, 1, group, first_row, across * W + W // 4, HALF, W // 4, 1)
                _store(third_HW, out_descriptor, out_ring, 2 * part, 0, group, first_row, across * W + W // 2, HALF, W // 4, 1)
                _store(fourth_HW, out_descriptor, out_ring, 2 * part, 1, group, first_row, across * W + 3 * W // 4, HALF, W // 4, 1)
        else:
            QUAD: gl.constexpr = gl.DistributedLinearLayout(
                reg_bases=[[0, 1], [0, 2], [0, 4], [8, 0], [0, 32], [0, 64], [0, 128]],
                lane_bases=[[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]],
                warp_bases=[[16, 0], [32, 0]],
                block_bases=[],
                shape=[64, 256],
            )
            out_HW = gl.convert_layout(out_HW, QUAD)
            row_H = first_row + gl.arange(0, HALF, layout=gl.SliceLayout(1, QUAD))
            column_W = across * W + gl.arange(0, W, layout=gl.SliceLayout(0, QUAD))
            at_HW = out_ptr + (group.to(gl.int64) * inner + row_H)[:, None] * outer + column_W[None, :]
            gl.store(at_HW, out_HW, mask=(row_H < inner)[:, None] & (column_W < outer)[None, :])
    if BY_TMA:
        tma.store_wait(0)


@gluon.jit(do_not_specialize=["groups", "rows"])
def multiply_groups(
    a_descriptor, b_descriptor, out_descriptor, offs_ptr, out_ptr, groups, rows, inner, outer,
    HALF: gl.constexpr, W: gl.constexpr, D: gl.constexpr, BAND: gl.constexpr, STAGES: gl.constexpr,
    BY_TMA: gl.constexpr, PIECES: gl.constexpr, STORES: gl.constexpr,
):
    x_ring = gl.allocate_shared_memory(a_descriptor.dtype, [STAGES * 2, D, HALF], a_descriptor.layout)
    y_ring = gl.allocate_shared_memory(b_descriptor.dtype, [STAGES, D, W], b_descriptor.layout)
    if BY_TMA:
        out_ring = gl.allocate_shared_memory(a_descriptor.dtype, [4 if STORES == 4 else 2, 1, HALF, W // STORES], out_descriptor.layout)
    else:
        out_ring = 0
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=2)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_multiply, (out_descriptor, offs_ptr, out_ptr, x_ring, y_ring, out_ring, full, empty, groups, rows, inner, outer, 0, HALF, W, D, BAND, STAGES, BY_TMA, PIECES, STORES)),
            (_multiply, (out_descriptor, offs_ptr, out_ptr, x_ring, y_ring, out_ring, full, empty, groups, rows, inner, outer, 1, HALF, W, D, BAND, STAGES, BY_TMA, PIECES, STORES)),
            (_load, (a_descriptor, b_descriptor, offs_ptr, x_ring, y_ring, full, empty, groups, rows, inner, outer, HALF, W, D, BAND, STAGES)),
        ],
        [4, LOADER_WARPS],
        [240, LOADER_REGISTERS],
    )
