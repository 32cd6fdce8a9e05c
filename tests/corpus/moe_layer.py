"""Sections 1.1 and 1.3: slower or heavier, as far as counts and bytes of an MoE layer tell."""

from __future__ import annotations

from benchmarks.planting import Append, Change, Edit, Expect, Mutant

RECOMPUTE, LAYER, ROUTER = "kernels/moe/recompute.py", "kernels/moe/layer.py", "kernels/moe/router.py"
DISPATCH = "kernels/moe/dispatch.py"
FORWARD, BACKWARD, BOTH = "layer[*]/forward", "layer[*]/backward", "layer[*]/*"
KERNELS = ("launches", "kernels + ")  # what a GPU says of an operator more


def moe(
    classes: str,
    name: str,
    imitates: str,
    changes: tuple[Change, ...],
    metric: str,
    *says: str,
    case: str = FORWARD,
    also: tuple[str, ...] = (),
    gpu: tuple[str, ...] = (),
) -> Mutant:
    """`metric`, `says`, `also` on a CPU; `gpu`: the metric on a GPU and what is said there, where it is shown there."""
    shown = {"G": Expect("CHANGED", gpu[0], cases=(case,), says=gpu[1:], also=("*",))} if gpu else {}
    return Mutant(
        name, (classes,), imitates, "moe", changes,
        {**shown, "C": Expect("CHANGED", metric, cases=(case,), says=says, also=also)},
    )  # fmt: skip


