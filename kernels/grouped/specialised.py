"""The gradient of the weights, (K, R) x (R, N) -> (E, K, N), for Hopper, in Gluon: one warp loads, eight multiply.

Formula: `reference.py`; order of tiles and ragged groups: `groups.py`. There the warps that multiply also ask for the
next loads and write, and a tile of a thousand rows is no more than sixteen steps: what lies between two tiles counts.
Here a warp of its own fills a ring of steps in shared memory, ahead of the others and across tiles: `full` tells that a
slot has arrived, `empty` that both warp groups have multiplied it. Each warp group owns half of a tile's rows and waits
for the ring alone, never for the other: while one writes its half, by the bulk copy engine, the other one multiplies.

Shape suffixes: H rows (of one warp group) and W columns of the output's tile, D rows of a group taken at a time, U rows
that one instruction takes.
"""

from __future__ import annotations

from functools import cache

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

__all__ = ["Descriptor", "layout_16_bit", "multiply_groups"]

# As Triton calls them up to 3.6, and later.
wait_for_all = getattr(gl, "thread_barrier", None) or gl.barrier
load_tile = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
store_tile = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
WORKER_WARPS = gl.constexpr([4, 1])  # of the second half and of the loads
WORKER_REGISTERS = gl.constexpr([240, 24])  # a thread; the first half has what that leaves, 240
UNIT = gl.constexpr(16)


@cache
def layout_16_bit(rank: int) -> gl.NVMMASharedLayout:
    """How 16-bit operands, in tiles of 64 columns or more, lie in shared memory: as the matrix units read them, either
    way round. Results lie there the same way."""
    return gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=rank)


# ---- what all such kernels share -----------------------------------------------------------------------------


@gluon.jit
def rings(  # type: ignore[no-untyped-def]
    a_descriptor, b_descriptor, out_descriptor, A_TILES: gl.constexpr, STAGES: gl.constexpr, BUFFERS: gl.constexpr
):
    """Slots for a step of both operands, a's of several tiles maybe, the barriers of each slot, and buffers for what is
    written."""
    a_slots: gl.constexpr = [STAGES * A_TILES] + a_descriptor.block_shape  # noqa: RUF005 (Gluon knows no stars here)
    b_slots: gl.constexpr = [STAGES] + b_descriptor.block_shape  # noqa: RUF005
    buffers: gl.constexpr = [BUFFERS] + out_descriptor.block_shape  # noqa: RUF005
    x_ring = gl.allocate_shared_memory(a_descriptor.dtype, a_slots, a_descriptor.layout)
    y_ring = gl.allocate_shared_memory(b_descriptor.dtype, b_slots, b_descriptor.layout)
    out_ring = gl.allocate_shared_memory(out_descriptor.dtype, buffers, out_descriptor.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=2)
    fence_async_shared()
    return x_ring, y_ring, out_ring, full, empty


@gluon.jit
def following(slot, phase, STAGES: gl.constexpr):  # type: ignore[no-untyped-def]
    """The slot after this one; the phase of its barriers changes each time round."""
    slot += 1
    wrapped = slot == STAGES
    return gl.where(wrapped, 0, slot), gl.where(wrapped, phase ^ 1, phase)


@gluon.jit
def give_back(empty, slot, given):  # type: ignore[no-untyped-def]
    """Once all four warps are here their half of the slot is done."""
    wait_for_all()
    mbarrier.arrive(empty.index(slot), count=1, pred=given)


@gluon.jit
def stage(x_HW, buffer, PENDING: gl.constexpr):  # type: ignore[no-untyped-def]
    """Into shared memory, for the bulk copy engine, once no more than PENDING earlier copies are on their way."""
    tma.store_wait(PENDING)
    wait_for_all()
    buffer.reshape(x_HW.shape).store(x_HW)
    fence_async_shared()
    wait_for_all()


# ---- 16-bit operands -----------------------------------------------------------------------------------------


@gluon.jit
def _ends(offs_ptr, group, rows):  # type: ignore[no-untyped-def]
    """Of a group: its first row and its end. Ends that decrease or pass the buffer are the caller's error, and still
    touch no foreign memory."""
    start = gl.load(offs_ptr + group - 1, mask=group > 0, other=0)
    end = gl.load(offs_ptr + group)
    start = gl.minimum(gl.maximum(start, 0), rows)
    return start, gl.minimum(gl.maximum(end, start), rows)


