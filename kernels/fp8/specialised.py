"""The grouped matmuls of `products.py` for Hopper, in Gluon: one warp loads, eight multiply.

Formulas, arguments and order of tiles are those of `products.py`; results are its bits but for the order of summation.
What works how, and why, is told in `kernels/grouped/specialised.py`, whose helpers these kernels share: a ring of steps
that a warp of its own fills, and two warp groups, each with half of a tile's rows, that do not wait for each other.

Shape suffixes: H rows (of one warp group) and W columns of the output's tile, D depth of the contraction taken at a
time, P what one instruction takes of it.
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

from kernels.fp8.products import within
from kernels.grouped.specialised import (
    WORKER_REGISTERS,
    WORKER_WARPS,
    following,
    give_back,
    layout_16_bit,
    load_tile,
    rings,
    stage,
    store_tile,
    wait_for_all,
)
from kernels.grouped.tiles import place

__all__ = ["OUT_COLUMNS", "PIECE", "Descriptor", "layout_16_bit", "multiply_groups", "multiply_rows", "operand_layout"]

PIECE = 32  # codes that one instruction takes
_PIECE = gl.constexpr(PIECE)
OUT_COLUMNS = 64  # of a half tile, that are written at a time
# As Triton calls it up to 3.6, and later.
_memory = gl.shared_memory_descriptor
_seen_as = getattr(_memory, "_reinterpret", None) or _memory.reinterpret


@cache
def operand_layout(depth: int) -> gl.NVMMASharedLayout:
    """How a tile of codes, `depth` bytes a row, lies in shared memory: as the matrix units read it."""
    return gl.NVMMASharedLayout(swizzle_byte_width=depth, element_bitwidth=8, rank=2)


# ---- what both share -----------------------------------------------------------------------------------------


@gluon.jit
def _load(a_descriptor, b_descriptor, a_row, b_row, column, x_HD, y_WD, full):  # type: ignore[no-untyped-def]
    """A step of both operands."""
    load_tile(a_descriptor, [a_row, column], full, x_HD)
    load_tile(b_descriptor, [b_row, column], full, y_WD)


@gluon.jit
def _multiply(x_HD, y_WD, acc_HW, used):  # type: ignore[no-untyped-def]
    """acc + x @ y^T, or without acc where it is not `used`, on its way."""
    return warpgroup_mma(x_HD, y_WD.permute((1, 0)), acc_HW, use_acc=used, is_async=True)


@gluon.jit
def _scaled(acc_HW, a_inverse_H, b_inverse_W, dtype: gl.constexpr):  # type: ignore[no-untyped-def]
    """Rounded once."""
    b_inverse_W = gl.convert_layout(b_inverse_W, gl.SliceLayout(0, acc_HW.type.layout))
    return (acc_HW * a_inverse_H[:, None] * b_inverse_W[None, :]).to(dtype)


@gluon.jit
def _halves(x_HW):  # type: ignore[no-untyped-def]
    """Left and right."""
    return x_HW.reshape((x_HW.shape[0], 2, x_HW.shape[1] // 2)).permute((0, 2, 1)).split()


@gluon.jit
def _write(  # type: ignore[no-untyped-def]
    out_HW, out_descriptor, out_ring, half: gl.constexpr, out_ptr, matrix, row, row_end, column, columns,
    JAGGED: gl.constexpr,
):  # fmt: skip
    """Half a tile to (matrix, row, column) on, 64 columns at a time; of one 256 wide two may be on their way.

    Columns past the end are not written. JAGGED: nor are rows from `row_end` on, which are the next group's.
    """
    W: gl.constexpr = out_HW.shape[1]
    if JAGGED:  # noqa: SIM102 (told when it is compiled, and when it runs)
        if row + out_HW.shape[0] > row_end:
            tma.store_wait(0)  # the masked stores of such a tile are not counted
    left, right = _halves(out_HW)
    if W == 256:
        first, second = _halves(left)
        third, fourth = _halves(right)
        even, odd = out_ring.index(2 * half), out_ring.index(2 * half + 1)
        _write_part(first, out_descriptor, even, out_ptr, matrix, row, row_end, column, columns, 1, JAGGED)
        _write_part(second, out_descriptor, odd, out_ptr, matrix, row, row_end, column + 64, columns, 1, JAGGED)
        _write_part(third, out_descriptor, even, out_ptr, matrix, row, row_end, column + 128, columns, 1, JAGGED)
        _write_part(fourth, out_descriptor, odd, out_ptr, matrix, row, row_end, column + 192, columns, 1, JAGGED)
    else:
        buffer = out_ring.index(half)
        _write_part(left, out_descriptor, buffer, out_ptr, matrix, row, row_end, column, columns, 0, JAGGED)
        _write_part(right, out_descriptor, buffer, out_ptr, matrix, row, row_end, column + 64, columns, 0, JAGGED)


@gluon.jit
def _write_part(  # type: ignore[no-untyped-def]
    out_HC, out_descriptor, buffer, out_ptr, matrix, row, row_end, column, columns,
    PENDING: gl.constexpr, JAGGED: gl.constexpr,
):  # fmt: skip
    H: gl.constexpr = out_HC.shape[0]
    C: gl.constexpr = out_HC.shape[1]
    stage(out_HC, buffer, PENDING)
    if JAGGED:
        if row + H <= row_end:
            store_tile(out_descriptor, [matrix, row, column], buffer)
        else:  # the bulk copy knows of no groups
            WIDE: gl.constexpr = gl.BlockedLayout([1, 8], [256 // C, C // 8], [gl.num_warps(), 1], [1, 0])
            wide_HC = buffer.reshape((H, C)).load(WIDE)
            row_H = row + gl.arange(0, H, layout=gl.SliceLayout(1, WIDE))
            column_C = column + gl.arange(0, C, layout=gl.SliceLayout(0, WIDE))
            at_HC = out_ptr + row_H.to(gl.int64)[:, None] * columns + column_C[None, :]
            gl.store(at_HC, wide_HC, mask=(row_H < row_end)[:, None] & (column_C < columns)[None, :])
    else:
        store_tile(out_descriptor, [matrix, row, column], buffer)


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
    BAND: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    H: gl.constexpr = x_ring.shape[1]
    W: gl.constexpr = y_ring.shape[1]
    D: gl.constexpr = x_ring.shape[2]
    wide = gl.cdiv(outer, W)
    slot = 0
    phase = 1  # an empty slot need not be waited for the first time round
    tile = gl.program_id(0)
    group, start, end, first, last = _first_group(offs_ptr, tile, groups, rows, wide, H)
    while group < groups:
        down, across = place(tile - first, gl.cdiv(end - start, H), wide, BAND)
        for step in range(gl.cdiv(inner, D)):
            mbarrier.wait(empty.index(slot), phase)
            mbarrier.expect(full.index(slot), (H + W) * D)
            _load(
                a_descriptor, b_descriptor, start + down * H, group * outer + across * W, step * D,
                x_ring.index(slot), y_ring.index(slot), full.index(slot),
            )  # fmt: skip
            slot, phase = following(slot, phase, STAGES)
        tile += gl.num_programs(0)
        group, start, end, first, last = _seek(offs_ptr, tile, group, start, end, first, last, groups, rows, wide, H)


@gluon.jit
def _multiply_rows(  # type: ignore[no-untyped-def]
    out_descriptor, a_inverse_ptr, b_inverse_ptr, offs_ptr, out_ptr, x_ring, y_ring, out_ring, full, empty,
    groups, rows, inner, outer, half: gl.constexpr, BAND: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    H: gl.constexpr = x_ring.shape[1] // 2
    W: gl.constexpr = y_ring.shape[1]
    D: gl.constexpr = x_ring.shape[2]
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, W, 32])
    wide = gl.cdiv(outer, W)
    slot = 0
    before = 0
    phase = 0
    tile = gl.program_id(0)
    group, start, end, first, last = _first_group(offs_ptr, tile, groups, rows, wide, 2 * H)
    while group <= groups:
        down, across = place(tile - first, gl.cdiv(end - start, 2 * H), wide, BAND)
        row = start + (2 * down + half) * H
        is_group = group < groups  # of the rest no scale is read, and the product is zero
        a_inverse_H, b_inverse_W = _inverses(
            a_inverse_ptr, b_inverse_ptr + group.to(gl.int64) * outer, row, gl.where(is_group, end, 0),
            across * W, gl.where(is_group, outer, 0), H, W, MMA,
        )  # fmt: skip
        acc_HW = gl.zeros((H, W), gl.float32, layout=MMA)
        for step in range(gl.where(is_group, gl.cdiv(inner, D), 0)):
            mbarrier.wait(full.index(slot), phase)
            x_HD = x_ring.index(slot).slice(half * H, H, dim=0)
            acc_HW = _multiply(x_HD, y_ring.index(slot), acc_HW, step > 0)
            acc_HW = warpgroup_mma_wait(1, deps=(acc_HW,))
            give_back(empty, before, step > 0)
            before = slot
            slot, phase = following(slot, phase, STAGES)
        acc_HW = warpgroup_mma_wait(0, deps=(acc_HW,))
        give_back(empty, before, is_group)
        out_HW = _scaled(acc_HW, a_inverse_H, b_inverse_W, out_descriptor.dtype)
        _write(out_HW, out_descriptor, out_ring, half, out_ptr, 0, row, end, across * W, outer, True)
        tile += gl.num_programs(0)
        group, start, end, first, last = _seek(
            offs_ptr, tile, group, start, end, first, last, groups, rows, wide, 2 * H
        )
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["groups", "rows"])
def multiply_rows(  # type: ignore[no-untyped-def]
    a_descriptor, b_descriptor, out_descriptor, a_inverse_ptr, b_inverse_ptr, offs_ptr, out_ptr,
    groups, rows, inner, outer, BAND: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """a (rows, inner) in tiles (2 H, D), b (groups * outer, inner) in (W, D), codes; a_inverse (rows,), b_inverse
    (groups, outer) fp32; out (1, rows, outer) in (1, H, 64).

    A tile reads rows of the next group where its own ends, and columns of the next matrix; it writes neither.
    """
    BUFFERS: gl.constexpr = 4 if b_descriptor.block_shape[0] == 256 else 2
    x_ring, y_ring, out_ring, full, empty = rings(a_descriptor, b_descriptor, out_descriptor, 1, STAGES, BUFFERS)
    gl.warp_specialize(
        [
            (_multiply_rows, (
                out_descriptor, a_inverse_ptr, b_inverse_ptr, offs_ptr, out_ptr, x_ring, y_ring, out_ring, full, empty,
                groups, rows, inner, outer, 0, BAND, STAGES,
            )),
            (_multiply_rows, (
                out_descriptor, a_inverse_ptr, b_inverse_ptr, offs_ptr, out_ptr, x_ring, y_ring, out_ring, full, empty,
                groups, rows, inner, outer, 1, BAND, STAGES,
            )),
            (_load_rows, (
                a_descriptor, b_descriptor, offs_ptr, x_ring, y_ring, full, empty, groups, rows, inner, outer,
                BAND, STAGES,
            )),
        ],
        WORKER_WARPS,
        WORKER_REGISTERS,
    )  # fmt: skip


# ---- a jagged contraction: wgrad -----------------------------------------------------------------------------


@gluon.jit
def _ends(offs_ptr, group, codes):  # type: ignore[no-untyped-def]
    """Of a group: its first column and its end, which the loading warp and the others have to agree on."""
    start = gl.load(offs_ptr + group - 1, mask=group > 0, other=0)
    return within(start, gl.load(offs_ptr + group), codes)


@gluon.jit
def _pieces(x_ring, y_ring, a_piece, b_piece):  # type: ignore[no-untyped-def]
    """The same memory as pieces of what one instruction takes, D / P of them a slot."""
    STEPS: gl.constexpr = x_ring.shape[0] * x_ring.shape[2] // _PIECE
    x_pieces = _seen_as(x_ring, x_ring.dtype, [STEPS, x_ring.shape[1], _PIECE], a_piece.layout)
    return x_pieces, _seen_as(y_ring, y_ring.dtype, [STEPS, y_ring.shape[1], _PIECE], b_piece.layout)


@gluon.jit
def _load_groups(  # type: ignore[no-untyped-def]
    a_descriptor, b_descriptor, a_piece, b_piece, offs_ptr, x_ring, y_ring, full, empty, groups, codes, height, width,
    BAND: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    H: gl.constexpr = x_ring.shape[1]
    W: gl.constexpr = y_ring.shape[1]
    D: gl.constexpr = x_ring.shape[2]
    x_pieces, y_pieces = _pieces(x_ring, y_ring, a_piece, b_piece)
    high = gl.cdiv(height, H)
    wide = gl.cdiv(width, W)
    slot = 0
    phase = 1  # an empty slot need not be waited for the first time round
    for tile in range(gl.program_id(0), groups * high * wide, gl.num_programs(0)):
        group = tile // (high * wide)
        down, across = place(tile - group * (high * wide), high, wide, BAND)
        start, end = _ends(offs_ptr, group, codes)
        whole = start + (end - start) // D * D
        for first in range(start, whole, D):
            mbarrier.wait(empty.index(slot), phase)
            mbarrier.expect(full.index(slot), (H + W) * D)
            _load(
                a_descriptor, b_descriptor, down * H, across * W, first,
                x_ring.index(slot), y_ring.index(slot), full.index(slot),
            )  # fmt: skip
            slot, phase = following(slot, phase, STAGES)
        if whole < end:
            mbarrier.wait(empty.index(slot), phase)
            for piece in gl.static_range(D // _PIECE):
                first = whole + piece * _PIECE
                if first < end:
                    at = slot * (D // _PIECE) + piece
                    _load(
                        a_piece, b_piece, down * H, across * W, first,
                        x_pieces.index(at), y_pieces.index(at), full.index(slot),
                    )  # fmt: skip
                    if first + _PIECE >= end:  # what a slot waits for is told with the last: before, it cannot be full
                        mbarrier.expect(full.index(slot), (piece + 1) * (H + W) * _PIECE)
            slot, phase = following(slot, phase, STAGES)


@gluon.jit
def _clear_from(tile_RP, left):  # type: ignore[no-untyped-def]
    """Columns from `left` on of a tile in shared memory become zero."""
    R: gl.constexpr = tile_RP.shape[0]
    P: gl.constexpr = tile_RP.shape[1]
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 16], [512 // P, P // 16], [gl.num_warps(), 1], [1, 0])
    column_P = gl.arange(0, P, layout=gl.SliceLayout(0, LAYOUT))
    codes_RP = tile_RP.load(LAYOUT)
    zeros_RP = gl.zeros((R, P), codes_RP.dtype, layout=LAYOUT)
    tile_RP.store(gl.where((column_P < left)[None, :], codes_RP, zeros_RP))


@gluon.jit
def _multiply_groups(  # type: ignore[no-untyped-def]
    out_descriptor, a_piece, b_piece, a_inverse_ptr, b_inverse_ptr, offs_ptr, x_ring, y_ring, out_ring, full, empty,
    groups, codes, height, width, half: gl.constexpr, BAND: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    H: gl.constexpr = x_ring.shape[1] // 2
    W: gl.constexpr = y_ring.shape[1]
    D: gl.constexpr = x_ring.shape[2]
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, W, 32])
    x_pieces, y_pieces = _pieces(x_ring, y_ring, a_piece, b_piece)
    high = gl.cdiv(height, 2 * H)
    wide = gl.cdiv(width, W)
    slot = 0
    before = 0
    phase = 0
    for tile in range(gl.program_id(0), groups * high * wide, gl.num_programs(0)):
        group = tile // (high * wide)
        down, across = place(tile - group * (high * wide), high, wide, BAND)
        row = (2 * down + half) * H
        start, end = _ends(offs_ptr, group, codes)
        whole = start + (end - start) // D * D
        matrix = group.to(gl.int64)
        # A group of no row has whatever scale its quantiser wrote, and a product of zero.
        a_inverse_H, b_inverse_W = _inverses(
            a_inverse_ptr + matrix * height, b_inverse_ptr + matrix * width, row,
            gl.where(start < end, height, 0), across * W, gl.where(start < end, width, 0), H, W, MMA,
        )  # fmt: skip
        acc_HW = gl.zeros((H, W), gl.float32, layout=MMA)
        for first in range(start, whole, D):
            mbarrier.wait(full.index(slot), phase)
            x_HD = x_ring.index(slot).slice(half * H, H, dim=0)
            acc_HW = _multiply(x_HD, y_ring.index(slot), acc_HW, first > start)
            acc_HW = warpgroup_mma_wait(1, deps=(acc_HW,))
            give_back(empty, before, first > start)
            before = slot
            slot, phase = following(slot, phase, STAGES)
        acc_HW = warpgroup_mma_wait(0, deps=(acc_HW,))
        give_back(empty, before, whole > start)
        if whole < end:
            mbarrier.wait(full.index(slot), phase)
            for piece in gl.static_range(D // _PIECE):
                left = end - whole - piece * _PIECE
                if left > 0:
                    at = slot * (D // _PIECE) + piece
                    x_HP = x_pieces.index(at).slice(half * H, H, dim=0)
                    y_WP = y_pieces.index(at)
                    if left < _PIECE:
                        # Codes of the next group may be NaN. Both warp groups clear those of y, whoever comes first.
                        _clear_from(x_HP, left)
                        _clear_from(y_WP, left)
                        fence_async_shared()
                        wait_for_all()
                    acc_HW = _multiply(x_HP, y_WP, acc_HW, (whole > start) | (piece > 0))
                    acc_HW = warpgroup_mma_wait(0, deps=(acc_HW,))
            give_back(empty, slot, True)
            slot, phase = following(slot, phase, STAGES)
        out_HW = _scaled(acc_HW, a_inverse_H, b_inverse_W, out_descriptor.dtype)
        _write(out_HW, out_descriptor, out_ring, half, 0, group, row, height, across * W, width, False)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["groups"])
def multiply_groups(  # type: ignore[no-untyped-def]
    a_descriptor, b_descriptor, a_piece, b_piece, out_descriptor, a_inverse_ptr, b_inverse_ptr, offs_ptr,
    groups, codes, height, width, BAND: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """a (height, codes) in tiles (2 H, D) and (2 H, P), b (width, codes) in (W, D) and (W, P); a_inverse (groups,
    height), b_inverse (groups, width) fp32; out (groups, height, width) in (1, H, 64). `codes` and all ends are
    multiples of 16.

    What does not fill a step comes piece by piece; what a piece has of the next group is cleared.
    """
    BUFFERS: gl.constexpr = 4 if b_descriptor.block_shape[0] == 256 else 2
    x_ring, y_ring, out_ring, full, empty = rings(a_descriptor, b_descriptor, out_descriptor, 1, STAGES, BUFFERS)
    gl.warp_specialize(
        [
            (_multiply_groups, (
                out_descriptor, a_piece, b_piece, a_inverse_ptr, b_inverse_ptr, offs_ptr, x_ring, y_ring, out_ring,
                full, empty, groups, codes, height, width, 0, BAND, STAGES,
            )),
            (_multiply_groups, (
                out_descriptor, a_piece, b_piece, a_inverse_ptr, b_inverse_ptr, offs_ptr, x_ring, y_ring, out_ring,
                full, empty, groups, codes, height, width, 1, BAND, STAGES,
            )),
            (_load_groups, (
                a_descriptor, b_descriptor, a_piece, b_piece, offs_ptr, x_ring, y_ring, full, empty, groups, codes,
                height, width, BAND, STAGES,
            )),
        ],
        WORKER_WARPS,
        WORKER_REGISTERS,
    )  # fmt: skip
