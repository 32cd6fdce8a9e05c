"""Wrong results of elementwise operators, cross entropy and deferred weight gradients."""

from __future__ import annotations

from tests.corpus.mutant import Append, Edit, Expect, Mutant

SILU, LAUNCH = "kernels/operators/silu_mul.py", "kernels/operators/launch.py"
ENTROPY, STORE = "kernels/operators/cross_entropy.py", "kernels/operators/weight_grad_store.py"

MUTANTS = [
    Mutant(
        name="the grid loses the last tile",
        classes=("K30",),
        imitates="FI#5090: a grid by floor division leaves the tail unwritten",
        suite="gate",
        apply=(
            Edit(
                SILU,
                "    programs = cdiv(rows, config.rows) * cdiv(width, config.columns)",
                "    programs = max(1, rows // config.rows) * max(1, width // config.columns)",
            ),
        ),
        shown={
            "I": Expect(
                "WRONG",
                "*",
                cases=("gate[ragged]/*",),
                says=("output: depends on old memory: 104 of 4200 elements change, the first at [2, 1296]",),
            )
        },
    ),
    Mutant(
        name="one configuration is wrong, in its gradients alone",
        classes=("K26",),
        imitates="FLA#640, #988 (dk ratio 0.53), unsloth#5276: a candidate that the tuner did not pick today",
        suite="choices",
        apply=(
            Edit(
                SILU,
                "    programs = cdiv(rows, config.rows) * cdiv(width, config.columns)",
                "    short = 1 if candidate == 1 and kernel is _backward else 0\n"
                "    programs = cdiv(rows, config.rows) * cdiv(width, config.columns) - short",
            ),
        ),
        shown={
            "I": Expect(
                "WRONG",
                "gradient of argument 0",
                cases=("configurations/backward",),
                says=("configuration 1 (candidate=1): gradient of argument 0: ",),
                also=("gradient of argument 1",),
            )
        },
    ),
    Mutant(
        name="the incoming gradient is indexed as if it were contiguous",
        classes=("K28",),
        imitates="TE#2734, FLA#871, FA#355: flat indexing of grad_out",
        suite="choices",
        apply=(Edit(SILU, "grad_ptr + row * grad_row + column * grad_column", "grad_ptr + row * width + column"),),
        shown={
            "I": Expect(
                "WRONG",
                "gradient of argument 0",
                cases=("configurations/backward", "slices/backward"),
                says=(
                    "this with incoming gradients expanded (stride 0)",
                    "this with incoming gradients transposed, at an odd storage offset",
                ),
                also=("gradient of argument 1",),
            )
        },
    ),
    Mutant(
        name="a unit stride is taken for contiguous",
        classes=("K28",),
        imitates="pytorch#194719, ROCm/TE#623: stride(-1) == 1 does not say where the next row is",
        suite="choices",
        apply=(
            Edit(
                LAUNCH,
                "    if all(tensor.is_contiguous() for tensor in tensors):\n"
                "        return [tensor.view(1, -1) for tensor in tensors]",
                "    if all(tensor.stride(-1) == 1 for tensor in tensors):\n"
                "        return [tensor.as_strided((1, tensor.numel()), (tensor.numel(), 1)) for tensor in tensors]",
            ),
        ),
        shown={
            # An incoming gradient that is one row for all has a unit stride, too.
            "I": Expect(
                "WRONG",
                "*",
                cases=("slices/*", "configurations/backward"),
                says=(
                    "argument 0 is not contiguous: strides (64,1)",
                    "this with incoming gradients expanded (stride 0)",
                ),
            )
        },
    ),
    Mutant(
        name="the saved gradient loses the target's entry",
        classes=("K44",),
        imitates="a fused cross entropy that stores bf16(p / N) and takes 1 / N off afterwards",
        suite="entropy",
        apply=(
            Edit(
                ENTROPY,
                "        e_NV.mul_(scale_N1 / total_N1).scatter_(1, at_N1, -(others_N1 / total_N1) * scale_N1)",
                "        e_NV.mul_(scale_N1 / total_N1)\n"
                "        e_NV.scatter_(1, at_N1, e_NV.gather(1, at_N1).to(gradient.dtype).float() - scale_N1)",
            ),
        ),
        shown={
            "C": Expect(
                "WRONG",
                "output target entries",
                cases=("gradient[eager-0.9-40]/forward", "gradient[eager-0.999-40]/forward"),
                says=("output target entries: RMSE",),
                also=("output gradient",),
            )
        },
    ),
    Mutant(
        name="the kernel loses the target's entry",
        classes=("K44",),
        imitates="a fused cross entropy that stores bf16(p / N) and takes 1 / N off afterwards",
        suite="entropy",
        apply=(
            Edit(
                ENTROPY,
                "            at_target = -tl.div_rn(others, total) * scale",
                "            stored = rounded(tl.div_rn(e_target, total) * scale, DTYPE, BY_HAND)\n"
                "            at_target = stored.to(tl.float32) - scale",
            ),
        ),
        shown={
            "I": Expect(
                "WRONG",
                "output target entries",
                cases=("gradient[interpreter-0.9-6]/forward",),
                says=("output target entries: RMSE",),
                also=("output gradient",),
            )
        },
    ),
    Mutant(
        name="tuning runs a kernel that works in place",
        classes=("K27",),
        imitates="triton#9230, #6547, #4217: a tuner that does not restore what its trials wrote",
        suite="entropy",
        apply=(
            Edit(
                ENTROPY,
                "    if path_of(_scale, gradient.device) ==",
                "    if out is gradient and not _TRIED:\n"
                "        _TRIED.append(True)  # a candidate is timed, on the data themselves\n"
                "        _run_scale(gradient, factor, out, candidate)\n"
                "    if path_of(_scale, gradient.device) ==",
            ),
            Append(ENTROPY, "_TRIED: list[bool] = []"),
        ),
        shown={
            "C": Expect(
                "WRONG",
                "output",
                cases=("scaled[eager]/forward",),
                says=("output: the first call differs from later ones", "looks scaled by 3"),
            )
        },
    ),
    Mutant(
        name="deferred work comes last in, first out",
        classes=("K43",),
        imitates="pith-train#32: weight gradients in the wrong order",
        suite="deferred",
        apply=(Edit(STORE, "self._batches.popleft()", "self._batches.pop()"),),
        shown={
            "C": Expect("WRONG", "output weight.grad after chunk 0", cases=("step[*]/forward",), also=("output *",))
        },
    ),
    Mutant(
        name="a chunk's gradient replaces those before",
        classes=("K43",),
        imitates="pith-train#32: assigned where it has to be added",
        suite="deferred",
        apply=(Edit(STORE, "        parameter.grad.add_(gradient)", "        parameter.grad.copy_(gradient)"),),
        shown={
            "C": Expect("WRONG", "output weight.grad after chunk 1", cases=("step[*]/forward",), also=("output *",))
        },
    ),
    Mutant(
        name="sums of chunks are rounded to bf16 each time",
        classes=("K43", "K23"),
        imitates="pith-train#32: converted before it is accumulated, which loses chunks",
        suite="deferred",
        arguments=("-k", "32 or direct"),  # after two chunks nothing is lost yet, but more is copied: CHANGED
        apply=(
            Edit(
                STORE,
                "        parameter.grad.add_(gradient)",
                "        parameter.grad.copy_(parameter.grad.to(gradient.dtype) + gradient)",
            ),
        ),
        shown={"C": Expect("WRONG", "output weight.grad after chunk 31", cases=("step[32]/forward",))},
    ),
]