@gluon.jit
def _load(  # type: ignore[no-untyped-def]
    a_descriptor, b_descriptor, offs_ptr, x_ring, y_ring, full, empty, groups, rows, inner, outer,
    BAND: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    D: gl.constexpr = x_ring.shape[1]
    H: gl.constexpr = x_ring.shape[2]
    W: gl.constexpr = y_ring.shape[2]
    high = gl.cdiv(inner, 2 * H)
    wide = gl.cdiv(outer, W)
    slot = 0
    phase = 1  # an empty slot need not be waited for the first time round
    for tile in range(gl.program_id(0), groups * high * wide, gl.num_programs(0)):
        group = tile // (high * wide)
        down, across = place(tile - group * (high * wide), high, wide, BAND)
        start, end = _ends(offs_ptr, group, rows)
        for first in range(start, end, D):
            mbarrier.wait(empty.index(slot), phase)
            mbarrier.expect(full.index(slot), (2 * H + W) * D * 2)
            for half in gl.static_range(2):
                load_tile(a_descriptor, [first, (down * 2 + half) * H], full.index(slot), x_ring.index(slot * 2 + half))
            load_tile(b_descriptor, [first, across * W], full.index(slot), y_ring.index(slot))
            slot, phase = following(slot, phase, STAGES)


@gluon.jit
def _clear_from(tile_UC, left):  # type: ignore[no-untyped-def]
    """Rows from `left` on of a tile in shared memory become zero."""
    U: gl.constexpr = tile_UC.shape[0]
    C: gl.constexpr = tile_UC.shape[1]
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [256 // C, C // 8], [gl.num_warps(), 1], [1, 0])
    row_U = gl.arange(0, U, layout=gl.SliceLayout(1, LAYOUT))
    values_UC = tile_UC.load(LAYOUT)
    zeros_UC = gl.zeros((U, C), values_UC.dtype, layout=LAYOUT)
    tile_UC.store(gl.where((row_U < left)[:, None], values_UC, zeros_UC))


@gluon.jit
def _multiply(  # type: ignore[no-untyped-def]
    out_descriptor, offs_ptr, x_ring, y_ring, out_ring, full, empty, groups, rows, inner, outer,
    half: gl.constexpr, BAND: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    D: gl.constexpr = x_ring.shape[1]
    H: gl.constexpr = x_ring.shape[2]
    W: gl.constexpr = y_ring.shape[2]
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, W, 16])
    high = gl.cdiv(inner, 2 * H)
    wide = gl.cdiv(outer, W)
    slot = 0
    before = 0
    phase = 0
    for tile in range(gl.program_id(0), groups * high * wide, gl.num_programs(0)):
        group = tile // (high * wide)
        down, across = place(tile - group * (high * wide), high, wide, BAND)
        start, end = _ends(offs_ptr, group, rows)
        whole = start + (end - start) // D * D
        acc_HW = gl.zeros((H, W), gl.float32, layout=MMA)
        for first in range(start, whole, D):
            mbarrier.wait(full.index(slot), phase)
            x_HD = x_ring.index(slot * 2 + half).permute((1, 0))
            acc_HW = warpgroup_mma(x_HD, y_ring.index(slot), acc_HW, use_acc=first > start, is_async=True)
            acc_HW = warpgroup_mma_wait(1, deps=(acc_HW,))
            give_back(empty, before, first > start)
            before = slot
            slot, phase = following(slot, phase, STAGES)
        acc_HW = warpgroup_mma_wait(0, deps=(acc_HW,))
        give_back(empty, before, whole > start)
        if whole < end:
            mbarrier.wait(full.index(slot), phase)
            for unit in gl.static_range(D // UNIT):
                left = end - whole - unit * UNIT
                if left > 0:
                    x_UH = x_ring.index(slot * 2 + half).slice(unit * UNIT, UNIT, dim=0)
                    y_UW = y_ring.index(slot).slice(unit * UNIT, UNIT, dim=0)
                    if left < UNIT:
                        # Rows of the next group may be NaN. Both warp groups clear those of y, whoever comes first.
                        _clear_from(x_UH, left)
                        _clear_from(y_UW, left)
                        fence_async_shared()
                        wait_for_all()
                    used = (whole > start) | (unit > 0)
                    acc_HW = warpgroup_mma(x_UH.permute((1, 0)), y_UW, acc_HW, use_acc=used, is_async=True)
                    acc_HW = warpgroup_mma_wait(0, deps=(acc_HW,))
            give_back(empty, slot, True)
            slot, phase = following(slot, phase, STAGES)
        # What lies past the ends of a matrix is not written.
        stage(acc_HW.to(out_descriptor.dtype), out_ring.index(half), 0)
        store_tile(out_descriptor, [group, (down * 2 + half) * H, across * W], out_ring.index(half))
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["groups", "rows"])
def multiply_groups(  # type: ignore[no-untyped-def]
    a_descriptor, b_descriptor, out_descriptor, offs_ptr, groups, rows, inner, outer,
    BAND: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """a (rows, inner) in tiles (D, H), b (rows, outer) in (D, W), out (groups, inner, outer) in (1, H, W).

    An empty group is written as zeros. What a step loads of the next group is left out by 16 rows, and cleared.
    """
    x_ring, y_ring, out_ring, full, empty = rings(a_descriptor, b_descriptor, out_descriptor, 2, STAGES, 2)
    gl.warp_specialize(
        [
            (_multiply, (
                out_descriptor, offs_ptr, x_ring, y_ring, out_ring, full, empty, groups, rows, inner, outer,
                0, BAND, STAGES,
            )),
            (_multiply, (
                out_descriptor, offs_ptr, x_ring, y_ring, out_ring, full, empty, groups, rows, inner, outer,
                1, BAND, STAGES,
            )),
            (_load, (
                a_descriptor, b_descriptor, offs_ptr, x_ring, y_ring, full, empty, groups, rows, inner, outer,
                BAND, STAGES,
            )),
        ],
        WORKER_WARPS,
        WORKER_REGISTERS,
    )  # fmt: skip