MUTANTS = [
    moe(
        "K05", "the grouped product falls back to a loop",
        "FA#669, sglang#18364, pytorch#186620: a slower way is taken, and gives the right answer",
        (Edit("kernels/moe/matmul.py", '"bf16": grouped.grouped_mm', '"bf16": grouped.reference.grouped_mm'),),
        "operators", "operator_names + aten.", "aten.mm x", "- perfguard_kernels.grouped_mm_rows x3",
        case=BOTH, also=("peak_*_bytes", "saved_*_bytes", "host_reads"), gpu=KERNELS,
    ),
    moe(
        "K04", "an extra pass over the incoming gradient",
        "cudnn-frontend#256 (10x), Primus#1022 (two releases shipped at -6 %): backward only",
        (Edit(RECOMPUTE, "spread_rows(grad_TD, None", "spread_rows(grad_TD * 1, None"),),
        "operators", "operator_names + aten.mul.Tensor",
        case=BACKWARD, also=("peak_*_bytes",), gpu=KERNELS,
    ),
    Mutant(
        "a layer returns float32", ("K08",), "FBGEMM#4719 (4 %): fp32 where bf16 was asked for", "moe",
        (Edit(LAYER, "return out_TD + self.shared(", "return out_TD.float() + self.shared("),),
        # The reference says what dtype there has to be: worse than another one than before.
        {
            "C": Expect(
                "WRONG", "output", cases=(FORWARD,), says=("output: dtype is float32, the reference's is bfloat16",)
            )
        },
    ),
    moe(
        "K08", "a padded buffer is returned without a copy",
        "FBGEMM#4719: the result lies in a buffer wider than itself",
        (
            Edit(
                DISPATCH,
                "        return spread_rows(x_TD, weights_TK, inverse_TK)\n\n    @staticmethod",
                "        rows_MD = spread_rows(x_TD, weights_TK, inverse_TK)\n"
                "        return torch.nn.functional.pad(rows_MD, (0, 16))[:, : x_TD.shape[1]]\n\n    @staticmethod",
            ),
        ),
        "contract", "strides (64,1)", "strides (80,1)",
        case="spread/forward", also=("operators", "peak_*_bytes", "copies", "copy_bytes"),
    ),
    moe(
        "K10", "a number is read out of the counts",
        "Megatron-LM#7076 (142 waits a step, 104 of them for nothing): .item() in the dispatch",
        (
            Edit(
                DISPATCH,
                "    return Dispatch(*_plan(ids_TK, experts))",
                "    made = Dispatch(*_plan(ids_TK, experts))\n"
                "    assert made.counts.max().item() <= ids_TK.shape[0]\n    return made",
            ),
        ),
        "host_reads", "the host reads a tensor's data: kernels/moe/dispatch.py:", "in plan (aten._local_scalar_dense)",
        also=("operators",), gpu=("syncs", "kernels/moe/dispatch.py:"),
    ),
    moe(
        "K10", "a branch on data in the router",
        "vllm#46735: `if tensor:` waits for the device",
        (
            Edit(
                ROUTER,
                "            return Routing(weights_of(",
                '            if not scores_TE.isfinite().all():\n                raise ValueError("x: holds NaN")\n'
                "            return Routing(weights_of(",
            ),
        ),
        "host_reads", "kernels/moe/router.py:", "in forward (aten._local_scalar_dense)",
        also=("operators", "peak_*_bytes"), gpu=("syncs", "kernels/moe/router.py:"),
    ),
    moe(
        "K10", "the ends become a list",
        "Megatron-LM#7076: .tolist() of the groups' ends",
        (
            Edit(
                LAYER,
                "        if self.training:\n",
                "        self.ends = dispatch.offs.tolist()\n        if self.training:\n",
            ),
        ),
        "host_reads", "kernels/moe/layer.py:", "in route (Tensor.tolist)",
        also=("operators",), gpu=("syncs", "kernels/moe/layer.py:"),
    ),
    moe(
        "K11", "a transposed view is made contiguous",
        "sglang#25463 (4 µs in each of 61 layers): .contiguous() in front of a kernel that takes strides",
        (Edit(RECOMPUTE, "multiply(grad_gate_MF.t(), rows_MD", "multiply(grad_gate_MF.t().contiguous(), rows_MD"),),
        "copies", "aten.clone at kernels/moe/recompute.py:", "in backward",
        case=BACKWARD, also=("copy_bytes", "operators", "peak_*_bytes"), gpu=KERNELS,
    ),
    moe(
        "K11", "a cast outside of the kernel",
        "pytorch#133139, ao#1786: a fused cast becomes a launch of its own",
        (
            Edit(
                RECOMPUTE,
                "weights_TK, inverse_TK, x_TD.dtype)\n        ctx.save",
                "weights_TK, inverse_TK, torch.float32).to(x_TD.dtype)\n        ctx.save",
            ),
        ),
        "copies", "aten._to_copy at kernels/moe/recompute.py:", "in forward",
        also=("copy_bytes", "operators", "peak_*_bytes"), gpu=KERNELS,
    ),
    moe(
        "K34", "one tensor more is saved",
        "TE#3193, undone by #3273: an operand kept for backward that could be counted again",
        (
            Edit(
                RECOMPUTE,
                "            y_MD = multiply(silu_mul(gate_MF, up_MF), w2",
                "            ctx.hidden = silu_mul(gate_MF, up_MF)\n            y_MD = multiply(ctx.hidden, w2",
            ),
        ),
        "saved_activation_bytes", "saved_tensors + bfloat16[64,48] by perfguard_kernels.silu_mul",
        also=("peak_*_bytes",), gpu=("saved_activation_bytes",),
    ),
    moe(
        "K34", "a saved view pins its storage",
        "TE#3193: what is saved is a slice of a buffer twice its size",
        (
            Edit(
                RECOMPUTE,
                "            del rows_MD\n",
                "            del rows_MD\n            up_MF = torch.cat([up_MF, gate_MF])[: len(up_MF)]\n",
            ),
        ),
        "saved_activation_bytes", "a view that pins 12288 bytes",
        also=("peak_*_bytes", "operators"),
    ),
    moe(
        "K35", "a temporary copy of the experts' outputs",
        "pytorch#138685 (4.6 to 8.9 GB at the peak): a copy that lives beside its original",
        (Edit(RECOMPUTE, "out_TD = sum_rows(y_MD,", "out_TD = sum_rows(y_MD * 1,"),),
        "peak_memory_bytes", "operator_names + aten.mul",
        also=("operators",),
    ),
    moe(
        "K35", "a workspace for the worst case",
        "pytorch#166643 (2.5 to 7.3 GB at the peak): room for all rows in each of the experts",
        (
            Edit(
                RECOMPUTE,
                "            gate_MF = multiply(rows_MD, w1",
                "            workspace = rows_MD.new_empty(offs_E.numel(), *rows_MD.shape)\n"
                "            rows_MD = workspace[0].copy_(rows_MD)\n"
                "            gate_MF = multiply(rows_MD, w1",
            ),
        ),
        "peak_tensor_bytes", "KiB -> ",
        also=("peak_memory_bytes", "operators", "copies", "copy_bytes"), gpu=("peak_memory_bytes",),
    ),
    moe(
        "K36", "a module keeps its last output",
        "vllm#36973 (3.4 GiB after warm-up): outputs held by a cache nobody empties",
        (
            Edit(
                LAYER,
                "        if self.shared is None:\n",
                "        _LAST['out'] = out_TD\n        if self.shared is None:\n",
            ),
            Append(LAYER, "_LAST = {}"),
        ),
        "residue_bytes", "residue_bytes: 0 B -> ",
        gpu=("residue_bytes",),
    ),
    moe(
        "K36", "a list that grows with every call",
        "triton#1358 (32 B a launch), FI#4916: what is noted of a call is never forgotten",
        (
            Edit(
                LAYER, "        if self.training:\n",
                "        _SEEN.append(dispatch.counts)\n        if self.training:\n",
            ),
            Append(LAYER, "_SEEN = []"),
        ),
        "residue_bytes", "residue_bytes: 0 B -> 64 B",
        also=("peak_*_bytes",), gpu=("residue_bytes",),
    ),
]  # fmt: skip
