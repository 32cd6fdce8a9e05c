"""The grouped product as PyTorch operators `perfguard_kernels::grouped_mm_rows` and `grouped_mm_groups`.

    rows    (R, K) x (E, K, N) -> (R, N)      out[s:e] = a[s:e] @ b[g]
    groups  (K, R) x (R, N)    -> (E, K, N)   out[g] = a[:, s:e] @ b[s:e]

Each is the other's gradient, so both are differentiable any number of times. Both work under `torch.compile` and, but
for the loop, under graph capture: nothing reads the device. Which implementation runs is decided when the operator
runs, so a compiled graph holds no trace of where it was traced.

Origin: `torch._grouped_mm` of PyTorch (rows past the end and empty groups defined here), and the persistent grouped
GEMM that Triton's tutorials, torchtitan and others build on.

Shape suffixes: R rows allocated, K inner width, N outer width, E experts.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from kernels.grouped import library, reference
from kernels.grouped.arguments import require_impl, require_operands
from kernels.grouped.configs import Form, Impl, preference
from kernels.hardware import arch_of
from kernels.jit import path_of, triton
from kernels.launch import operator

if triton is not None:
    from kernels.grouped import launch
else:  # without Triton PyTorch's product or the loop runs
    launch = None  # type: ignore[assignment]

Path = Literal["torch", "triton", "interpreter", "loop"]


def path(
    device: torch.device | str,
    dtype: torch.dtype = torch.bfloat16,
    *,
    groups: int = 1,
    form: Form = "rows",
    aligned: bool = True,
    impl: Impl = "auto",
) -> Path:
    """What a call of this kind runs now; it never becomes another one silently.

    aligned: rows of both operands, and of the result, start and end on 16 bytes wherever a group starts.

    "torch" is `torch._grouped_mm`, chosen by "auto" only where it runs natively; "triton" and "interpreter" are our
    kernel; "loop" multiplies group by group and reads `offs` on the host. Raises ValueError where `impl` is "triton"
    and the kernel cannot run.
    """
    require_impl(impl)
    device = torch.device(device) if isinstance(device, str) else device
    if impl == "torch" or impl == "loop":
        return impl
    ours = path_of(None if launch is None else launch.multiply_rows, device)
    if impl == "triton":
        if ours == "eager":
            raise ValueError(
                f"impl: is 'triton', which cannot run on {device} now; choose 'auto', "
                "or install triton and, for a CPU, set TRITON_INTERPRET=1 before the first import"
            )
        return ours
    for choice in preference(arch_of(device), form, aligned and dtype.itemsize == 2):
        if choice == "torch" and groups <= library.MAX_GROUPS and library.runs_natively(device, dtype):
            return "torch"
        if choice == "triton" and ours != "eager":
            return ours
        if choice == "loop":
            break
    return "loop"


def grouped_mm(a: Tensor, b: Tensor, offs: Tensor, *, impl: Impl = "auto", candidate: int | None = None) -> Tensor:
    """One matrix product a group of rows, accumulated in fp32 and rounded once; differentiable in `a` and `b`.

    a (R, K), b (E, K, N), offs (E,) int32 -> (R, N) contiguous. Rows past `offs[-1]` are zero, and zero in the
        gradient of `a`; they are not read.
    a (K, R), b (R, N),    offs (E,) int32 -> (E, K, N) contiguous. An empty group is zero.

    Args:
        a, b: bf16, fp16 or fp32, the same for both; any strides, none is refused.
        offs: the inclusive running end of each group, non-decreasing, `offs[-1] <= R`. Not read on the host, so not
            checked either, but by the loop; wrong ends give wrong numbers and no stray access.
        impl: "torch", "triton", "loop", or "auto", which takes what `path` answers.
        candidate: an entry of the configuration table (`configs.py`), for tests and sweeps; ours alone looks at it.

    Saved for backward: `a` where `b` needs a gradient, `b` where `a` does, and `offs`; each as it was given.
    Raises ValueError that begins with the name of the argument.
    """
    require_operands(a, b, offs)
    require_impl(impl)
    if b.ndim == 3:
        return _rows(a, b, offs, impl, candidate)
    return _groups(a, b, offs, impl, candidate)


@operator("grouped_mm_rows")
def _rows(a: Tensor, b: Tensor, offs: Tensor, impl: str, candidate: int | None) -> Tensor:
    taken = path(a.device, a.dtype, groups=offs.numel(), form="rows", impl=impl)  # type: ignore[arg-type]
    if taken == "loop":
        return reference.grouped_mm(a, b, offs)
    if taken == "torch":
        return library.rows_product(a, b, offs)
    out = _rows_output(a, b, offs, impl, candidate)
    launch.rows_product(a, b, offs, out, candidate)
    return out


@_rows.register_fake
def _rows_output(a: Tensor, b: Tensor, offs: Tensor, impl: str, candidate: int | None) -> Tensor:
    return a.new_empty((a.shape[0], b.shape[2]))


@operator("grouped_mm_groups")
def _groups(a: Tensor, b: Tensor, offs: Tensor, impl: str, candidate: int | None) -> Tensor:
    aligned = launch is not None and launch.groups_aligned(a, b) and b.shape[1] * b.element_size() % 16 == 0
    taken = path(a.device, a.dtype, groups=offs.numel(), form="groups", aligned=aligned, impl=impl)  # type: ignore[arg-type]
    if taken == "loop":
        return reference.grouped_mm(a, b, offs)
    if taken == "torch":
        return library.groups_product(a, b, offs)
    out = _groups_output(a, b, offs, impl, candidate)
    launch.groups_product(a, b, offs, out, candidate)
    return out


@_groups.register_fake
def _groups_output(a: Tensor, b: Tensor, offs: Tensor, impl: str, candidate: int | None) -> Tensor:
    return a.new_empty((offs.shape[0], a.shape[0], b.shape[1]))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    a, b, offs, ctx.impl, ctx.candidate = inputs
    needs_a, needs_b = ctx.needs_input_grad[:2]
    ctx.save_for_backward(a if needs_b else None, b if needs_a else None, offs)
    # A gradient in the layout of its parameter is accumulated without another copy of it.
    ctx.b_transposed = b.stride(-2) == 1 and b.stride(-1) != 1


def _rows_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    a, b, offs = ctx.saved_tensors
    grad_a = grad_b = None
    if ctx.needs_input_grad[0]:
        grad_a = _rows(grad, b.mT, offs, ctx.impl, ctx.candidate)
    if ctx.needs_input_grad[1]:
        if ctx.b_transposed:
            grad_b = _groups(grad.t(), a, offs, ctx.impl, ctx.candidate).mT
        else:
            grad_b = _groups(a.t(), grad, offs, ctx.impl, ctx.candidate)
    return grad_a, grad_b, None, None, None


def _groups_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    a, b, offs = ctx.saved_tensors
    grad_a = grad_b = None
    if ctx.needs_input_grad[0]:
        grad_a = _rows(b, grad.mT, offs, ctx.impl, ctx.candidate).t()
    if ctx.needs_input_grad[1]:
        grad_b = _rows(a.t(), grad, offs, ctx.impl, ctx.candidate)
    return grad_a, grad_b, None, None, None


_rows.register_autograd(_rows_backward, setup_context=_setup)
_groups.register_autograd(_groups_backward, setup_context=_setup)
