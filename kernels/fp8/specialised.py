"""The grouped matmuls of `products.py` for Hopper, in Gluon: one warp loads, eight multiply.

Formulas, arguments and order of tiles are those of `products.py`; results are its bits but for the order of summation.
There the warps that multiply also ask for the next loads, and between two tiles nothing is on its way. Here a warp of
its own fills a ring of tiles in shared memory, ahead of the others and across tiles: `full` tells that a slot has
arrived, `empty` that all warps have multiplied it. The warps that multiply keep one step in flight while they give the
step before it back.

Shape suffixes: H rows and W columns of the output's tile, D depth of the contraction taken at a time.
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

from kernels.fp8.products import within
from kernels.grouped.tiles import place

__all__ = ["Descriptor", "multiply_groups", "multiply_rows", "shared_layout"]

# As Triton calls them up to 3.6, and later.
wait_for_all = getattr(gl, "thread_barrier", None) or gl.barrier
load_tile = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
LOADER_WARPS = gl.constexpr(1)
LOADER_REGISTERS = gl.constexpr(24)  # a thread; the others share what that leaves


def shared_layout(depth: int) -> gl.NVMMASharedLayout:
    """How a tile of codes, `depth` bytes a row, lies in shared memory: as the matrix units read it."""
    return gl.NVMMASharedLayout(swizzle_byte_width=depth, element_bitwidth=8, rank=2)


# ---- what both share -----------------------------------------------------------------------------------------


@gluon.jit
def _rings(a_descriptor, b_descriptor, H: gl.constexpr, W: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr):  # type: ignore[no-untyped-def]
    """Slots for tiles of both operands, and the two barriers of each slot."""
    x_ring = gl.allocate_shared_memory(a_descriptor.dtype, [STAGES, H, D], a_descriptor.layout)
    y_ring = gl.allocate_shared_memory(b_descriptor.dtype, [STAGES, W, D], b_descriptor.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=1)
    fence_async_shared()
    return x_ring, y_ring, full, empty


@gluon.jit
def _next(slot, phase, STAGES: gl.constexpr):  # type: ignore[no-untyped-def]
    """The slot after this one; the phase of its barriers changes each time round."""
    slot += 1
    wrapped = slot == STAGES
    return gl.where(wrapped, 0, slot), gl.where(wrapped, phase ^ 1, phase)


@gluon.jit
def _load(  # type: ignore[no-untyped-def]
    a_descriptor, b_descriptor, a_row, b_row, column, x_ring, y_ring, full, empty, slot, phase,
    H: gl.constexpr, W: gl.constexpr, D: gl.constexpr,
):  # fmt: skip
    """One step of both operands into a slot, once it is empty."""
    mbarrier.wait(empty.index(slot), phase)
    mbarrier.expect(full.index(slot), (H + W) * D)
    load_tile(a_descriptor, [a_row, column], full.index(slot), x_ring.index(slot))
    load_tile(b_descriptor, [b_row, column], full.index(slot), y_ring.index(slot))


@gluon.jit
def _give_back(empty, slot, given):  # type: ignore[no-untyped-def]
    """Once all warps are here the slot may be filled again."""
    wait_for_all()
    mbarrier.arrive(empty.index(slot), count=1, pred=given)


@gluon.jit
def _write(  # type: ignore[no-untyped-def]
    out_ptr, acc_HW, a_inverse_H, b_inverse_W, first_row, row_end, first_column, columns,
    H: gl.constexpr, W: gl.constexpr, MMA: gl.constexpr,
):  # fmt: skip
    """Scale, round once, write; rows from `row_end` on and columns past the end are others' or nobody's."""
    WIDE: gl.constexpr = gl.BlockedLayout([1, 8], [256 // W, W // 8], [gl.num_warps(), 1], [1, 0])
    b_inverse_W = gl.convert_layout(b_inverse_W, gl.SliceLayout(0, MMA))
    scaled_HW = acc_HW * a_inverse_H[:, None] * b_inverse_W[None, :]
    out_HW = gl.convert_layout(scaled_HW.to(out_ptr.dtype.element_ty), WIDE)
    row_H = first_row + gl.arange(0, H, layout=gl.SliceLayout(1, WIDE))
    column_W = first_column + gl.arange(0, W, layout=gl.SliceLayout(0, WIDE))
    at_HW = out_ptr + row_H.to(gl.int64)[:, None] * columns + column_W[None, :]
    gl.store(at_HW, out_HW, mask=(row_H < row_end)[:, None] & (column_W < columns)[None, :])


@gluon.jit
def _inverses(  # type: ignore[no-untyped-def]
    a_ptr, b_ptr, first_row, row_end, first_column, column_end, H: gl.constexpr, W: gl.constexpr, MMA: gl.constexpr
):
    """Of a tile's rows and columns, 0 from the ends on. Asked for early: they come while the tile is multiplied."""
    FLAT: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    row_H = first_row + gl.arange(0, H, layout=gl.SliceLayout(1, MMA))
    column_W = first_column + gl.arange(0, W, layout=FLAT)
    a_inverse_H = gl.load(a_ptr + row_H, mask=row_H < row_end, other=0.0)
    return a_inverse_H, gl.load(b_ptr + column_W, mask=column_W < column_end, other=0.0)


