"""Wrong results of the fp8 quantisers."""

from __future__ import annotations

from benchmarks.planting import Append, Edit, wrong

COLUMNS, ENCODE, ROWS = "kernels/fp8/columns.py", "kernels/fp8/encode.py", "kernels/fp8/rows.py"
LAUNCH, TRANSPOSED = "kernels/fp8/launch.py", "kernels/fp8/transposed.py"
# Of the columns, which take long to interpret, each mutant is judged on the case that it harms and on a plain one.

MUTANTS = [
    wrong(
        "K17", "an empty group's scales are left out",
        "MSLK#158, grouped_gemm#36: a group without tokens returns early and leaves its slot as it was",
        "columns", "I",
        (
            Edit(
                COLUMNS,
                "    if (chunk >= chunks) | (stripe >= stripes):",
                "    if (chunk >= chunks) | (stripe >= stripes) | (start == end):",
            ),
        ),
        "output 1", "output 1: depends on old memory: 32 of 96 elements change, in group 1 of 3 (0 rows)",
        cases=("quantize[empty]/forward",),
        arguments=("-k", "empty or equal"),
    ),
    wrong(
        "K18", "a workspace is cleared once, not at each call",
        "pytorch#193633: the first pass is clean, the second is not",
        "columns", "I",
        (
            Edit(
                LAUNCH,
                "    zeros = torch.zeros(2 * panels + slices, dtype=torch.int32, device=device)",
                "    size = 2 * panels + slices\n"
                "    zeros = _KEPT.setdefault(size, torch.zeros(size, dtype=torch.int32, device=device))",
            ),
            Append(LAUNCH, "_KEPT: dict[int, torch.Tensor] = {}"),
        ),
        # Where a panel is one chunk the workspace is not used.
        "output 1", "depends on old memory: 32 of 128 elements change, in group 3 of 4 (36 rows)",
        cases=("quantize[one-large]/forward",),
        arguments=("-k", "one-large or equal"),
    ),
    wrong(
        "K18 K30", "whole vectors of rows are read, the next group's too",
        "FI#3650: NaN in rows of padding reaches the tile beside it (accuracy 96 % to 1 %)",
        "columns", "I",
        (
            Edit(
                TRANSPOSED,
                "    mask_TW = ((row_T >= low) & (row_T < high))[:, None] & (pair_W < pairs)[None, :]",
                "    high = tl.cdiv(high, 16) * 16\n"
                "    mask_TW = ((row_T >= low) & (row_T < high))[:, None] & (pair_W < pairs)[None, :]",
            ),
        ),
        "output 0", "are NaN or Inf unlike the reference's", "of 3 (",
        cases=("quantize[empty]/forward", "quantize[one-large]/forward"), also=("output 1",),
        arguments=("-k", "empty or one-large or equal"),
    ),
    wrong(
        "K19", "the floor of amax is dropped",
        "gemlite#38, kernels-community#680: a block of zeros divides by zero",
        "rows", "I",
        (
            Edit(ENCODE, "tl.where(not_finite, 1.0, tl.maximum(amax, AMAX_FLOOR))", "tl.where(not_finite, 1.0, amax)"),
        ),
        "output 1", "got inf, want 4.47999986e+14; 4 are NaN or Inf unlike the reference's",
        "512 of 1024 codes differ",
        cases=("hard[*-all-zero]/forward",), also=("output 0",),
    ),
    wrong(
        "K19", "scales are rounded up, and nothing clamps",
        "transformers#42775, pytorch#160957: values above the format's largest become NaN",
        "rows", "I",
        (
            Edit(
                ENCODE,
                "scale = (scale.to(tl.int32, bitcast=True) & -8388608)",
                "scale = ((scale.to(tl.int32, bitcast=True) + 8388607) & -8388608)",
            ),
            Edit(ENCODE, "    y = tl.clamp(y, -ENCODING.max, ENCODING.max)\n", ""),
        ),
        "output 0", "are NaN or Inf unlike the reference's", "powers of two must be equal",
        cases=("hard[power-of-two-all-zero]/forward", "hard[power-of-two-above-448]/forward"),
        also=("output 1",),
    ),
    wrong(
        "K20", "halves are rounded away from zero",
        "rocm-systems#9556: round half away instead of half to even",
        "rows", "I",
        (
            Edit(
                ENCODE,
                "rounded = magnitude + ((1 << (SHIFT - 1)) - 1) + ((magnitude >> SHIFT) & 1)",
                "rounded = magnitude + (1 << (SHIFT - 1))",
            ),
        ),
        # Random data under any scale holds no exact middle, and passes.
        "output 0",
        "at the very middle between two codes, where it rounds away from zero and not to the even code",
        cases=("hard[power-of-two-*]/forward", "hard[any-scale-all-codes]/forward"),
    ),
    wrong(
        "K20", "saturates from 256",
        "sglang#40581: codes saturate from 256 on",
        "rows", "I",
        (Edit(ENCODE, "    y = tl.clamp(y, -ENCODING.max, ENCODING.max)", "    y = tl.clamp(y, -256.0, 256.0)"),),
        "output 0", "got 0x78 (256), want 0x7E (448) (448 before rounding)",
    ),
    wrong(
        "K29", "a store is masked one column too far",
        "cutlass#1543: out of bounds by one",
        "rows", "I",
        (
            Edit(
                ROWS,
                "codes_RK, mask=in_rows_R[:, None] & (k_K < width)[None, :])",
                "codes_RK, mask=in_rows_R[:, None] & (k_K <= width)[None, :])",
            ),
        ),
        # Blocks of 128 columns end where the rows of `hard` do.
        "", "out of bounds: float8_e4m3fn[7,41], new_empty at kernels/fp8/ops.py:",
        "in _rows_of, of 287 bytes: 1 byte past its end, from offset 287 on, were written",
        cases=("random[*]/forward",), also=("output 0",),
    ),
    wrong(
        "K29", "a load is masked one column too far",
        "cutlass#1543: out of bounds by one",
        "rows", "I",
        (
            Edit(
                ROWS,
                "mask=in_rows_R[:, None] & (k_K < width)[None, :], other=0.0)",
                "mask=in_rows_R[:, None] & (k_K <= width)[None, :], other=0.0)",
            ),
        ),
        "output 1", "output 1: depends on memory beside argument 0: 1 of 7 elements change",
        "to nan where that holds NaN",
        cases=("random[*]/forward",), also=("output 0",),
    ),
    wrong(
        "K45", "a tile as high as the mean group, and one of them",
        "torchao 0.18 colwise scales: 15 small groups and a large one, most of whose values are wrong",
        "columns", "I",
        (
            Edit(
                LAUNCH,
                "    plan.run(operands, Groups(",
                "    mean = max(16, power_of_two(rows // count))\n"
                "    if isinstance(plan, ChunksPlan):\n"
                "        plan = ChunksPlan(plan.columns, plan.config._replace(rows=mean, chunks=1))\n"
                "    plan.run(operands, Groups(",
            ),
            Edit(COLUMNS, "range(T, load_high, REST):  # what", "range(T, T, REST):  # what"),
            Edit(COLUMNS, "range(tl.where(own, T, 0), c_high, REST)", "range(tl.where(own, c_high, 0), c_high, REST)"),
        ),
        "output 0", "in group 3 of 4 (36 rows)",
        cases=("quantize[one-large]/forward",), also=("output 1",),
        arguments=("-k", "one-large or equal"),
    ),
    wrong(
        "K46 K29", "scales are stored by lane, not by column",
        "torchao 0.18 colwise scales (torchao#4627, #4793): wrong where the width is no multiple of the block",
        "columns", "I",
        (
            Edit(
                COLUMNS,
                "stored_scale(scale_W, ENCODING), mask=in_width_W)",
                "stored_scale(scale_W, ENCODING), mask=column_W < W)",
            ),
        ),
        "", "out of bounds: float32[48], new_empty at", "of 192 bytes: 32 bytes past its end",
        cases=("quantize[width-24]/forward",), also=("output 1",),
        arguments=("-k", "width-24 or equal"),
    ),
]  # fmt: skip
