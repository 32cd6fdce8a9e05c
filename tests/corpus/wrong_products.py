"""Wrong results of grouped matmuls, ours in bf16 and those in fp8."""

from __future__ import annotations

from benchmarks.planting import Append, Edit, Expect, Mutant, changed, wrong

GROUPS, ROWS, TILES = "kernels/grouped/groups.py", "kernels/grouped/rows.py", "kernels/grouped/tiles.py"
LAUNCH = "kernels/grouped/launch.py"
SCALED, CONFIGS = "kernels/fp8/scaled.py", "kernels/grouped/configs.py"

MUTANTS = [
    wrong(
        "K17", "no weight gradient for a group without rows",
        "pytorch#174314: the gradient of an expert without tokens is never written",
        "products", "I",
        (
            Edit(
                GROUPS,
                "        write(matrix_ptr, acc_HW,",
                "        if end > start:\n            write(matrix_ptr, acc_HW,",
            ),
        ),
        "gradient of argument 1",
        "depends on old memory: 1024 of 3072 elements change, in group 1 of 3 (0 rows)",
        cases=("groups[empty]/backward",),
    ),
    wrong(
        "K18", "rows past the last group are not written",
        "FI#3650 and PyTorch's own grouped product: the buffer's tail keeps what was there",
        "products", "I",
        (
            Edit(
                ROWS,
                "        write(out_ptr, acc_HW, row_H",
                "        if group < groups:\n            write(out_ptr, acc_HW, row_H",
            ),
        ),
        "*", "output: depends on old memory: 160 of 1184 elements change, past the last group",
        "gradient of argument 0: depends on old memory",
        cases=("groups[empty]/*",),
    ),
    wrong(
        "K23", "sums are kept in bf16",
        "pytorch#188998, FlagGems#5876: an accumulator as narrow as the operands",
        "products", "I",
        (
            Edit(
                TILES,
                '    return tl.dot(x_HD, y_DW, acc_HW, input_precision="ieee")',
                '    acc_HW = tl.dot(x_HD, y_DW, acc_HW, input_precision="ieee")\n'
                "    return rounded(acc_HW, tl.bfloat16, EMULATE).to(tl.float32)",
            ),
        ),
        "output", "RMSE", "limit",
        cases=("depth[512]/forward",),
    ),
    Mutant(
        name="row times stride in 32 bits",
        classes=("K24",),
        imitates="FLA#1080, megablocks#185, Liger#1248: offsets past 2^31 wrap",
        suite="products",
        apply=(
            Edit(TILES, "down_H = row_H.to(tl.int64)[:, None] * stride_row", "down_H = row_H[:, None] * stride_row"),
        ),
        shown={
            "I": Expect(
                "WRONG",
                "output",
                cases=("far/forward",),
                says=("row 4 of argument 0 is the first that lies past 2^31 elements",),
            ),
            "G": Expect("WRONG", "output", cases=("far/forward",)),
        },
    ),
    wrong(
        "K33", "a workspace is made ahead, for the next call alone",
        "TensorRT-LLM#5900, triton#9259: a captured graph uses memory that was given back since",
        "products", "G",
        (
            Edit(
                LAUNCH,
                "    rows, inner = a.shape\n    outer = b.shape[2]\n",
                "    rows, inner = a.shape\n    outer = b.shape[2]\n    offs = _copied(offs)\n",
            ),
            Append(
                LAUNCH,
                "_AHEAD: list[Tensor] = []\n\n\n"
                "def _copied(offs: Tensor) -> Tensor:\n"
                "    used = _AHEAD.pop() if _AHEAD and _AHEAD[0].shape == offs.shape else torch.empty_like(offs)\n"
                "    _AHEAD[:] = [torch.empty_like(offs)]\n"
                "    return used.copy_(offs)",
            ),
        ),
        "capturable", "a replayed graph writes to memory that it does not own",
        cases=("depth[*]/*", "groups[*]/*", "far/*"), also=("*",),
    ),
    wrong(
        "K21", "bytes of e4m3fn read as e4m3fnuz",
        "aiter#3807, MSLK#392: one format's bytes under the other's name",
        "scaled", "C",
        (
            Edit(
                SCALED,
                "product(a_RK[start:end], b_GKN",
                "product(a_RK[start:end].view(torch.float8_e4m3fnuz), b_GKN",
            ),
        ),
        "*", "looks scaled by 0.5 (its cosine of 1.00 hides that)", "SQNR 6.0 dB",
        cases=("product[*]/*",),
    ),
    wrong(
        "K22", "the last group takes the scales of the one before",
        "ThunderKittens#88: an index of scales off by one, and results only slightly worse",
        "scaled", "C",
        (
            Edit(
                SCALED,
                "a_inverse, b_inverse_GN[group]",
                "a_inverse, b_inverse_GN[min(group, len(offs) - 2)]",
            ),
        ),
        "*", "(the whole tensor passes)", "in group 3 of 4",
        cases=("product[*]/*",),
    ),
    wrong(
        "K22", "one operand is divided by its reciprocal scale",
        "FA#2716, aiter#2900: the reciprocal forgotten for one operand",
        "scaled", "C",
        (Edit(SCALED, "a_inverse = a_inverse_R[start:end, None]", "a_inverse = 1 / a_inverse_R[start:end, None]"),),
        "*", "RMSE",
        cases=("product[*]/*",),
    ),
    changed(
        "K31", "three stages of a large tile",
        "vllm#12789, FA#1534: a tile for another chip's shared memory",
        "limits", "X",
        (
            Edit(
                CONFIGS,
                "    Config(height=128, width=128, depth=64, warps=4, stages=2),\n"
                "    Config(height=256, width=128, depth=32, warps=8, stages=2),\n)\n_CDNA4",
                "    Config(height=256, width=128, depth=64, warps=8, stages=3),\n)\n_CDNA4",
            ),
        ),
        "gfx942.unfit", "needs 96 KB, gfx942 has 64 KB",
        cases=("product/forward",), also=("gfx942.*",),
    ),
    changed(
        "K31", "32 warps where a wave has 64 lanes",
        "ROCm/bitsandbytes#93, aiter#3257: 32 lanes written as a number",
        "limits", "X",
        (
            Edit(
                CONFIGS,
                "    Config(height=128, width=128, depth=64, warps=4, stages=2),\n"
                "    Config(height=256, width=128, depth=32, warps=8, stages=2),\n)\n_CDNA4",
                "    Config(height=128, width=128, depth=64, warps=32, stages=2),\n)\n_CDNA4",
            ),
        ),
        "gfx942.unfit", "2,048 threads, limit 1,024",
        cases=("product/forward",), also=("gfx942.*",),
    ),
]  # fmt: skip
