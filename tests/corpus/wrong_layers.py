"""Wrong results of the MoE layer: choice, gradients, freed memory, other roundings once compiled."""

from __future__ import annotations

from benchmarks.planting import Edit, changed, wrong

ROUTER, RECOMPUTE, MOVED = "kernels/moe/router.py", "kernels/moe/recompute.py", "kernels/moe/rows.py"

MUTANTS = [
    wrong(
        "K50", "gate logits in bf16",
        "pith-train#16: a router that slipped into bf16",
        "router", "C",
        (
            Edit(
                ROUTER,
                "F.linear(x_TD.to(dtype), weight_ED.to(dtype), None if bias_E is None else bias_E.to(dtype))",
                "F.linear(x_TD, weight_ED, bias_E).to(dtype)",
            ),
        ),
        "output chosen experts", "output chosen experts: ", " of 1024 rows (",
        cases=("router[*]/forward",), also=("output scores",),
        beside=("router[*]/backward",),  # a token that goes elsewhere has its gradient from there
    ),
    wrong(
        "K50", "the gate's gradient is divided by the tokens",
        "pith-train#70: a balance gradient smaller by the token count",
        "router", "C",
        (
            Edit(
                ROUTER,
                "grad_weight = (grad_TE.t() @ x_TD.to(grad_TE.dtype)).to(weight_ED.dtype)",
                "grad_weight = (grad_TE.t() @ x_TD.to(grad_TE.dtype) / len(x_TD)).to(weight_ED.dtype)",
            ),
        ),
        "gradient of parameter gate.weight", "gradient of parameter gate.weight: RMSE",
        "looks scaled by 1/1024",
        cases=("router[*]/backward",),
    ),
    wrong(
        "K32", "routing weights are detached",
        "unsloth-zoo#606 (0 of 192 parameters), transformers#45621: no gradient reaches a parameter",
        "experts", "C",
        (Edit(ROUTER, "Routing(weights_of(scores_TE, ids_TK", "Routing(weights_of(scores_TE.detach(), ids_TK"),),
        "gradient of parameter router.weight",
        "no gradient for parameter router.weight; the reference's RMS is",
        cases=("experts[4]/backward",), also=("gradient of argument 0",),
        arguments=("-k", "4"),  # of one expert the gate's gradient is zero anyway; that it is none then is CHANGED
    ),
    wrong(
        "K32", "one gradient too few",
        "torchao#3956: a backward pass that forgets one of its weights",
        "experts", "C",
        (
            Edit(
                RECOMPUTE,
                "                    grad_w3 = multiply(grad_up_MF.t(), rows_MD, offs_E).to(w3_EFD.dtype)",
                "                    grad_w3 = torch.zeros_like(w3_EFD)",
            ),
        ),
        "gradient of parameter experts.w3",
        "gradient of parameter experts.w3: is zero everywhere, the oracle's RMS is",
        cases=("experts[*]/backward",),
    ),
    wrong(
        "K42", "rows are freed that are the tokens themselves",
        "pith-train#16: a dispatch buffer freed where it is the stage's own input",
        "experts", "C",
        (
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
        "", "argument 0: its memory was freed by the call",
        cases=("experts[1]/forward",),
    ),
    wrong(
        "K25", "a partial sum is read before it is there",
        "FLA#889, #945 (30 of 30 runs differ): a race that leaves another row short each time",
        "experts", "C",
        (
            Edit(
                MOVED,
                "    for choice, part in enumerate(_by_choice(rows, plus, inverse, total.dtype)):\n        total +=",
                "    for choice, part in enumerate(_by_choice(rows, plus, inverse, total.dtype)):\n"
                "        part[int.from_bytes(__import__('os').urandom(4)) % len(part)] = 0\n"
                "        total +=",
            ),
        ),
        "*", "differs from run to run: ", "of 10 further runs differ; by RMSE",
        cases=("experts[*]/*",),
    ),
    changed(
        "K25", "rows are summed by float atomics",
        "torchtitan's scatter_add in combine: the order of a sum is another in each run",
        "experts", "G",
        (
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
        # Less than eager's own error, so not WRONG; but it repeated its bits before.
        "nondeterministic_outputs", "0 -> 1",
        cases=("experts[4]/forward",), also=("*",),
        beside=("experts[4]/backward",),  # where gradients are gathered, in the same order each time
        arguments=("-k", "4"),  # one row a token has no order
    ),
    wrong(
        "K49", "compiled, the experts count in fp8",
        "torchtitan#2196: other roundings once compiled (1.56 times eager's error)",
        "compiled", "C",
        (
            Edit(
                RECOMPUTE,
                "        multiply = matmul_of(precision)\n",
                '        multiply = matmul_of("fp8" if torch.compiler.is_compiling() else precision)\n',
            ),
        ),
        "output", "output: RMSE", "(eager's ",
        cases=("layer[compiled]/*",),
    ),
]  # fmt: skip
