"""Quantise weights down their rows on Hopper: a whole panel waits in shared memory for its scales.

Does what `columns.py` does, with the same bits, for weights of 16-bit values that have few enough rows (`configs.py`
says which). Written in Gluon, Triton's lower language, as in Triton a kernel cannot say what stays in shared memory.
Formulas: `reference.py`.

Shape suffixes: T rows of a tile, W pairs of neighbouring columns, one 32-bit word each.

How. A *panel* is all rows of one weight by PAIRS pairs of columns. A program copies it to shared memory without a
register in between, takes the amax of each column, and encodes from there: a thread reads 16 rows of a pair of columns
and stores 16 codes of each as one vector. Memory is read once and written once, no program waits for another, and
nothing has to begin at zero.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from kernels.fp8.configs import PanelsConfig
from kernels.fp8.encode import Encoding
from kernels.fp8.transposed import Form
from kernels.fp8.words import (
    codes,
    copy_layout,
    copy_to_shared,
    encode_layout,
    max_pairs,
    scale_of,
    shared_layout,
    store_scale,
)
from kernels.jit import named


@gluon.jit(do_not_specialize=["groups", "rows"])  # type: ignore[untyped-decorator]
def quantize_panels(  # type: ignore[no-untyped-def]
    x_ptr, codes_ptr, scales_ptr, groups, rows, width, stride_g, stride_t,
    TILES: gl.constexpr, form: gl.constexpr, encoding: gl.constexpr, config: gl.constexpr,
):  # fmt: skip
    """One panel a program. x (groups, rows, width), bf16 or fp16 as int32 words, whose strides count words; its
    innermost is 1. rows and width are multiples of 16, and rows are TILES times those of the configuration at most.

    Codes (groups, width, rows) uint8 and scales (groups, width) fp32, both contiguous. `stripes` neighbouring panels of
    a weight run side by side.
    """
    FORM: gl.constexpr = named(Form, form)
    ENCODING: gl.constexpr = named(Encoding, encoding)
    CONFIG: gl.constexpr = named(PanelsConfig, config)
    T: gl.constexpr = CONFIG.rows
    PAIRS: gl.constexpr = CONFIG.width // 2
    STRIPES: gl.constexpr = CONFIG.stripes
    WARPS: gl.constexpr = gl.num_warps()
    COPY: gl.constexpr = copy_layout(PAIRS, WARPS)
    ENCODE: gl.constexpr = encode_layout(T, PAIRS, WARPS)
    shared = gl.allocate_shared_memory(gl.int32, [TILES, T, PAIRS], shared_layout(T, PAIRS))

    # Neighbouring stripes, then the weights: rows are read in long pieces, and columns of codes written so.
    stripes = gl.cdiv(width, 2 * PAIRS)
    block = gl.program_id(0) // (groups * STRIPES)
    block_stripes = gl.minimum(stripes - block * STRIPES, STRIPES)
    in_block = gl.program_id(0) - block * groups * STRIPES
    group = (in_block // block_stripes).to(gl.int64)
    pair0 = (block * STRIPES + in_block % block_stripes) * PAIRS
    # Both say to the compiler what they are a multiple of.
    pairs = (width // 2 - pair0) // 8 * 8
    row_count = rows // 16 * 16
    tiles = gl.cdiv(rows, T)

    row_T = gl.arange(0, T, gl.SliceLayout(1, COPY))
    pair_W = gl.arange(0, PAIRS, gl.SliceLayout(0, COPY))
    x_at_TW = x_ptr + group * stride_g + pair0 + row_T.to(gl.int64)[:, None] * stride_t + pair_W[None, :]
    for tile in range(tiles):
        mask_TW = (tile * T + row_T < rows)[:, None] & (pair_W < pairs)[None, :]
        copy_to_shared(shared.index(tile), x_at_TW, mask=mask_TW)  # zeros where it is masked
        x_at_TW += stride_t.to(gl.int64) * T
    async_copy.commit_group()
    async_copy.wait_group(0)

    amax_TW = gl.zeros([T, PAIRS], gl.int32, COPY)
    for tile in range(tiles):
        amax_TW = max_pairs(amax_TW, shared.index(tile).load(COPY) & 0x7FFF7FFF)
    amax_W = gl.convert_layout(gl.reduce(amax_TW, 0, max_pairs), gl.SliceLayout(0, ENCODE))
    even_W = scale_of(amax_W & 0xFFFF, FORM, ENCODING)
    odd_W = scale_of(amax_W >> 16, FORM, ENCODING)

    code_row_T = gl.arange(0, T, gl.SliceLayout(1, ENCODE))
    code_pair_W = gl.arange(0, PAIRS, gl.SliceLayout(0, ENCODE))
    in_width_W = code_pair_W < pairs
    column_W = group * width + 2 * (pair0 + code_pair_W)
    store_scale(scales_ptr + column_W, even_W, in_width_W, ENCODING)
    store_scale(scales_ptr + column_W + 1, odd_W, in_width_W, ENCODING)
    codes_at_TW = codes_ptr + (column_W * row_count)[None, :] + code_row_T[:, None]
    for tile in range(tiles):
        words_TW = shared.index(tile).load(ENCODE)
        mask_TW = (tile * T + code_row_T < row_count)[:, None] & in_width_W[None, :]
        gl.store(codes_at_TW, codes(words_TW, even_W, False, FORM, ENCODING), mask=mask_TW)
        gl.store(codes_at_TW + row_count, codes(words_TW, odd_W, True, FORM, ENCODING), mask=mask_TW)
        codes_at_TW += T
