"""Compile every kernel of the operators for an architecture that need not be here, and say what came out.

    python -m tests.kernels.operator_targets sm_90 gfx942 [all]

A process of its own, because the tests define the kernels as interpreted functions. Each operator runs forward and
backward with launches caught and nothing executed, so that what is compiled is what is launched: candidate 0, or all
of them. Prints one JSON object for each compiled kernel.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any
from unittest import mock

import torch
import triton
from triton.compiler import ASTSource
from triton.runtime import JITFunction

from kernels import operators
from kernels.launch import MAX_CANDIDATES
from kernels.operators.shapes import GateShape, GroupedRows, LogitsShape, MovedShape
from tests.kernels.grouped_targets import facts, target_of

MODULES = [
    importlib.import_module(f"kernels.operators.{found.name}") for found in pkgutil.iter_modules(operators.__path__)
]
CROSS_ENTROPY = {"label_smoothing": 0.1, "softcap": 30.0, "lse_square_scale": 1e-4, "return_z_loss": True}
OPTIONS = ("num_warps", "num_stages", "launch_pdl", "enable_fp_fusion")


@dataclass(frozen=True)
class Launch:
    """A kernel and its arguments by name."""

    kernel: Any
    arguments: dict[str, Any]
    options: dict[str, Any]

    def compile(self, arch: str) -> Any:
        """Specialised as Triton's launcher would: 1 and None are constants, a multiple of 16 is known to be one."""
        constants, signature, attributes = {}, {}, {}
        for place, parameter in enumerate(self.kernel.params):
            value = self.arguments[parameter.name]
            is_free = not parameter.do_not_specialize
            if parameter.is_constexpr or value is None or (is_free and type(value) is int and value == 1):
                constants[(place,)] = value
                signature[parameter.name] = "constexpr"
                continue
            signature[parameter.name] = type_of(value)
            if isinstance(value, torch.Tensor) or (is_free and type(value) is int and value % 16 == 0):
                attributes[(place,)] = [["tt.divisibility", 16]]
        source = ASTSource(fn=self.kernel, signature=signature, constexprs=constants, attrs=attributes)
        return triton.compile(source, target=target_of(arch), options=self.options)


def type_of(value: Any) -> str:
    names = {
        torch.bfloat16: "bf16",
        torch.float16: "fp16",
        torch.float32: "fp32",
        torch.int32: "i32",
        torch.int64: "i64",
    }
    if isinstance(value, torch.Tensor):
        return f"*{names[value.dtype]}"
    return "fp32" if isinstance(value, float) else "i32" if -(2**31) <= value < 2**31 else "i64"


@contextmanager
def caught(arch: str, *others: ModuleType) -> Iterator[list[Launch]]:
    """Within, operators, and what these other modules launch, run on CPU tensors as on this architecture; the launches
    are kept, and not run."""
    launches: list[Launch] = []

    def catch(kernel: Any, *values: Any, grid: Any, warmup: bool, **named: Any) -> None:
        names = [parameter.name for parameter in kernel.params]
        options = {name: named.pop(name) for name in OPTIONS if name in named}
        launches.append(Launch(kernel, dict(zip(names, values, strict=False)) | named, options))

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(JITFunction, "run", catch))
        stack.enter_context(mock.patch.object(torch.version, "cuda", None))  # every launch is Triton's own, so caught
        for module in (*MODULES, *others):
            for name, answer in (("path_of", "triton"), ("arch_of", arch)):
                if hasattr(module, name):
                    stack.enter_context(mock.patch.object(module, name, lambda *_, answer=answer: answer))
        yield launches


def launches_of(arch: str, candidate: int | None) -> dict[str, list[Launch]]:
    """Of each operator, few rows at the widths of the real shapes."""
    moved = MovedShape(256, 2048, 64)
    calls = {
        "silu_mul": partial(operators.silu_mul, *GateShape(64, 2048).pair("cpu")),
        "clamped_swiglu": partial(operators.clamped_swiglu, *GateShape(64, 2880).interleaved("cpu")),
        "cross_entropy": partial(operators.cross_entropy, *LogitsShape(8, 128256).inputs("cpu")),
        "cross_entropy, all options": partial(
            operators.cross_entropy, *LogitsShape(8, 128256).inputs("cpu"), weight=torch.ones(128256), **CROSS_ENTROPY
        ),
        "padded_index_gather": partial(operators.padded_index_gather, *moved.gathered("cpu")),
        "scatter_for_grouped_gemm": partial(operators.scatter_for_grouped_gemm, *moved.scattered("cpu"), 128, 1, False),
        "indexed_bias_add": partial(operators.indexed_bias_add, *GroupedRows(64, 5760, 8, "equal").biased("cpu")),
        "indexed_bias_add, narrow": partial(
            operators.indexed_bias_add, *GroupedRows(64, 1024, 8, "equal").biased("cpu")
        ),
    }
    found = {}
    for name, call in calls.items():
        with caught(arch) as launches:
            try:
                result = call(candidate=candidate)
            except ValueError:  # this operator has fewer candidates
                continue
            result = result if isinstance(result, torch.Tensor) else result[0]
            result.backward(torch.ones_like(result))
        found[name] = launches
    return found


def report(arch: str, every: bool, caught_of: Callable[[str, int | None], Iterable[tuple[str, Launch]]]) -> None:
    """A line of JSON for each binary of the default candidates, or of all, that `caught_of(arch, candidate)` gives."""
    seen = set()
    for candidate in range(MAX_CANDIDATES) if every else [None]:
        for name, launch in caught_of(arch, candidate):
            compiled = launch.compile(arch)
            if compiled.hash in seen:
                continue
            seen.add(compiled.hash)
            named = {"arch": arch, "operator": name, "kernel": launch.kernel.__name__, "candidate": candidate or 0}
            print(json.dumps(named | facts(compiled)), flush=True)


def named_launches(arch: str, candidate: int | None) -> list[tuple[str, Launch]]:
    """`launches_of`, one by one."""
    return [(name, launch) for name, launches in launches_of(arch, candidate).items() for launch in launches]


if __name__ == "__main__":
    for name in sys.argv[1:]:
        if name != "all":
            report(name, "all" in sys.argv[2:], named_launches)
