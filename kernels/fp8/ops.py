"""The fp8 quantisers as PyTorch operators `perfguard_kernels::fp8_quantize_*`, and their public functions.

Each returns codes and scales; numerics are those of the function of the same name in `reference.py`. `candidate` picks
an entry of the configuration table (`configs.py`), for tests and sweeps; all entries give the same bits. Works under
`torch.compile` and graph capture: nothing here reads the device.

An operator takes its tensors, then dtype, power_of_two, candidate and inverse: with that scales come as their
reciprocals, which is what a matmul multiplies by. Those of one operand along both of its axes run the row quantiser
first and then the column quantiser, so the operand is read twice. A kernel that interleaved the two, to take the second
read from the cache, was slower on an H200: its column programs waited longer for their panels. Tokens took 1.05 to 1.3
times as long, at four shapes, and keeping weights lengthened the forward pass by half.

Shape suffixes: M tokens, K inner width, P the other width of a transposed activation, G groups, E experts,
N outer width of a weight.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kernels.arguments import require_floats, require_offs
from kernels.fp8 import reference
from kernels.fp8.arguments import ALIGNMENT, padded_rows, require_alignment, require_blocks, require_same_tokens
from kernels.fp8.formats import format_of
from kernels.hardware import default_fp8_dtype
from kernels.jit import Path, path_of, triton
from kernels.launch import Operator

if triton is not None:
    from kernels.fp8 import launch
else:  # the operators run their reference
    launch = None  # type: ignore[assignment]

Pair = tuple[Tensor, Tensor]
Results = tuple[Tensor, ...]


def path(device: torch.device | str) -> Path:
    """What a call on this device runs now (`kernels.jit`)."""
    return path_of(None if launch is None else launch.quantize_columns, device)


# ---- how an operator is made -----------------------------------------------------------------------------------------


def _operator(
    name: str,
    tensors: str,
    count: int,
    outputs: Callable[..., Results],
    fill: Callable[..., None],
    truth: Callable[..., Results],
    options: str = "bool power_of_two, int? candidate, bool inverse=False",
) -> Operator:
    """`perfguard_kernels::fp8_quantize_<name>`.

    Args:
        tensors: the names of what it takes.
        count: of its results.
        outputs: of these tensors and the fp8 dtype: new results, in memory as the kernels write them.
        fill: of these, the results and a `launch.How`: launches what writes them.
        truth: of these, dtype and power_of_two: the reference.
        options: what it takes besides, behind dtype; the first goes to the truth, by name.
    """
    taken, flag = len(tensors.split()), options.split()[1].rstrip(",")

    def run(*arguments: Any) -> Results:
        inputs, device = arguments[:taken], arguments[0].device
        if path(device) == "eager":
            dtype, flagged, _, *inverse = arguments[taken:]
            found = truth(*inputs, dtype=dtype, **{flag: flagged})
            return tuple([_stored(each, any(inverse)) for each in found])
        how = launch.how_of(device, *arguments[taken:])
        results = outputs(*inputs, how.dtype)
        fill(*inputs, results, how)
        return results

    def fake(*arguments: Any) -> Results:
        dtype = arguments[taken]
        found = default_fp8_dtype(arguments[0].device) if dtype is None else format_of(dtype).dtype
        return outputs(*arguments[:taken], found)

    inputs = ", ".join(f"Tensor {each}" for each in tensors.split())
    schema = f"({inputs}, ScalarType? dtype, {options}) -> ({', '.join(['Tensor'] * count)})"
    made = Operator(f"fp8_quantize_{name}", run, schema=schema)
    made.register_fake(fake)
    return made


def _stored(result: Tensor, inverse: bool) -> Tensor:
    """What the reference returns, as an operator returns it."""
    return result.reciprocal() if inverse and result.dtype == torch.float32 else result


# ---- results ---------------------------------------------------------------------------------------------------------


# Sizes are given one by one: a tuple of them takes the host half as long again, and a `torch.Size` twice as long.


def _rows_of(x_MK: Tensor, dtype: torch.dtype) -> Results:
    tokens, width = x_MK.shape
    return x_MK.new_empty(tokens, width, dtype=dtype), x_MK.new_empty(tokens, 1, dtype=torch.float32)


def _colwise_of(w_EKN: Tensor, dtype: torch.dtype) -> Results:
    experts, inner, outer = w_EKN.shape
    codes_ENK = w_EKN.new_empty(experts, outer, inner, dtype=dtype)
    return codes_ENK.mT, w_EKN.new_empty(experts, 1, outer, dtype=torch.float32)


def _transposed_of(w_EKN: Tensor, dtype: torch.dtype) -> Results:
    experts, inner, outer = w_EKN.shape
    codes_EKN = w_EKN.new_empty(experts, inner, outer, dtype=dtype)
    return codes_EKN.mT, w_EKN.new_empty(experts, inner, dtype=torch.float32)


def _blocks_of(x: Tensor, dtype: torch.dtype, rows: int = 1, columns: int = 128) -> Results:
    """The scales of rows lie side by side in memory, as `torch._scaled_mm` and DeepGEMM take them."""
    *experts, height, width = x.shape
    counts = -(-height // rows), -(-width // columns)
    codes = x.new_empty(*experts, height, width, dtype=dtype)
    if rows > 1:
        return codes, x.new_empty(*experts, *counts, dtype=torch.float32)
    return codes, x.new_empty(*experts, counts[1], height, dtype=torch.float32).mT


def _mx_of(x: Tensor, dtype: torch.dtype) -> Results:
    *outer, width = x.shape
    scales = x.new_empty(*outer, -(-width // 32), dtype=torch.float8_e8m0fnu)
    return x.new_empty(*outer, width, dtype=dtype), scales


def _row_groups_of(x_PM: Tensor, offs: Tensor, dtype: torch.dtype) -> Results:
    width, tokens = x_PM.shape
    scales = x_PM.new_empty(offs.shape[0] * width, dtype=torch.float32)
    return x_PM.new_empty(width, tokens, dtype=dtype), scales


def _groups_of(x_MK: Tensor, offs: Tensor, dtype: torch.dtype) -> Results:
    tokens, width = x_MK.shape
    scales = x_MK.new_empty(offs.shape[0] * width, dtype=torch.float32)
    return x_MK.new_empty(width, tokens, dtype=dtype).mT, scales


def _padded_of(x_MK: Tensor, offs: Tensor, dtype: torch.dtype) -> Results:
    (tokens, width), groups = x_MK.shape, offs.shape[0]
    codes_KP = x_MK.new_empty(width, padded_rows(tokens, groups), dtype=dtype)
    return codes_KP.mT, x_MK.new_empty(groups * width, dtype=torch.float32), offs.new_empty(groups)


def _two_groups_of(x1: Tensor, x2: Tensor, offs: Tensor, dtype: torch.dtype) -> Results:
    return *_groups_of(x1, offs, dtype), *_groups_of(x2, offs, dtype)


def _two_padded_of(x1: Tensor, x2: Tensor, offs: Tensor, dtype: torch.dtype) -> Results:
    return *_padded_of(x1, offs, dtype)[:2], *_padded_of(x2, offs, dtype)


def _both_axes_of(x_MK: Tensor, offs: Tensor, dtype: torch.dtype) -> Results:
    return *_rows_of(x_MK, dtype), *_groups_of(x_MK, offs, dtype)


def _both_axes_padded_of(x_MK: Tensor, offs: Tensor, dtype: torch.dtype) -> Results:
    return *_rows_of(x_MK, dtype), *_padded_of(x_MK, offs, dtype)


def _both_ways_of(w_EKN: Tensor, dtype: torch.dtype) -> Results:
    return *_colwise_of(w_EKN, dtype), *_transposed_of(w_EKN, dtype)


def _operands_of(a_MK: Tensor, w_EKN: Tensor, offs: Tensor, dtype: torch.dtype) -> Results:
    return *_both_axes_padded_of(a_MK, offs, dtype), *_both_ways_of(w_EKN, dtype)


# ---- launches --------------------------------------------------------------------------------------------------------


def _fill_rows(x_MK: Tensor, results: Results, how: launch.How) -> None:
    launch.launch_rows(x_MK, *results, how)


def _fill_colwise(w_EKN: Tensor, results: Results, how: launch.How) -> None:
    launch.launch_rows(w_EKN.transpose(1, 2), *results, how)


def _fill_transposed(w_EKN: Tensor, results: Results, how: launch.How, atomic: bool = True) -> None:
    launch.launch_columns([launch.operand_of(w_EKN.transpose(1, 2), *results)], None, how, atomic)


def _fill_blocks(x: Tensor, results: Results, how: launch.How, rows: int = 1, columns: int = 128) -> None:
    launch.launch_blocks(x, *results, launch.Blocks(rows, columns), how._replace(inverse=True))


def _fill_mx(x: Tensor, results: Results, how: launch.How) -> None:
    launch.launch_blocks(x, *results, launch.Blocks(1, 32, mx=True), how)


def _fill_row_groups(x_PM: Tensor, offs: Tensor, results: Results, how: launch.How) -> None:
    launch.launch_columns([launch.operand_of(x_PM.mT[None], *results)], offs, how)


def _fill_groups(x_MK: Tensor, offs: Tensor, results: Results, how: launch.How, atomic: bool = False) -> None:
    """Padded or not: then padded_offs is among the results."""
    codes, scales, *padded_offs = results
    launch.launch_columns([launch.operand_of(x_MK[None], codes, scales)], offs, how, atomic, *padded_offs)


def _fill_two_groups(x1: Tensor, x2: Tensor, offs: Tensor, results: Results, how: launch.How) -> None:
    codes1, scales1, codes2, scales2, *padded_offs = results
    operands = [launch.operand_of(x1[None], codes1, scales1), launch.operand_of(x2[None], codes2, scales2)]
    launch.launch_columns(operands, offs, how, False, *padded_offs)


def _fill_both_axes(x_MK: Tensor, offs: Tensor, results: Results, how: launch.How) -> None:
    _fill_rows(x_MK, results[:2], how.without_candidate())
    _fill_groups(x_MK, offs, results[2:], how, atomic=True)


def _fill_both_ways(w_EKN: Tensor, results: Results, how: launch.How) -> None:
    _fill_colwise(w_EKN, results[:2], how.without_candidate())
    _fill_transposed(w_EKN, results[2:], how)


# ---- the operators ---------------------------------------------------------------------------------------------------

rowwise = _operator("rowwise", "x", 2, _rows_of, _fill_rows, reference.quantize_rowwise)
colwise_3d = _operator("colwise_3d", "w", 2, _colwise_of, _fill_colwise, reference.quantize_colwise_3d)
_1x128 = _operator(
    "1x128", "x", 2, _blocks_of, _fill_blocks, reference.quantize_1x128, "bool power_of_two, int? candidate"
)
_128x128 = _operator(
    "128x128", "w", 2, partial(_blocks_of, rows=128), partial(_fill_blocks, rows=128), reference.quantize_128x128,
    "bool power_of_two, int? candidate",
)  # fmt: skip
_mx = _operator("mx", "x", 2, _mx_of, _fill_mx, reference.quantize_mx, "bool round_up, int? candidate")
_rowwise_per_group = _operator(
    "rowwise_per_group", "x offs", 2, _row_groups_of, _fill_row_groups, reference.quantize_rowwise_per_group
)
_colwise_per_group = _operator(
    "colwise_per_group", "x offs", 2, _groups_of, _fill_groups, reference.quantize_colwise_per_group
)
colwise_per_group_padded = _operator(
    "colwise_per_group_padded", "x offs", 3, _padded_of, _fill_groups,
    partial(reference.quantize_colwise_per_group, alignment=ALIGNMENT),
)  # fmt: skip
_colwise_per_group_dual = _operator(
    "colwise_per_group_dual", "x1 x2 offs", 4, _two_groups_of, _fill_two_groups,
    reference.quantize_colwise_per_group_dual,
)  # fmt: skip
_colwise_per_group_dual_padded = _operator(
    "colwise_per_group_dual_padded", "x1 x2 offs", 5, _two_padded_of, _fill_two_groups,
    partial(reference.quantize_colwise_per_group_dual, alignment=ALIGNMENT),
)  # fmt: skip
transpose_3d_atomic = _operator(
    "transpose_3d_atomic", "w", 2, _transposed_of, _fill_transposed, reference.quantize_transpose_3d_atomic
)
_transpose_3d_reduction = _operator(
    "transpose_3d_reduction", "w", 2, _transposed_of, partial(_fill_transposed, atomic=False),
    reference.quantize_transpose_3d_reduction,
)  # fmt: skip
_rowwise_colwise_per_group = _operator(
    "rowwise_colwise_per_group", "x offs", 4, _both_axes_of, _fill_both_axes,
    reference.quantize_rowwise_colwise_per_group,
)  # fmt: skip
rowwise_colwise_per_group_padded = _operator(
    "rowwise_colwise_per_group_padded", "x offs", 5, _both_axes_padded_of, _fill_both_axes,
    partial(reference.quantize_rowwise_colwise_per_group, alignment=ALIGNMENT),
)  # fmt: skip
colwise_transpose_3d = _operator(
    "colwise_transpose_3d", "w", 4, _both_ways_of, _fill_both_ways, reference.quantize_colwise_transpose_3d
)


def _matmul_operands(a: Tensor, w: Tensor, offs: Tensor, **options: Any) -> Results:
    tokens = reference.quantize_rowwise_colwise_per_group(a, offs, alignment=ALIGNMENT, **options)
    return *tokens, *reference.quantize_colwise_transpose_3d(w, **options)


def _fill_operands(a: Tensor, w: Tensor, offs: Tensor, results: Results, how: launch.How) -> None:
    _fill_both_ways(w, results[5:], how)
    _fill_both_axes(a, offs, results[:5], how)


# `rowwise_colwise_per_group_padded` of tokens, `colwise_transpose_3d` of a weight: one operator for the host to call.
matmul_operands = _operator("matmul_operands", "a w offs", 9, _operands_of, _fill_operands, _matmul_operands)


# ---- the public functions --------------------------------------------------------------------------------------------


def quantize_rowwise(
    x: Tensor, *, dtype: torch.dtype | None = None, power_of_two: bool = False, candidate: int | None = None
) -> Pair:
    """x (M, K) -> codes (M, K) fp8, strides (K, 1); scales (M, 1) fp32."""
    require_floats(x, "x", ndim=2)
    return rowwise(x, dtype, power_of_two, candidate)  # type: ignore[no-any-return]


def quantize_colwise_3d(
    w: Tensor, *, dtype: torch.dtype | None = None, power_of_two: bool = False, candidate: int | None = None
) -> Pair:
    """w (E, K, N) -> codes (E, K, N) fp8, strides (K * N, 1, K); scales (E, 1, N) fp32, reduced over K."""
    require_floats(w, "w", ndim=3)
    return colwise_3d(w, dtype, power_of_two, candidate)  # type: ignore[no-any-return]


def quantize_1x128(
    x: Tensor, *, dtype: torch.dtype | None = None, power_of_two: bool = False, candidate: int | None = None
) -> Pair:
    """x (M, K) or (E, M, K), any strides -> codes of its shape, fp8, contiguous; scales (M, ceil(K / 128)) fp32, one
    for 128 neighbours of a row, strides (1, M).

    The block scales of DeepSeek-V3's activations (arXiv 2412.19437, 3.3.2), as torchao, DeepGEMM and
    `torch._scaled_mm` take them: they are what a product multiplies by, value = code * scale, and the reciprocals of
    those of the other quantisers. A column's blocks are those of x.mT, whose results a product along the columns takes.
    """
    require_blocks(x, "x")
    return _1x128(x, dtype, power_of_two, candidate)  # type: ignore[no-any-return]


def quantize_128x128(
    w: Tensor, *, dtype: torch.dtype | None = None, power_of_two: bool = False, candidate: int | None = None
) -> Pair:
    """w (N, K) or (E, N, K), any strides -> codes of its shape, fp8, contiguous; scales (ceil(N / 128), ceil(K / 128))
    fp32, contiguous, one for each square; those of `quantize_1x128` for weights. w.mT gives both transposed."""
    require_blocks(w, "w")
    return _128x128(w, dtype, power_of_two, candidate)  # type: ignore[no-any-return]


def quantize_mx(
    x: Tensor, *, dtype: torch.dtype | None = None, round_up: bool = False, candidate: int | None = None
) -> Pair:
    """MXFP8: x (M, K) or (E, M, K), any strides -> codes of its shape, fp8, contiguous; scales (M, ceil(K / 32)) e8m0,
    contiguous, one for 32 neighbours of a row: value = code * scale.

    The scale is 2^(floor(log2(amax)) - floor(log2(MAX))), as OCP's "Microscaling Formats" 1.0 has it (section 6.3) and
    torchao calls "floor": what lies above MAX * scale, as 500 does with 448 and a scale of 1, is clamped. With
    `round_up` it is the least power of two that is not below amax / MAX, as cuBLAS has it and torchao calls "rceil":
    nothing is clamped. Columns of a matrix are the rows of x.mT. Scales are not interleaved for tensor cores.
    """
    require_blocks(x, "x")
    return _mx(x, dtype, round_up, candidate)  # type: ignore[no-any-return]


def quantize_rowwise_per_group(
    x: Tensor,
    offs: Tensor,
    *,
    dtype: torch.dtype | None = None,
    power_of_two: bool = False,
    candidate: int | None = None,
) -> Pair:
    """x (P, M), offs (G,) -> codes (P, M) fp8, strides (M, 1); scales (G * P,) fp32, index g * P + p."""
    require_floats(x, "x", ndim=2)
    require_offs(offs, x, "x")
    return _rowwise_per_group(x, offs, dtype, power_of_two, candidate)  # type: ignore[no-any-return]


def quantize_colwise_per_group(
    x: Tensor,
    offs: Tensor,
    *,
    dtype: torch.dtype | None = None,
    power_of_two: bool = False,
    alignment: int | None = None,
    candidate: int | None = None,
) -> Results:
    """x (M, K), offs (G,) -> codes (M, K) fp8, strides (1, M); scales (G * K,) fp32, index g * K + k.

    With `alignment` 16: codes (P, K), strides (1, P), P = roundup16(M + 15 G), each group at a multiple of 16;
    scales; padded_offs (G,) int32."""
    require_floats(x, "x", ndim=2)
    require_offs(offs, x, "x")
    require_alignment(alignment)
    quantize = _colwise_per_group if alignment is None else colwise_per_group_padded
    return quantize(x, offs, dtype, power_of_two, candidate)  # type: ignore[no-any-return]


def quantize_colwise_per_group_dual(
    x1: Tensor,
    x2: Tensor,
    offs: Tensor,
    *,
    dtype: torch.dtype | None = None,
    power_of_two: bool = False,
    alignment: int | None = None,
    candidate: int | None = None,
) -> Results:
    """x1 (M, K1), x2 (M, K2), offs (G,) -> codes1, scales1, codes2, scales2 as `quantize_colwise_per_group`;
    with `alignment` padded_offs besides."""
    require_floats(x1, "x1", ndim=2)
    require_floats(x2, "x2", ndim=2)
    require_same_tokens(x1, x2)
    require_offs(offs, x1, "x1")
    require_alignment(alignment)
    quantize = _colwise_per_group_dual if alignment is None else _colwise_per_group_dual_padded
    return quantize(x1, x2, offs, dtype, power_of_two, candidate)  # type: ignore[no-any-return]


def quantize_transpose_3d_atomic(
    w: Tensor, *, dtype: torch.dtype | None = None, power_of_two: bool = False, candidate: int | None = None
) -> Pair:
    """w (E, K, N) -> codes (E, N, K) fp8, strides (N * K, 1, N); scales (E, K) fp32, reduced over N.

    The amax of a column is an atomic maximum over the programs that share it; on Hopper a weight of few rows has
    one program a column (`panels.py`)."""
    require_floats(w, "w", ndim=3)
    return transpose_3d_atomic(w, dtype, power_of_two, candidate)  # type: ignore[no-any-return]


def quantize_transpose_3d_reduction(
    w: Tensor, *, dtype: torch.dtype | None = None, power_of_two: bool = False, candidate: int | None = None
) -> Pair:
    """The same result as `quantize_transpose_3d_atomic`; programs that share a column store their amax each, and all
    read all."""
    require_floats(w, "w", ndim=3)
    return _transpose_3d_reduction(w, dtype, power_of_two, candidate)  # type: ignore[no-any-return]


def quantize_rowwise_colwise_per_group(
    x: Tensor,
    offs: Tensor,
    *,
    dtype: torch.dtype | None = None,
    power_of_two: bool = False,
    alignment: int | None = None,
    candidate: int | None = None,
) -> Results:
    """x (M, K), offs (G,) -> row codes (M, K) fp8, strides (K, 1); row scales (M, 1) fp32; then codes and scales as
    `quantize_colwise_per_group` returns them, with `alignment` padded_offs besides.

    Rows past `offs[-1]` are ordinary rows to the first pair and absent to the second. `candidate` is one of the column
    quantiser's."""
    require_floats(x, "x", ndim=2)
    require_offs(offs, x, "x")
    require_alignment(alignment)
    quantize = _rowwise_colwise_per_group if alignment is None else rowwise_colwise_per_group_padded
    return quantize(x, offs, dtype, power_of_two, candidate)  # type: ignore[no-any-return]


def quantize_colwise_transpose_3d(
    w: Tensor, *, dtype: torch.dtype | None = None, power_of_two: bool = False, candidate: int | None = None
) -> Results:
    """w (E, K, N) -> codes and scales of `quantize_colwise_3d`, then those of `quantize_transpose_3d_atomic`.

    `candidate` is one of the column quantiser's."""
    require_floats(w, "w", ndim=3)
    return colwise_transpose_3d(w, dtype, power_of_two, candidate)  # type: ignore[no-any-return]
