"""Section 1.3: heavier, compiled differently, leaking."""

from __future__ import annotations

from tests.corpus.mutant import Append, Edit, Expect, Mutant

RECOMPUTE, LAYER = "kernels/moe/recompute.py", "kernels/moe/layer.py"

MUTANTS = [
    Mutant(
        name="one tensor more is saved",
        classes=("K34",),
        imitates="TE#3193, undone by #3273: an operand kept for backward that could be counted again",
        suite="moe",
        apply=(
            Edit(
                RECOMPUTE,
                "            y_MD = multiply(silu_mul(gate_MF, up_MF), w2",
                "            ctx.hidden = silu_mul(gate_MF, up_MF)\n            y_MD = multiply(ctx.hidden, w2",
            ),
        ),
        shown={
            "G": Expect("CHANGED", "saved_activation_bytes", cases=("layer[*]/forward",), also=("*",)),
            "C": Expect(
                "CHANGED",
                "saved_activation_bytes",
                cases=("layer[*]/forward",),
                says=("saved_tensors + bfloat16[64,48] by perfguard_kernels.silu_mul",),
                also=("peak_*_bytes",),
            ),
        },
    ),
    Mutant(
        name="a saved view pins its storage",
        classes=("K34",),
        imitates="TE#3193: what is saved is a slice of a buffer twice its size",
        suite="moe",
        apply=(
            Edit(
                RECOMPUTE,
                "            del rows_MD\n",
                "            del rows_MD\n            up_MF = torch.cat([up_MF, gate_MF])[: len(up_MF)]\n",
            ),
        ),
        shown={
            "C": Expect(
                "CHANGED",
                "saved_activation_bytes",
                cases=("layer[*]/forward",),
                says=("a view that pins 12288 bytes",),
                also=("peak_*_bytes", "operators"),
            )
        },
    ),
    Mutant(
        name="a temporary copy of the experts' outputs",
        classes=("K35",),
        imitates="pytorch#138685 (4.6 to 8.9 GB at the peak): a copy that lives beside its original",
        suite="moe",
        apply=(Edit(RECOMPUTE, "out_TD = sum_rows(y_MD,", "out_TD = sum_rows(y_MD * 1,"),),
        shown={
            "C": Expect(
                "CHANGED",
                "peak_memory_bytes",
                cases=("layer[*]/forward",),
                says=("operator_names + aten.mul",),
                also=("operators",),
            )
        },
    ),
    Mutant(
        name="a workspace for the worst case",
        classes=("K35",),
        imitates="pytorch#166643 (2.5 to 7.3 GB at the peak): room for all rows in each of the experts",
        suite="moe",
        apply=(
            Edit(
                RECOMPUTE,
                "            gate_MF = multiply(rows_MD, w1",
                "            workspace = rows_MD.new_empty(offs_E.numel(), *rows_MD.shape)\n"
                "            rows_MD = workspace[0].copy_(rows_MD)\n"
                "            gate_MF = multiply(rows_MD, w1",
            ),
        ),
        shown={
            "G": Expect(
                "CHANGED", "peak_memory_bytes", cases=("layer[*]/forward",), says=("workspace_bytes",), also=("*",)
            ),
            "C": Expect(
                "CHANGED",
                "peak_tensor_bytes",
                cases=("layer[*]/forward",),
                says=("KiB -> ",),
                also=("peak_memory_bytes", "operators", "copies", "copy_bytes"),
            ),
        },
    ),
    Mutant(
        name="a module keeps its last output",
        classes=("K36",),
        imitates="vllm#36973 (3.4 GiB after warm-up): outputs held by a cache nobody empties",
        suite="moe",
        apply=(
            Edit(
                LAYER,
                "        if self.shared is None:\n",
                "        _LAST['out'] = out_TD\n        if self.shared is None:\n",
            ),
            Append(LAYER, "_LAST = {}"),
        ),
        shown={
            "G": Expect("CHANGED", "residue_bytes", cases=("layer[*]/forward",), also=("*",)),
            "C": Expect("CHANGED", "residue_bytes", cases=("layer[*]/forward",), says=("residue_bytes: 0 B -> ",)),
        },
    ),
    Mutant(
        name="a list that grows with every call",
        classes=("K36",),
        imitates="triton#1358 (32 B a launch), FI#4916: what is noted of a call is never forgotten",
        suite="moe",
        apply=(
            Edit(
                LAYER,
                "        if self.training:\n",
                "        _SEEN.append(dispatch.counts)\n        if self.training:\n",
            ),
            Append(LAYER, "_SEEN = []"),
        ),
        shown={
            "G": Expect("CHANGED", "growth_bytes", cases=("layer[*]/forward",), also=("*",)),
            "C": Expect(
                "CHANGED",
                "growth_bytes",
                cases=("layer[*]/forward",),
                says=("growth_bytes: 0 B -> 3.125 KiB",),  # 64 bytes in each of 50 calls
                also=("residue_bytes", "peak_*_bytes"),
            ),
        },
    ),
]
