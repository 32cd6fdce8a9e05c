"""Section 1.3: heavier, compiled differently, leaking."""

from __future__ import annotations

from tests.corpus.mutant import Edit, Expect, Mutant

MUTANTS = [
    Mutant(
        name="one tensor more is saved",
        classes=("K34",),
        imitates="TE#3193, undone by #3273: an operand kept for backward that could be counted again",
        suite="moe",
        apply=(
            Edit(
                "kernels/moe/recompute.py",
                "            y_MD = multiply(silu_mul(gate_MF, up_MF), w2",
                "            ctx.hidden = silu_mul(gate_MF, up_MF)\n            y_MD = multiply(ctx.hidden, w2",
            ),
        ),
        shown={
            "C": Expect(
                "CHANGED",
                "saved_activation_bytes",
                cases=("layer[*]/forward",),
                says=("saved_tensors + bfloat16[64,48] by perfguard_kernels.silu_mul",),
                also=("peak_*_bytes",),
            )
        },
    ),
]