# ---- jagged rows: forward and dgrad --------------------------------------------------------------------------


@gluon.jit
def _first_group(offs_ptr, tile, groups, rows, wide, H: gl.constexpr):  # type: ignore[no-untyped-def]
    """(group, its first row, its end, its first tile, the next group's), as `_seek` has them."""
    none = gl.to_tensor(0)
    return _seek(offs_ptr, tile, gl.to_tensor(-1), none, none, none, none, groups, rows, wide, H)


@gluon.jit
def _seek(offs_ptr, tile, group, start, end, first, last, groups, rows, wide, H: gl.constexpr):  # type: ignore[no-untyped-def]
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
def _load_rows(  # type: ignore[no-untyped-def]
    a_descriptor, b_descriptor, offs_ptr, x_ring, y_ring, full, empty, groups, rows, inner, outer,
    H: gl.constexpr, W: gl.constexpr, D: gl.constexpr, BAND: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    wide = gl.cdiv(outer, W)
    slot = 0
    phase = 1  # an empty slot need not be waited for the first time round
    tile = gl.program_id(0)
    group, start, end, first, last = _first_group(offs_ptr, tile, groups, rows, wide, H)
    while group < groups:
        down, across = place(tile - first, gl.cdiv(end - start, H), wide, BAND)
        for step in range(gl.cdiv(inner, D)):
            _load(
                a_descriptor, b_descriptor, start + down * H, group * outer + across * W, step * D,
                x_ring, y_ring, full, empty, slot, phase, H, W, D,
            )  # fmt: skip
            slot, phase = _next(slot, phase, STAGES)
        tile += gl.num_programs(0)
        group, start, end, first, last = _seek(offs_ptr, tile, group, start, end, first, last, groups, rows, wide, H)


@gluon.jit
def _multiply_rows(  # type: ignore[no-untyped-def]
    a_inverse_ptr, b_inverse_ptr, offs_ptr, out_ptr, x_ring, y_ring, full, empty, groups, rows, inner, outer,
    H: gl.constexpr, W: gl.constexpr, D: gl.constexpr, BAND: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, W, 32])
    wide = gl.cdiv(outer, W)
    slot = 0
    before = 0
    phase = 0
    tile = gl.program_id(0)
    group, start, end, first, last = _first_group(offs_ptr, tile, groups, rows, wide, H)
    while group <= groups:
        down, across = place(tile - first, gl.cdiv(end - start, H), wide, BAND)
        is_group = group < groups  # of the rest no scale is read, and the product is zero
        a_inverse_H, b_inverse_W = _inverses(
            a_inverse_ptr, b_inverse_ptr + group.to(gl.int64) * outer, start + down * H, gl.where(is_group, end, 0),
            across * W, gl.where(is_group, outer, 0), H, W, MMA,
        )  # fmt: skip
        acc_HW = gl.zeros((H, W), gl.float32, layout=MMA)
        for step in range(gl.where(is_group, gl.cdiv(inner, D), 0)):
            mbarrier.wait(full.index(slot), phase)
            y_DW = y_ring.index(slot).permute((1, 0))
            acc_HW = warpgroup_mma(x_ring.index(slot), y_DW, acc_HW, use_acc=step > 0, is_async=True)
            acc_HW = warpgroup_mma_wait(1, deps=(acc_HW,))
            _give_back(empty, before, step > 0)
            before = slot
            slot, phase = _next(slot, phase, STAGES)
        acc_HW = warpgroup_mma_wait(0, deps=(acc_HW,))
        _give_back(empty, before, is_group)
        _write(out_ptr, acc_HW, a_inverse_H, b_inverse_W, start + down * H, end, across * W, outer, H, W, MMA)
        tile += gl.num_programs(0)
        group, start, end, first, last = _seek(offs_ptr, tile, group, start, end, first, last, groups, rows, wide, H)


