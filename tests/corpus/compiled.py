"""Of sections 1.1 and 1.3: what torch.compile makes of a layer."""

from __future__ import annotations

from tests.corpus.mutant import Edit, Expect, Mutant

ROUTER, LAYER, COMPILE = "kernels/moe/router.py", "kernels/moe/layer.py", "kernels/layers/compile.py"
MOE_CASES = ("moe/forward",)

MUTANTS = [
    Mutant(
        name="a branch on data breaks the graph",
        classes=("K12",),
        imitates="float8_experimental#192 (2.44 to 2.08 it/s): Python decides by what a tensor holds",
        suite="layers",
        apply=(
            Edit(
                ROUTER,
                "            return Routing(weights_of(",
                "            if scores_TE.detach().amax() > 1e9:\n"
                "                scores_TE = scores_TE.clamp(max=1e9)\n"
                "            return Routing(weights_of(",
            ),
        ),
        shown={
            "C": Expect(
                "CHANGED", "graph_breaks", cases=MOE_CASES,
                says=("graph break at router.py:", "Data-dependent branching"),
                also=("*",),
            )
        },
    ),
    Mutant(
        name="a Python int that varies is kept as a guard",
        classes=("K12", "K40"),
        imitates="FA#911 (8 variants for 2), torchtitan#2007: every token count is compiled anew",
        suite="layers",
        apply=(
            Edit(
                LAYER,
                "        self._check(x_TD)\n",
                "        self._check(x_TD)\n"
                "        self.seen = getattr(self, 'seen', 0) + 1\n"
                "        x_TD = x_TD * (self.seen / self.seen)\n",
            ),
        ),
        shown={"C": Expect("CHANGED", "recompiles", cases=MOE_CASES, says=("recompiled for", "seen"), also=("*",))},
    ),
    Mutant(
        name="a setting of the compiler is left changed",
        classes=("K39",),
        imitates="torchtitan#2741: apply_compile sets capture_scalar_outputs for good, and another function fails",
        suite="layers",
        apply=(
            Edit(
                COMPILE,
                "    for block in blocks_of(model):\n",
                "    import torch._dynamo.config\n\n    torch._dynamo.config.capture_scalar_outputs = True\n"
                "    for block in blocks_of(model):\n",
            ),
        ),
        shown={
            "C": Expect(
                "CHANGED", "compiler_leaks", cases=("applied/forward",),
                says=("compiler setting left changed: dynamo.capture_scalar_outputs: False -> True",),
                also=("guards",),
            )
        },
    ),
    Mutant(
        name="counts are Python ints in the graph",
        classes=("K40",),
        imitates="torchtitan#2312, pytorch#161276: the first load's counts are baked in",
        suite="layers",
        apply=(
            Edit(
                LAYER,
                "        if self.training:\n",
                "        self.longest = max(dispatch.counts.tolist())\n        if self.training:\n",
            ),
        ),
        shown={
            "C": Expect("CHANGED", "graph_breaks", cases=MOE_CASES, says=("graph break at layer.py:",), also=("*",))
        },
    ),
    Mutant(
        name="a checkpointed block is silently eager",
        classes=("K48",),
        imitates="torchtitan#1895: a break inside checkpointing leaves the whole block to Python, without a word",
        suite="layers",
        apply=(
            Edit(
                "test_layers.py",
                "        return block(x, rope)\n",
                "        torch._dynamo.graph_break()\n        return block(x, rope)\n",
            ),
        ),
        shown={
            "C": Expect(
                "CHANGED", "eager_frames", cases=("checkpointed/forward",), says=("left to Python:",), also=("*",)
            )
        },
    ),
]  # fmt: skip
