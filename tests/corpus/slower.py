"""Section 1.1: slower, as far as exact metrics of torch operators tell."""

from __future__ import annotations

from tests.corpus.mutant import Edit, Expect, Mutant

RECOMPUTE, LAYER, ROUTER = "kernels/moe/recompute.py", "kernels/moe/layer.py", "kernels/moe/router.py"
DISPATCH = "kernels/moe/dispatch.py"

MUTANTS = [
    Mutant(
        name="the grouped product falls back to a loop",
        classes=("K05",),
        imitates="FA#669, sglang#18364, pytorch#186620: a slower way is taken, and gives the right answer",
        suite="moe",
        apply=(
            Edit(
                "kernels/moe/matmul.py",
                "    return grouped.grouped_mm(a, b, offs)",
                "    return grouped.reference.grouped_mm(a, b, offs)",
            ),
        ),
        shown={
            "G": Expect("CHANGED", "launches", cases=("layer[*]/*",), says=("kernels + ",), also=("*",)),
            "C": Expect(
                "CHANGED",
                "operators",
                cases=("layer[*]/*",),
                says=("operator_names + aten.", "aten.mm x", "- perfguard_kernels.grouped_mm_rows x3"),
                also=("peak_*_bytes", "saved_*_bytes", "host_reads"),
            ),
        },
    ),
    Mutant(
        name="an extra pass over the incoming gradient",
        classes=("K04",),
        imitates="cudnn-frontend#256 (10x), Primus#1022 (two releases shipped at -6 %): backward only",
        suite="moe",
        apply=(Edit(RECOMPUTE, "spread_rows(grad_TD, None", "spread_rows(grad_TD * 1, None"),),
        shown={
            "G": Expect("CHANGED", "launches", cases=("layer[*]/backward",), says=("kernels + ",), also=("*",)),
            "C": Expect(
                "CHANGED",
                "operators",
                cases=("layer[*]/backward",),
                says=("operator_names + aten.mul.Tensor",),
                also=("peak_*_bytes",),
            ),
        },
    ),
    Mutant(
        name="a layer returns float32",
        classes=("K08",),
        imitates="FBGEMM#4719 (4 %): fp32 where bf16 was asked for",
        suite="moe",
        apply=(
            Edit(
                LAYER,
                "        return out_TD + (self.shared.loop(x_TD) if self.loop else self.shared(x_TD))",
                "        return out_TD.float() + (self.shared.loop(x_TD) if self.loop else self.shared(x_TD))",
            ),
        ),
        # The reference says what dtype there has to be: worse than another one than before.
        shown={
            "C": Expect(
                "WRONG",
                "output",
                cases=("layer[*]/forward",),
                says=("output: dtype is float32, the reference's is bfloat16",),
            )
        },
    ),
    Mutant(
        name="a padded buffer is returned without a copy",
        classes=("K08",),
        imitates="FBGEMM#4719: the result lies in a buffer wider than itself",
        suite="moe",
        apply=(
            Edit(
                DISPATCH,
                "        return spread_rows(x_TD, weights_TK, inverse_TK)\n\n    @staticmethod",
                "        rows_MD = spread_rows(x_TD, weights_TK, inverse_TK)\n"
                "        return torch.nn.functional.pad(rows_MD, (0, 16))[:, : x_TD.shape[1]]\n\n    @staticmethod",
            ),
        ),
        shown={
            "C": Expect(
                "CHANGED",
                "contract",
                cases=("spread/forward",),
                says=("strides (64,1)", "strides (80,1)"),
                also=("operators", "peak_*_bytes", "copies", "copy_bytes"),
            )
        },
    ),
    Mutant(
        name="a number is read out of the counts",
        classes=("K10",),
        imitates="Megatron-LM#7076 (142 waits a step, 104 of them for nothing): .item() in the dispatch",
        suite="moe",
        apply=(
            Edit(
                DISPATCH,
                "    return Dispatch(order_M,",
                "    assert counts_E.max().item() <= tokens\n    return Dispatch(order_M,",
            ),
        ),
        shown={
            "G": Expect(
                "CHANGED", "syncs", cases=("layer[*]/forward",), says=("kernels/moe/dispatch.py:",), also=("*",)
            ),
            "C": Expect(
                "CHANGED",
                "host_reads",
                cases=("layer[*]/forward",),
                says=("the host reads a tensor's data: kernels/moe/dispatch.py:", "in plan (aten._local_scalar_dense)"),
                also=("operators",),
            ),
        },
    ),
    Mutant(
        name="a branch on data in the router",
        classes=("K10",),
        imitates="vllm#46735: `if tensor:` waits for the device",
        suite="moe",
        apply=(
            Edit(
                ROUTER,
                "            return Routing(weights_of(",
                '            if not scores_TE.isfinite().all():\n                raise ValueError("x: holds NaN")\n'
                "            return Routing(weights_of(",
            ),
        ),
        shown={
            "G": Expect("CHANGED", "syncs", cases=("layer[*]/forward",), says=("kernels/moe/router.py:",), also=("*",)),
            "C": Expect(
                "CHANGED",
                "host_reads",
                cases=("layer[*]/forward",),
                says=("kernels/moe/router.py:", "in forward (aten._local_scalar_dense)"),
                also=("operators", "peak_*_bytes"),
            ),
        },
    ),
    Mutant(
        name="the ends become a list",
        classes=("K10",),
        imitates="Megatron-LM#7076: .tolist() of the groups' ends",
        suite="moe",
        apply=(
            Edit(
                LAYER,
                "        if self.training:\n",
                "        self.ends = dispatch.offs.tolist()\n        if self.training:\n",
            ),
        ),
        shown={
            "G": Expect("CHANGED", "syncs", cases=("layer[*]/forward",), says=("kernels/moe/layer.py:",), also=("*",)),
            "C": Expect(
                "CHANGED",
                "host_reads",
                cases=("layer[*]/forward",),
                says=("kernels/moe/layer.py:", "in forward (Tensor.tolist)"),
                also=("operators",),
            ),
        },
    ),
    Mutant(
        name="a transposed view is made contiguous",
        classes=("K11",),
        imitates="sglang#25463 (4 µs in each of 61 layers): .contiguous() in front of a kernel that takes strides",
        suite="moe",
        apply=(
            Edit(RECOMPUTE, "multiply(grad_gate_MF.t(), rows_MD", "multiply(grad_gate_MF.t().contiguous(), rows_MD"),
        ),
        shown={
            "G": Expect("CHANGED", "launches", cases=("layer[*]/backward",), says=("kernels + ",), also=("*",)),
            "C": Expect(
                "CHANGED",
                "copies",
                cases=("layer[*]/backward",),
                says=("aten.clone at kernels/moe/recompute.py:", "in backward"),
                also=("copy_bytes", "operators", "peak_*_bytes"),
            ),
        },
    ),
    Mutant(
        name="a cast outside of the kernel",
        classes=("K11",),
        imitates="pytorch#133139, ao#1786: a fused cast becomes a launch of its own",
        suite="moe",
        apply=(
            Edit(
                RECOMPUTE,
                "weights_TK, inverse_TK, x_TD.dtype)\n        ctx.save",
                "weights_TK, inverse_TK, torch.float32).to(x_TD.dtype)\n        ctx.save",
            ),
        ),
        shown={
            "G": Expect("CHANGED", "launches", cases=("layer[*]/forward",), says=("kernels + ",), also=("*",)),
            "C": Expect(
                "CHANGED",
                "copies",
                cases=("layer[*]/forward",),
                says=("aten._to_copy at kernels/moe/recompute.py:", "in forward"),
                also=("copy_bytes", "operators", "peak_*_bytes"),
            ),
        },
    ),
]
