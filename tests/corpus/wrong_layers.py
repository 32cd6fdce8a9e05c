"""Wrong results of the MoE layer: choice, gradients, freed memory, other roundings once compiled."""

from __future__ import annotations

from tests.corpus.mutant import Edit, Expect, Mutant

ROUTER, RECOMPUTE, MOVED = "kernels/moe/router.py", "kernels/moe/recompute.py", "kernels/moe/rows.py"

MUTANTS = [
    Mutant(
        name="gate logits in bf16",
        classes=("K50",),
        imitates="pith-train#16: a router that slipped into bf16",
        suite="router",
        apply=(
            Edit(
                ROUTER,
                "F.linear(x_TD.to(dtype), weight_ED.to(dtype), None if bias_E is None else bias_E.to(dtype))",
                "F.linear(x_TD, weight_ED, bias_E).to(dtype)",
            ),
        ),
        shown={
            "C": Expect(
                "WRONG",
                "output chosen experts",
                cases=("router[*]/forward",),
                says=("output chosen experts: ", " of 1024 rows ("),
                also=("output scores",),
                beside=("router[*]/backward",),  # a token that goes elsewhere has its gradient from there
            )
        },
    ),
    Mutant(
        name="the gate's gradient is divided by the tokens",
        classes=("K50",),
        imitates="pith-train#70: a balance gradient smaller by the token count",
        suite="router",
        apply=(
            Edit(
                ROUTER,
                "grad_weight = (grad_TE.t() @ x_TD.to(grad_TE.dtype)).to(weight_ED.dtype)",
                "grad_weight = (grad_TE.t() @ x_TD.to(grad_TE.dtype) / len(x_TD)).to(weight_ED.dtype)",
            ),
        ),
        shown={
            "C": Expect(
                "WRONG",
                "gradient of parameter gate.weight",
                cases=("router[*]/backward",),
                says=("gradient of parameter gate.weight: RMSE", "looks scaled by 1/1024"),
            )
        },
    ),
    Mutant(
        name="routing weights are detached",
        classes=("K32",),
        imitates="unsloth-zoo#606 (0 of 192 parameters), transformers#45621: no gradient reaches a parameter",
        suite="experts",
        arguments=("-k", "4"),  # of one expert the gate's gradient is zero anyway; that it is none then is CHANGED
        apply=(Edit(ROUTER, "Routing(weights_of(scores_TE, ids_TK", "Routing(weights_of(scores_TE.detach(), ids_TK"),),
        shown={
            "C": Expect(
                "WRONG",
                "gradient of parameter router.weight",
                cases=("experts[4]/backward",),
                says=("no gradient for parameter router.weight; the reference's RMS is",),
                also=("gradient of argument 0",),
            )
        },
    ),
    Mutant(
        name="one gradient too few",
        classes=("K32",),
        imitates="torchao#3956: a backward pass that forgets one of its weights",
        suite="experts",
        apply=(
            Edit(
                RECOMPUTE,
                "                    grad_w3 = multiply(grad_up_MF.t(), rows_MD, offs_E).to(w3_EFD.dtype)",
                "                    grad_w3 = torch.zeros_like(w3_EFD)",
            ),
        ),
        shown={
            "C": Expect(
                "WRONG",
                "gradient of parameter experts.w3",
                cases=("experts[*]/backward",),
                says=("gradient of parameter experts.w3: is zero everywhere, the oracle's RMS is",),
            )
        },
    ),
    Mutant(
        name="rows are freed that are the tokens themselves",
        classes=("K42",),
        imitates="pith-train#16: a dispatch buffer freed where it is the stage's own input",
        suite="experts",
        apply=(
            Edit(
                RECOMPUTE,
                "            rows_MD = spread_rows(x_TD, weights_TK if weight_before else None, inverse_TK, COMPUTE)\n"
                "            gate_MF",
                "            alone = len(offs_E) == 1 and not weight_before\n"
                "            rows_MD = x_TD if alone else spread_rows(x_TD, None, inverse_TK, COMPUTE)\n"
                "            gate_MF",
            ),
            Edit(RECOMPUTE, "            del rows_MD\n", "            rows_MD.untyped_storage().resize_(0)\n"),
        ),
        shown={
            "C": Expect(
                "WRONG",
                "",
                cases=("experts[1]/forward",),
                says=("argument 0: its memory was freed by the call",),
            )
        },
    ),
    Mutant(
        name="a partial sum is read before it is there",
        classes=("K25",),
        imitates="FLA#889, #945 (30 of 30 runs differ): a race that leaves another row short each time",
        suite="experts",
        apply=(
            Edit(
                MOVED,
                "    for choice, part in enumerate(_by_choice(rows, plus, inverse, total.dtype)):\n        total +=",
                "    for choice, part in enumerate(_by_choice(rows, plus, inverse, total.dtype)):\n"
                "        part[int.from_bytes(__import__('os').urandom(4)) % len(part)] = 0\n"
                "        total +=",
            ),
        ),
        shown={
            "C": Expect(
                "WRONG",
                "*",
                cases=("experts[*]/*",),
                says=("differs from run to run: ", "of 10 further runs differ; by RMSE"),
            )
        },
    ),
    Mutant(
        name="rows are summed by float atomics",
        classes=("K25",),
        imitates="torchtitan's scatter_add in combine: the order of a sum is another in each run",
        suite="experts",
        arguments=("-k", "4"),  # one row a token has no order
        apply=(
            Edit(
                MOVED,
                "    return _sum_rows(rows_MD, plus_MD, weights_TK, inverse_TK, dtype or rows_MD.dtype, candidate)",
                "    rows_MD = rows_MD if plus_MD is None else rows_MD.float() + plus_MD\n"
                "    parts = rows_MD.float()[inverse_TK.flatten()]\n"
                "    parts = parts if weights_TK is None else parts * weights_TK.reshape(-1, 1)\n"
                "    token = torch.arange(len(parts), device=parts.device) // inverse_TK.shape[1]\n"
                "    total = parts.new_zeros((len(inverse_TK), parts.shape[1]))\n"
                "    return total.index_add_(0, token, parts).to(dtype or torch.bfloat16)",
            ),
        ),
        shown={
            # Less than eager's own error, so not WRONG; but it repeated its bits before.
            "G": Expect(
                "CHANGED",
                "contract",
                cases=("experts[4]/forward",),
                says=("output differs from run to run",),
                also=("*",),
                beside=("experts[4]/backward",),  # where gradients are gathered, in the same order each time
            )
        },
    ),
    Mutant(
        name="compiled, the experts count in fp8",
        classes=("K49",),
        imitates="torchtitan#2196: other roundings once compiled (1.56 times eager's error)",
        suite="compiled",
        apply=(
            Edit(
                RECOMPUTE,
                "        multiply = matmul_of(precision).multiply\n",
                '        multiply = matmul_of("fp8" if torch.compiler.is_compiling() else precision).multiply\n',
            ),
        ),
        shown={
            "C": Expect(
                "WRONG",
                "output",
                cases=("layer[compiled]/*",),
                says=("output: RMSE", "(eager's "),
            )
        },
    ),
]
