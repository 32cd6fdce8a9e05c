"""Wrong results of elementwise operators, cross entropy and deferred weight gradients."""

from __future__ import annotations

from benchmarks.planting import Append, Edit, wrong

SILU = "kernels/operators/silu_mul.py"
ENTROPY, SCALING = "kernels/operators/cross_entropy_rows.py", "kernels/operators/scaling.py"
STORE = "kernels/operators/weight_grad_store.py"

MUTANTS = [
    wrong(
        "K30", "the grid loses the last tile",
        "FI#5090: a grid by floor division leaves the tail unwritten",
        "gate", "I",
        (
            Edit(
                SILU,
                "    programs = cdiv(rows, config.rows) * cdiv(width, config.columns)",
                "    programs = max(1, rows // config.rows) * max(1, width // config.columns)",
            ),
        ),
        "*", "output: depends on old memory: 104 of 4200 elements change, the first at [2, 1296]",
        cases=("gate[ragged]/*",),
    ),
    wrong(
        "K26", "one configuration is wrong, in its gradients alone",
        "FLA#640, #988 (dk ratio 0.53), unsloth#5276: a candidate that the tuner did not pick today",
        "choices", "I",
        (
            Edit(
                SILU,
                "        launch(device, cdiv(width, config.columns), *inputs",
                "        short = 1 if candidate == 1 and kernel is _backward else 0\n"
                "        launch(device, cdiv(width, config.columns) - short, *inputs",
            ),
        ),
        "gradient of argument 0", "configuration 1 (candidate=1): gradient of argument 0: ",
        cases=("configurations/backward",), also=("gradient of argument 1",),
    ),
    wrong(
        "K28", "the incoming gradient is indexed as if it were contiguous",
        "TE#2734, FLA#871, FA#355: flat indexing of grad_out",
        "choices", "I",
        (Edit(SILU, "grad_ptr + row * grad_row + column * grad_column", "grad_ptr + row * width + column"),),
        "gradient of argument 0", "this with incoming gradients expanded (stride 0)",
        "this with incoming gradients transposed, at an odd storage offset",
        cases=("configurations/backward", "slices/backward"), also=("gradient of argument 1",),
    ),
    wrong(
        "K28", "a unit stride is taken for contiguous",
        "pytorch#194719, ROCm/TE#623: stride(-1) == 1 does not say where the next row is",
        "choices", "I",
        (
            Edit(
                SILU,
                "    if all(tensor.is_contiguous() for tensor in inputs):",
                "    if all(tensor.stride(-1) == 1 for tensor in inputs):\n"
                "        inputs = [tensor.as_strided((1, tensor.numel()), (tensor.numel(), 1)) for tensor in inputs]\n"
                "    if inputs[0].shape[0] == 1:",
            ),
        ),
        # An incoming gradient that is one row for all has a unit stride, too.
        "*", "argument 0 is not contiguous: strides (64,1)", "this with incoming gradients expanded (stride 0)",
        cases=("slices/*", "configurations/backward"),
    ),
    wrong(
        "K44", "the saved gradient loses the target's entry",
        "a fused cross entropy that stores bf16(p / N) and takes 1 / N off afterwards",
        "entropy", "C",
        (
            Edit(
                ENTROPY,
                "        e_NV.scatter_(1, at_N1, rest_N1 - (others_N1 / total_N1) * all_N1)",
                "        e_NV.scatter_(1, at_N1, e_NV.gather(1, at_N1).to(gradient.dtype).float() - scale_N1)",
            ),
        ),
        "output target entries", "output target entries: RMSE",
        cases=("gradient[eager-0.9-40]/forward", "gradient[eager-0.999-40]/forward"), also=("output gradient",),
    ),
    wrong(
        "K44", "the kernel loses the target's entry",
        "a fused cross entropy that stores bf16(p / N) and takes 1 / N off afterwards",
        "entropy", "I",
        (
            Edit(
                ENTROPY,
                "                at_target = -tl.div_rn(others, total) * scale",
                "                stored = rounded(tl.div_rn(e_target, total) * scale, DTYPE, BY_HAND)\n"
                "                at_target = stored.to(tl.float32) - scale",
            ),
        ),
        "output target entries", "output target entries: RMSE",
        cases=("gradient[interpreter-0.9-6]/forward",), also=("output gradient",),
    ),
    wrong(
        "K27", "tuning runs a kernel that works in place",
        "triton#9230, #6547, #4217: a tuner that does not restore what its trials wrote",
        "entropy", "C",
        (
            Edit(
                SCALING,
                "    if path_of(_scale, gradient.device) ==",
                "    if out is gradient and not _TRIED:\n"
                "        _TRIED.append(True)  # a candidate is timed, on the data themselves\n"
                "        _run_scale(gradient, factor, out, candidate)\n"
                "    if path_of(_scale, gradient.device) ==",
            ),
            Append(SCALING, "_TRIED: list[bool] = []"),
        ),
        "output", "output: the first call differs from later ones", "looks scaled by 3",
        cases=("scaled[eager]/forward",),
    ),
    wrong(
        "K43", "deferred work comes last in, first out",
        "pith-train#32: weight gradients in the wrong order",
        "deferred", "C",
        (Edit(STORE, "self._batches.popleft()", "self._batches.pop()"),),
        "output weight.grad after chunk 0",
        cases=("step[*]/forward",), also=("output *",),
    ),
    wrong(
        "K43", "a chunk's gradient replaces those before",
        "pith-train#32: assigned where it has to be added",
        "deferred", "C",
        (Edit(STORE, "        parameter.grad.add_(gradient)", "        parameter.grad.copy_(gradient)"),),
        "output weight.grad after chunk 1",
        cases=("step[*]/forward",), also=("output *",),
    ),
    wrong(
        "K43 K23", "sums of chunks are rounded to bf16 each time",
        "pith-train#32: converted before it is accumulated, which loses chunks",
        "deferred", "C",
        (
            Edit(
                STORE,
                "        parameter.grad.add_(gradient)",
                "        parameter.grad.copy_(parameter.grad.to(gradient.dtype) + gradient)",
            ),
        ),
        "output weight.grad after chunk 31",
        cases=("step[32]/forward",),
        arguments=("-k", "32 or direct"),  # after two chunks nothing is lost yet, but more is copied: CHANGED
    ),
]  # fmt: skip
