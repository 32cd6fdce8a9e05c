"""Compile the fp8 quantisers for an architecture that need not be here, and say what came out.

    python -m tests.kernels.quantize_targets sm_90 gfx942 [QUANTISER ...] [all]

A process of its own, because the tests define the kernels as interpreted functions. The launchers run on tensors
that are never touched, and what they would launch is compiled instead, specialised as Triton's launcher does it. Prints
one JSON object for each kernel on the widths of shape A, of a "short" weight B's: what it asks of the
chip. Without the name of a quantiser all are built, and with `all` every candidate.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
import triton
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource

from kernels.fp8 import launch, ops
from kernels.launch import MAX_CANDIDATES, Launch
from tests.kernels.grouped_targets import facts, target_of

POINTERS = {
    torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32", torch.uint8: "*u8",
    torch.int32: "*i32", torch.int64: "*i64", torch.uint32: "*u32",
}  # fmt: skip
MATMUL = ("mfma", "wgmma", "bulk_loads")  # facts of no use here
OPTIONS = ("num_warps", "num_stages", "maxnreg", "launch_pdl")

Call = Callable[[int], Any]


@contextmanager
def launches_on(arch: str) -> Iterator[list[tuple[Any, dict[str, Any]]]]:
    """Within, quantisers run on CPU tensors as on this architecture; kernels and their arguments are kept, not run."""
    launches: list[tuple[Any, dict[str, Any]]] = []

    def keep(launch: Launch, device: torch.device, programs: int, *arguments: Any) -> None:
        launches.append((launch.kernel, dict(zip(launch.kernel.arg_names, arguments, strict=False)) | launch.constants))

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(Launch, "__call__", keep))
        stack.enter_context(mock.patch.object(launch, "arch_of", return_value=arch))
        stack.enter_context(mock.patch.object(ops, "path", return_value="triton"))
        yield launches


def build(kernel: Any, arguments: dict[str, Any], arch: str) -> Any:
    """The kernel compiled as a call with these arguments would compile it."""
    types, constants, attrs = {}, {}, {}
    for index, parameter in enumerate(kernel.params):
        value, specialised = arguments[parameter.name], not parameter.do_not_specialize
        if isinstance(value, torch.Tensor):
            types[parameter.name] = POINTERS[value.dtype]
            aligned = True
        elif parameter.is_constexpr or value is None or (value == 1 and specialised):
            types[parameter.name], constants[(index,)] = "constexpr", value
            continue
        else:
            types[parameter.name] = "i32" if value < 1 << 31 else "i64"
            aligned = specialised and value % 16 == 0
        if aligned:
            attrs[(index,)] = [["tt.divisibility", 16]]
    options = {name: arguments[name] for name in OPTIONS if name in arguments}
    language = GluonASTSource if kernel.is_gluon() else ASTSource
    source = language(fn=kernel, signature=types, constexprs=constants, attrs=attrs)
    return triton.compile(source, target=target_of(arch), options=options)


def calls(experts: int = 2, tokens: int = 2080, inner: int = 5120, outer: int = 8192) -> dict[str, Call]:
    """Each quantiser on the widths of shape A, as a function of the candidate; the "short" weight on B's."""

    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.bfloat16)  # never touched

    a, grad, weight = empty(tokens, inner), empty(tokens, outer), empty(experts, outer, inner).mT
    short_weight = empty(experts, 1408, 2048).mT
    offs, many = torch.empty(experts, dtype=torch.int32), torch.empty(256, dtype=torch.int32)
    return {
        "rowwise": lambda c: ops.quantize_rowwise(a, candidate=c),
        "colwise_3d": lambda c: ops.quantize_colwise_3d(weight, candidate=c),
        "colwise_per_group": lambda c: ops.quantize_colwise_per_group(a, offs, candidate=c),
        "colwise_per_group padded": lambda c: ops.quantize_colwise_per_group(a, offs, alignment=16, candidate=c),
        "256 groups": lambda c: ops.quantize_colwise_per_group(a, many, alignment=16, candidate=c),
        "rowwise_per_group": lambda c: ops.quantize_rowwise_per_group(a.t(), offs, candidate=c),
        "colwise_per_group_dual": lambda c: ops.quantize_colwise_per_group_dual(grad, a, offs, candidate=c),
        "transpose_3d_atomic": lambda c: ops.quantize_transpose_3d_atomic(weight, candidate=c),
        "transpose_3d_reduction": lambda c: ops.quantize_transpose_3d_reduction(weight, candidate=c),
        "transpose_3d_atomic short": lambda c: ops.quantize_transpose_3d_atomic(short_weight, candidate=c),
        "rowwise_colwise_per_group": lambda c: ops.quantize_rowwise_colwise_per_group(
            a, offs, alignment=16, candidate=c
        ),
        "colwise_transpose_3d": lambda c: ops.quantize_colwise_transpose_3d(weight, candidate=c),
    }


def built(arch: str, every: bool, names: Collection[str] | None = None) -> Iterator[tuple[str, int, Any]]:
    """(quantiser, candidate, compiled kernel)."""
    for name, call in calls().items():
        if names is not None and name not in names:
            continue
        for candidate in range(MAX_CANDIDATES if every else 1):
            with launches_on(arch) as launches:
                try:
                    call(candidate)
                except ValueError:  # the end of the table
                    break
            for kernel, arguments in launches:
                yield name, candidate, build(kernel, arguments, arch)


def main(arguments: list[str]) -> None:
    names = [argument for argument in arguments if argument in calls()] or None
    for arch in arguments:
        if arch == "all" or arch in calls():
            continue
        for name, candidate, compiled in built(arch, "all" in arguments, names):
            found = {key: value for key, value in facts(compiled).items() if key not in MATMUL}
            print(json.dumps({"arch": arch, "kernel": name, "candidate": candidate} | found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
