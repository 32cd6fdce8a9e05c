"""How many kernels the float8 grouped matmul launches: five to nine forward, four to eleven backward.

On a GPU they are counted by the profiler. Without one what would be launched is: interpreted kernels, torch's operators
that write memory, and two for each call of the library's matmul, which prepares its arguments with a kernel of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]  # re-exported without saying so
from torch.profiler import ProfilerActivity, profile

from kernels import fp8
from kernels.fp8 import scaled
from kernels.fp8.configs import panels_candidates
from kernels.fp8.grouped_shapes import MATMUL_B
from kernels.fp8.shapes import Split
from kernels.hardware import arch_of, default_fp8_dtype
from tests.kernels.paths import GPU, KernelPath

LIBRARY_LAUNCHES = 2
# Every other operator of torch is taken to write memory.
FREE = {"empty", "new_empty", "zeros", "empty_strided", "mT", "transpose", "t", "as_strided", "unsqueeze", "squeeze"}
FREE |= {"slice", "view", "flatten", "detach", "alias", "select", "resize_", "to", "contiguous", "reshape", "expand"}


def launches(call: Callable[[], object]) -> int:
    """Kernels that `call` launches, or would."""
    if GPU:
        call()  # compiled, tried and warm
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as profiled:
            call()
            torch.cuda.synchronize()
        return sum(event.count for event in profiled.key_averages() if event.device_type == DeviceType.CUDA)
    from triton.runtime.interpreter import GridExecutor

    counted = mock.Mock()

    def leave_out(a: torch.Tensor, b: torch.Tensor, *_: Any, offs: torch.Tensor, **__: Any) -> torch.Tensor:
        counted.library()
        shape = (a.shape[0], b.shape[2]) if b.ndim == 3 else (offs.shape[0], a.shape[0], b.shape[1])
        return a.new_empty(shape, dtype=torch.bfloat16)

    with (
        mock.patch.object(GridExecutor, "__call__", counted.kernel),
        mock.patch.object(torch, "_scaled_grouped_mm", leave_out),
        profile(activities=[ProfilerActivity.CPU]) as profiled,
    ):
        call()
    operators = {
        event.key.removeprefix("aten::"): event.count for event in profiled.key_averages() if "aten::" in event.key
    }
    torch_launches = sum(count for operator, count in operators.items() if operator not in FREE)
    return counted.kernel.call_count + LIBRARY_LAUNCHES * counted.library.call_count + torch_launches


# As built: a quantiser along rows is one launch, one down columns two, with the fill of what it has to find at zero.
# Forward these of a and of the weight, the matmul and the rows past the end; backward those of grad_out, two matmuls
# with what each leaves unwritten, and a weight that was not kept. These are the library's matmuls; each of ours is one
# launch, which leaves nothing unwritten.
@pytest.mark.parametrize("backend", ["triton", "grouped"])
@pytest.mark.parametrize(
    ("keep", "needs_a", "needs_b", "forward", "backward"),
    [
        (True, True, True, 9, 9),
        (False, True, True, 7, 11),
        (True, True, False, 7, 4),
        (False, True, False, 5, 6),
        (False, False, True, 7, 5),
        (False, False, False, 5, None),
    ],
)
def test_launches(
    keep: bool,
    needs_a: bool,
    needs_b: bool,
    forward: int,
    backward: int | None,
    backend: scaled.Backend,
    triton_path: KernelPath,
) -> None:
    device = triton_path.device
    if GPU and (reason := scaled.refusal(backend, device, default_fp8_dtype(device))):
        pytest.skip(f"needs {backend}: {reason}")
    if backend == "triton":
        forward -= LIBRARY_LAUNCHES
        backward = None if backward is None else backward - LIBRARY_LAUNCHES * (needs_a + needs_b)
    if GPU:
        a, w, offs = MATMUL_B.inputs(device)
    else:
        a, w = torch.randn(32, 16).bfloat16(), torch.randn(2, 48, 16).bfloat16()
        offs = Split("", (12, 20)).offs(device)
    a, w = a.requires_grad_(needs_a), w.requires_grad_(needs_b)
    if needs_a and panels_candidates(arch_of(device), default_fp8_dtype(device), *w.shape[1:]):
        # The weight's other quantiser, now or later, needs no fill.
        forward -= keep
        backward = None if backward is None else backward - (not keep)
    outs: list[torch.Tensor] = []

    def run() -> None:
        outs.append(fp8.grouped_mm(a, w.mT, offs, keep_fp8_weights=keep, backend=backend))

    assert launches(run) == forward
    if backward is None:
        return
    out = outs[-1]
    grad = torch.randn_like(out)
    wanted = [tensor for tensor, needs in ((a, needs_a), (w, needs_b)) if needs]
    assert launches(lambda: torch.autograd.grad(out, wanted, grad, retain_graph=True)) == backward
