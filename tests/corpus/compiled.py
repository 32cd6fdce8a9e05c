"""Of sections 1.1 and 1.3: what torch.compile makes of a layer."""

from __future__ import annotations

from benchmarks.planting import Edit, changed

ROUTER, LAYER, COMPILE = "kernels/moe/router.py", "kernels/moe/layer.py", "kernels/layers/compile.py"
MOE_CASES = ("moe/forward",)

MUTANTS = [
    changed(
        "K12", "a branch on data breaks the graph",
        "float8_experimental#192 (2.44 to 2.08 it/s): Python decides by what a tensor holds",
        "layers", "C",
        (
            Edit(
                ROUTER,
                "            return Routing(weights_of(",
                "            if scores_TE.detach().amax() > 1e9:\n"
                "                scores_TE = scores_TE.clamp(max=1e9)\n"
                "            return Routing(weights_of(",
            ),
        ),
        "graph_breaks", "graph break at router.py:", "Data-dependent branching",
        cases=MOE_CASES, also=("*",),
    ),
    changed(
        "K12 K40", "a Python int that varies is kept as a guard",
        "FA#911 (8 variants for 2), torchtitan#2007: every token count is compiled anew",
        "layers", "C",
        (
            Edit(
                LAYER,
                "        self._check(x_TD)\n",
                "        self._check(x_TD)\n"
                "        self.seen = getattr(self, 'seen', 0) + 1\n"
                "        x_TD = x_TD * (self.seen / self.seen)\n",
            ),
        ),
        "recompiles", "recompiled for", "seen",
        cases=MOE_CASES, also=("*",),
    ),
    changed(
        "K39", "a setting of the compiler is left changed",
        "torchtitan#2741: apply_compile sets capture_scalar_outputs for good, and another function fails",
        "layers", "C",
        (
            Edit(
                COMPILE,
                "    for block in blocks_of(model):\n",
                "    import torch._dynamo.config\n\n    torch._dynamo.config.capture_scalar_outputs = True\n"
                "    for block in blocks_of(model):\n",
            ),
        ),
        "compiler_leaks", "compiler setting left changed: dynamo.capture_scalar_outputs: False -> True",
        cases=("applied/forward",), also=("guards",),
    ),
    changed(
        "K40", "counts are Python ints in the graph",
        "torchtitan#2312, pytorch#161276: the first load's counts are baked in",
        "layers", "C",
        (
            Edit(
                LAYER,
                "        if self.training:\n",
                "        self.longest = max(dispatch.counts.tolist())\n        if self.training:\n",
            ),
        ),
        "graph_breaks", "graph break at layer.py:",
        cases=MOE_CASES, also=("*",),
    ),
    changed(
        "K48", "a checkpointed block is silently eager",
        "torchtitan#1895: a break inside checkpointing leaves the whole block to Python, without a word",
        "layers", "C",
        (
            Edit(
                "test_layers.py",
                "        return block(x, rope)\n",
                "        torch._dynamo.graph_break()\n        return block(x, rope)\n",
            ),
        ),
        "eager_frames", "left to Python:",
        cases=("checkpointed/forward",), also=("*",),
    ),
]  # fmt: skip