@gluon.jit(do_not_specialize=["groups", "rows"])
def multiply_rows(  # type: ignore[no-untyped-def]
    a_descriptor, b_descriptor, a_inverse_ptr, b_inverse_ptr, offs_ptr, out_ptr, groups, rows, inner, outer,
    H: gl.constexpr, W: gl.constexpr, D: gl.constexpr, BAND: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """a (rows, inner), b (groups * outer, inner) codes; a_inverse (rows,), b_inverse (groups, outer) fp32.

    A tile reads rows of the next group where its own ends, and columns of the next matrix; it writes neither.
    """
    x_ring, y_ring, full, empty = _rings(a_descriptor, b_descriptor, H, W, D, STAGES)
    gl.warp_specialize(
        [
            (_multiply_rows, (
                a_inverse_ptr, b_inverse_ptr, offs_ptr, out_ptr, x_ring, y_ring, full, empty, groups, rows, inner,
                outer, H, W, D, BAND, STAGES,
            )),
            (_load_rows, (
                a_descriptor, b_descriptor, offs_ptr, x_ring, y_ring, full, empty, groups, rows, inner, outer,
                H, W, D, BAND, STAGES,
            )),
        ],
        [LOADER_WARPS],
        [LOADER_REGISTERS],
    )  # fmt: skip


# ---- a jagged contraction: wgrad -----------------------------------------------------------------------------


@gluon.jit
def _ends(offs_ptr, group, codes):  # type: ignore[no-untyped-def]
    """Of a group: its first column and its end, which the loading warp and the others have to agree on."""
    start = gl.load(offs_ptr + group - 1, mask=group > 0, other=0)
    return within(start, gl.load(offs_ptr + group), codes)


@gluon.jit
def _clear_from(tile, left, ROWS: gl.constexpr, D: gl.constexpr):  # type: ignore[no-untyped-def]
    """Columns from `left` on of a tile (ROWS, D) in shared memory become zero."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 16], [512 // D, D // 16], [gl.num_warps(), 1], [1, 0])
    column_D = gl.arange(0, D, layout=gl.SliceLayout(0, LAYOUT))
    codes = tile.load(LAYOUT)
    zeros = gl.zeros((ROWS, D), codes.dtype, layout=LAYOUT)
    tile.store(gl.where((column_D < left)[None, :], codes, zeros))


@gluon.jit
def _load_groups(  # type: ignore[no-untyped-def]
    a_descriptor, b_descriptor, offs_ptr, x_ring, y_ring, full, empty, groups, codes, height, width,
    H: gl.constexpr, W: gl.constexpr, D: gl.constexpr, BAND: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    high = gl.cdiv(height, H)
    wide = gl.cdiv(width, W)
    slot = 0
    phase = 1  # an empty slot need not be waited for the first time round
    for tile in range(gl.program_id(0), groups * high * wide, gl.num_programs(0)):
        group = tile // (high * wide)
        down, across = place(tile - group * (high * wide), high, wide, BAND)
        start, end = _ends(offs_ptr, group, codes)
        for first in range(start, end, D):
            _load(
                a_descriptor, b_descriptor, down * H, across * W, first, x_ring, y_ring, full, empty, slot, phase,
                H, W, D,
            )  # fmt: skip
            slot, phase = _next(slot, phase, STAGES)


@gluon.jit
def _multiply_groups(  # type: ignore[no-untyped-def]
    a_inverse_ptr, b_inverse_ptr, offs_ptr, out_ptr, x_ring, y_ring, full, empty, groups, codes, height, width,
    H: gl.constexpr, W: gl.constexpr, D: gl.constexpr, BAND: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, W, 32])
    high = gl.cdiv(height, H)
    wide = gl.cdiv(width, W)
    slot = 0
    before = 0
    phase = 0
    for tile in range(gl.program_id(0), groups * high * wide, gl.num_programs(0)):
        group = tile // (high * wide)
        down, across = place(tile - group * (high * wide), high, wide, BAND)
        start, end = _ends(offs_ptr, group, codes)
        matrix = group.to(gl.int64)
        # A group of no row has whatever scale its quantiser wrote, and a product of zero.
        a_inverse_H, b_inverse_W = _inverses(
            a_inverse_ptr + matrix * height, b_inverse_ptr + matrix * width, down * H,
            gl.where(start < end, height, 0), across * W, gl.where(start < end, width, 0), H, W, MMA,
        )  # fmt: skip
        acc_HW = gl.zeros((H, W), gl.float32, layout=MMA)
        for first in range(start, end, D):
            mbarrier.wait(full.index(slot), phase)
            if end - first < D:  # codes of the next group may be NaN
                _clear_from(x_ring.index(slot), end - first, H, D)
                _clear_from(y_ring.index(slot), end - first, W, D)
                fence_async_shared()
                wait_for_all()
            y_DW = y_ring.index(slot).permute((1, 0))
            acc_HW = warpgroup_mma(x_ring.index(slot), y_DW, acc_HW, use_acc=first > start, is_async=True)
            acc_HW = warpgroup_mma_wait(1, deps=(acc_HW,))
            _give_back(empty, before, first > start)
            before = slot
            slot, phase = _next(slot, phase, STAGES)
        acc_HW = warpgroup_mma_wait(0, deps=(acc_HW,))
        _give_back(empty, before, start < end)
        matrix_ptr = out_ptr + matrix * height * width
        _write(matrix_ptr, acc_HW, a_inverse_H, b_inverse_W, down * H, height, across * W, width, H, W, MMA)


@gluon.jit(do_not_specialize=["groups"])
def multiply_groups(  # type: ignore[no-untyped-def]
    a_descriptor, b_descriptor, a_inverse_ptr, b_inverse_ptr, offs_ptr, out_ptr, groups, codes, height, width,
    H: gl.constexpr, W: gl.constexpr, D: gl.constexpr, BAND: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """a (height, codes), b (width, codes); a_inverse (groups, height), b_inverse (groups, width) fp32; out (groups,
    height, width). `codes` and all ends are multiples of 16. What a step loads of the next group is cleared."""
    x_ring, y_ring, full, empty = _rings(a_descriptor, b_descriptor, H, W, D, STAGES)
    gl.warp_specialize(
        [
            (_multiply_groups, (
                a_inverse_ptr, b_inverse_ptr, offs_ptr, out_ptr, x_ring, y_ring, full, empty, groups, codes, height,
                width, H, W, D, BAND, STAGES,
            )),
            (_load_groups, (
                a_descriptor, b_descriptor, offs_ptr, x_ring, y_ring, full, empty, groups, codes, height, width,
                H, W, D, BAND, STAGES,
            )),
        ],
        [LOADER_WARPS],
        [LOADER_REGISTERS],
    )  # fmt: skip
