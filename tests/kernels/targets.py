"""Compile kernels for an architecture that need not be here, and say what came out.

    python -m tests.kernels.targets PACKAGE|every sm_90 gfx942 [CASE ...] [all]

A process of its own, because the tests define the kernels as interpreted functions. Calls run on CPU tensors that are
never touched; what they would launch is compiled instead, specialised as Triton's launcher does it: candidate 0, or all
of them. Prints one JSON object for each launch: what the kernel asks of the chip, and the instructions that show which
way it took. Without the name of a case all are compiled.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource

from kernels import block_scaled, fp8, operators
from kernels.fp8 import launch_products
from kernels.grouped import launch as grouped_launch
from kernels.hardware import hardware_of
from kernels.launch import MAX_CANDIDATES, Launch
from kernels.moe import rows, weighted_gate
from kernels.operators.shapes import GroupedRows, LogitsShape, MovedShape, RopeShape, RowsShape
from kernels.parallel.vocab_cross_entropy import vocab_parallel_cross_entropy

Call = Callable[[int | None], Any]  # of the candidate
Caught = tuple[Any, dict[str, Any]]  # a kernel, and its arguments by name

TYPES = {
    torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.uint8: "u8", torch.int32: "i32",
    torch.int64: "i64", torch.uint32: "u32", torch.float8_e4m3fn: "fp8e4nv", torch.float8_e4m3fnuz: "fp8e4b8",
}  # fmt: skip
OPTIONS = ("num_warps", "num_stages", "maxnreg", "launch_pdl", "enable_fp_fusion")


def target_of(arch: str) -> GPUTarget:
    if arch.startswith("sm_"):
        return GPUTarget("cuda", int(arch.removeprefix("sm_")), 32)
    width = hardware_of(arch).wave_width
    assert width is not None, f"{arch}: its wave width is not in kernels/hardware.py"
    return GPUTarget("hip", arch, width)


@contextmanager
def launches_on(arch: str) -> Iterator[list[Caught]]:
    """Within, operators run on CPU tensors as on this architecture; launches are kept, and not made."""
    launches: list[Caught] = []

    def keep(launch: Launch, device: torch.device, programs: int, *arguments: Any) -> None:
        launches.append((launch.kernel, dict(zip(launch.kernel.arg_names, arguments, strict=False)) | launch.constants))

    answers = {"arch_of": arch, "processors_of": 132, "path_of": "triton"}
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(Launch, "__call__", keep))
        for module in [module for name, module in sys.modules.items() if name.startswith("kernels.")]:
            for name, answer in answers.items():
                if hasattr(module, name):
                    stack.enter_context(mock.patch.object(module, name, lambda *_, answer=answer: answer))
        yield launches


def type_of(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"*{TYPES[value.dtype]}"
    if hasattr(value, "block_shape"):  # a descriptor, Triton's or Gluon's
        layout = f",{value.layout!r}" if hasattr(value, "layout") else ""
        return f"tensordesc<{TYPES[value.base.dtype]}{list(value.block_shape)}{layout}>"
    return "fp32" if isinstance(value, float) else "i32" if -(2**31) <= value < 2**31 else "i64"


def kind_of(kernel: Any, arguments: dict[str, Any]) -> tuple[dict[Any, Any], dict[str, str], dict[Any, Any]]:
    """Constants, types and attributes of a launch, specialised as the launcher does it: 1 and None are constants, and a
    multiple of 16 is known to be one."""
    constants, signature, attributes = {}, {}, {}
    for place, parameter in enumerate(kernel.params):
        value, specialised = arguments[parameter.name], not parameter.do_not_specialize
        if parameter.is_constexpr or value is None or (specialised and type(value) is int and value == 1):
            constants[(place,)], signature[parameter.name] = value, "constexpr"
            continue
        signature[parameter.name] = type_of(value)
        if isinstance(value, Tensor) or (specialised and type(value) is int and value % 16 == 0):
            attributes[(place,)] = [["tt.divisibility", 16]]
    return constants, signature, attributes


def ast_source(kernel: Any, arguments: dict[str, Any]) -> ASTSource:
    """What the compiler takes of a launch."""
    constants, signature, attributes = kind_of(kernel, arguments)
    language = GluonASTSource if kernel.is_gluon() else ASTSource
    return language(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)


def build(kernel: Any, arguments: dict[str, Any], arch: str) -> Any:
    """The kernel compiled as a call with these arguments would compile it."""
    options = {name: arguments[name] for name in OPTIONS if name in arguments}
    return triton.compile(ast_source(kernel, arguments), target=target_of(arch), options=options)


def facts(compiled: Any) -> dict[str, int]:
    """Resources and instructions, from the binary and its assembly."""
    found = {"shared_bytes": compiled.metadata.shared}
    if "amdgcn" in compiled.asm:
        text = compiled.asm["amdgcn"]
        for name in ("vgpr_count", "vgpr_spill_count", "private_segment_fixed_size"):
            found[name] = int(re.findall(rf"\.{name}:\s+(\d+)", text)[0])
        found |= {f"coherent_{what}s": len(re.findall(rf"_{what}_dword .* sc1", text)) for what in ("load", "store")}
        return found | {"mfma": text.count("v_mfma"), "wide_loads": text.count("load_dwordx4")}
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(compiled.asm["cubin"])
        tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
        usage = subprocess.run([tool, "-res-usage", file.name], check=True, capture_output=True, text=True).stdout
    text = compiled.asm["ptx"]
    return found | {
        "registers": int(re.findall(r"REG:(\d+)", usage)[0]),
        "stack_bytes": int(re.findall(r"STACK:(\d+)", usage)[0]),
        "wgmma": text.count("wgmma.mma_async"),
        "tensor_core": text.count("tcgen05.mma"),
        "bulk_loads": text.count("cp.async.bulk.tensor"),
        "async_loads": len(re.findall(r"cp\.async\.c[ag]", text)),
        "registers_moved": text.count("setmaxnreg"),
    }


# ---- what is called --------------------------------------------------------------------------------------------------


def empty(*shape: int, dtype: torch.dtype = torch.bfloat16, device: str = "cpu") -> Tensor:
    return torch.empty(shape, dtype=dtype, device=device)


def offsets(groups: int) -> Tensor:
    return empty(groups, dtype=torch.int32)


def quantisers(experts: int = 2, tokens: int = 2080, inner: int = 5120, outer: int = 8192) -> dict[str, Call]:
    """Each quantiser on the widths of shape A; the "short" weight is of B's."""
    a, grad, weight = empty(tokens, inner), empty(tokens, outer), empty(experts, outer, inner).mT
    short, offs = empty(experts, 1408, 2048).mT, offsets(experts)
    return {
        "rowwise": lambda c: fp8.quantize_rowwise(a, candidate=c),
        "colwise_3d": lambda c: fp8.quantize_colwise_3d(weight, candidate=c),
        "colwise_per_group": lambda c: fp8.quantize_colwise_per_group(a, offs, candidate=c),
        "colwise_per_group padded": lambda c: fp8.quantize_colwise_per_group(a, offs, alignment=16, candidate=c),
        "64 groups": lambda c: fp8.quantize_colwise_per_group_dual(grad, a, offsets(64), alignment=16, candidate=c),
        "256 groups": lambda c: fp8.quantize_colwise_per_group(a, offsets(256), alignment=16, candidate=c),
        "rowwise_per_group": lambda c: fp8.quantize_rowwise_per_group(a.t(), offs, candidate=c),
        "colwise_per_group_dual": lambda c: fp8.quantize_colwise_per_group_dual(grad, a, offs, candidate=c),
        "transpose_3d_atomic": lambda c: fp8.quantize_transpose_3d_atomic(weight, candidate=c),
        "transpose_3d_reduction": lambda c: fp8.quantize_transpose_3d_reduction(weight, candidate=c),
        "transpose_3d_atomic short": lambda c: fp8.quantize_transpose_3d_atomic(short, candidate=c),
        "rowwise_colwise_per_group": lambda c: fp8.quantize_rowwise_colwise_per_group(
            a, offs, alignment=16, candidate=c
        ),
        "colwise_transpose_3d": lambda c: fp8.quantize_colwise_transpose_3d(weight, candidate=c),
        "1x128": lambda c: fp8.quantize_1x128(a, candidate=c),
        "1x128 of columns": lambda c: fp8.quantize_1x128(a.t(), candidate=c),
        "128x128": lambda c: fp8.quantize_128x128(weight.mT, candidate=c),
        "128x128 of columns": lambda c: fp8.quantize_128x128(weight, candidate=c),
        "mx": lambda c: fp8.quantize_mx(a, candidate=c),
        "mx of columns, up": lambda c: fp8.quantize_mx(weight, round_up=True, candidate=c),
    }


def fp8_products(width: int = 4096) -> dict[str, Call]:
    """Forms "rows" and "groups", with fast and with accurate sums."""
    codes = partial(empty, dtype=torch.float8_e4m3fn, device="meta")
    inverses = partial(empty, dtype=torch.float32, device="meta")
    of_rows = codes(64, width), codes(100, width, width), inverses(64), inverses(100, width), offsets(100)
    of_groups = codes(width, 128), codes(width, 128), inverses(100, width), inverses(100, width), offsets(100)
    found: dict[str, Call] = {}
    for fast in (True, False):
        sums = "fast" if fast else "accurate"
        found[f"rows {sums}"] = partial(launch_products.rows_product, *of_rows, fast)
        found[f"groups {sums}"] = partial(launch_products.groups_product, *of_groups, fast)
    return found


def of_groups(experts: int = 100, tokens: int = 64, inner: int = 512, outer: int = 256) -> dict[str, Call]:
    """Products with block scales, both passes with all of their quantisers; and rows that are permuted and padded."""
    a, b_t = empty(tokens, inner).requires_grad_(), empty(experts, outer, inner).mT.requires_grad_()
    found: dict[str, Call] = {
        scaling: partial(both_ways, block_scaled.grouped_mm, (a, b_t, offsets(experts)), scaling=scaling)
        for scaling in ("1x128", "mx")
    }
    counts = empty(8, experts, dtype=torch.int32)
    found["permute"] = lambda c: block_scaled.permute_and_pad(a, counts, 32).rows.sum().backward()
    return found


def vocabulary(rows: int = 64, columns: int = 16032) -> dict[str, Call]:
    """An eighth of Llama's, forward and backward."""
    logits, target = empty(rows, columns).requires_grad_(), empty(rows, dtype=torch.int64)
    return {"vocabulary": lambda c: vocab_parallel_cross_entropy(logits, target, start=columns).backward()}


def products(experts: int = 100) -> dict[str, Call]:
    """What a layer of stored (E, N, K) weights runs, of 16 and of 32 bits, and where no stride divides by 16."""
    found: dict[str, Call] = {}
    for what, dtype, width in (
        ("", torch.bfloat16, 4096),
        (" fp32", torch.float32, 4096),
        (" odd", torch.bfloat16, 4097),
    ):
        new = partial(empty, dtype=dtype, device="meta")
        a, b, out, offs = new(64, width), new(experts, width, width), new(64, width), offsets(experts)
        found[f"forward{what}"] = partial(grouped_launch.rows_product, a, b.mT, offs, out)
        found[f"dgrad{what}"] = partial(grouped_launch.rows_product, a, b, offs, out)
        found[f"wgrad{what}"] = partial(grouped_launch.groups_product, a.t(), out, offs, b)
    return found


def of_candidate(function: Callable[..., Any], inputs: tuple[Any, ...], candidate: int | None, **options: Any) -> Any:
    return function(*inputs, **options, candidate=candidate)


def both_ways(function: Callable[..., Any], inputs: tuple[Any, ...], candidate: int | None, **options: Any) -> None:
    result = of_candidate(function, inputs, candidate, **options)
    result = result if isinstance(result, Tensor) else result[0]
    result.backward(torch.ones_like(result))


CROSS_ENTROPY = {"label_smoothing": 0.1, "softcap": 30.0, "lse_square_scale": 1e-4, "return_z_loss": True}


def memory_savers() -> dict[str, Call]:
    """Each operator forward and backward, few rows at the widths of the real shapes."""
    moved, logits = MovedShape(256, 2048, 64), LogitsShape(8, 128256)
    wide, narrow = GroupedRows(64, 5760, 8, "equal"), GroupedRows(64, 1024, 8, "equal")
    weight = torch.ones(logits.vocabulary)
    scatter = operators.scatter_for_grouped_gemm
    return {
        "silu_mul": partial(both_ways, operators.silu_mul, RowsShape(64, 2048).pair("cpu")),
        "clamped_swiglu": partial(both_ways, operators.clamped_swiglu, RowsShape(64, 2880).interleaved("cpu")),
        "rms_norm": partial(both_ways, operators.rms_norm, RowsShape(64, 7168).weighted("cpu")),
        "rms_norm, heads": partial(both_ways, operators.rms_norm, RowsShape(64, 128).weighted("cpu")),
        "rms_norm, wide": partial(both_ways, operators.rms_norm, RowsShape(64, 16384).weighted("cpu")),
        "norm and codes": partial(both_ways, operators.rms_norm_quantize, RowsShape(64, 7168).weighted("cpu")),
        "norm and codes, blocks": partial(
            both_ways, operators.rms_norm_quantize, RowsShape(64, 7168).weighted("cpu"), scaling="1x128"
        ),
        "norm and codes, narrow": partial(
            both_ways, operators.rms_norm_quantize, RowsShape(64, 2).weighted("cpu"), scaling="1x128"
        ),
        "norm and codes, wide": partial(both_ways, operators.rms_norm_quantize, RowsShape(64, 16384).weighted("cpu")),
        "rope": partial(both_ways, operators.rope, RopeShape(16, 32, 128).inputs("cpu")),
        "rope, halves": partial(both_ways, operators.rope, RopeShape(16, 32, 128).inputs("cpu"), interleaved=False),
        "cross_entropy": partial(both_ways, operators.cross_entropy, logits.inputs("cpu")),
        "cross_entropy, all options": partial(
            both_ways, operators.cross_entropy, logits.inputs("cpu"), weight=weight, **CROSS_ENTROPY
        ),
        "padded_index_gather": partial(both_ways, operators.padded_index_gather, moved.gathered("cpu")),
        "scatter_for_grouped_gemm": partial(both_ways, scatter, moved.scattered("cpu"), host_counts=False),
        "indexed_bias_add": partial(both_ways, operators.indexed_bias_add, wide.biased("cpu")),
        "indexed_bias_add, narrow": partial(both_ways, operators.indexed_bias_add, narrow.biased("cpu")),
    }


# Model width, expert width, choices of a token: of real layers, and what needs the most registers.
SIZES = ((2048, 768, 8), (2048, 1408, 6), (2880, 2880, 4), (5120, 8192, 1))


def layer_kernels(
    dim: int, hidden: int, top_k: int, tokens: int = 64, device: str = "cpu"
) -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Every way that the MoE layer launches its kernels, what is optional there and not there: functions and inputs."""
    count = tokens * top_k
    x = torch.randn(tokens, dim, device=device).bfloat16()
    y, plus = torch.randn(2, count, dim, device=device).bfloat16()
    q, gate, up = torch.randn(3, count, hidden, device=device).bfloat16()
    weights = torch.rand(tokens, top_k, device=device)
    inverse = torch.randperm(count, device=device).view(tokens, top_k)

    def sum_of_two(y: Tensor, plus: Tensor, inverse: Tensor, candidate: int | None) -> Tensor:
        return rows.sum_rows(y, None, inverse, plus_MD=plus, candidate=candidate)

    def sum_of_two_and_dot(
        y: Tensor, plus: Tensor, weights: Tensor, inverse: Tensor, x: Tensor, candidate: int | None
    ) -> tuple[Tensor, Tensor]:
        return rows.sum_rows_and_dot(y, weights, inverse, x, plus_MD=plus, candidate=candidate)

    return {
        "spread": (rows.spread_rows, (x, None, inverse)),
        "spread float32": (rows.spread_rows, (x.float(), None, inverse, torch.bfloat16)),
        "spread weighted": (rows.spread_rows, (x, weights, inverse)),
        "spread and dot": (rows.spread_rows_and_dot, (x, weights, inverse, y)),
        "sum": (rows.sum_rows, (y, weights, inverse)),
        "sum of two": (sum_of_two, (y, plus, inverse)),
        "sum of two and dot": (sum_of_two_and_dot, (y, plus, weights, inverse, x)),
        "weighted gate": (weighted_gate.weighted_gate_backward, (q, gate, up, weights, inverse)),
    }


def moe(which: tuple[tuple[int, int, int], ...] = SIZES) -> dict[str, Call]:
    return {
        f"{name} {'x'.join(map(str, sizes))}": partial(of_candidate, *call)
        for sizes in which
        for name, call in layer_kernels(*sizes).items()
    }


PACKAGES: dict[str, Callable[[], dict[str, Call]]] = {
    "quantisers": quantisers,
    "fp8 products": fp8_products,
    "products": products,
    "block scales": of_groups,
    "vocabulary": vocabulary,
    "operators": memory_savers,
    "moe": moe,
    "moe of most choices": partial(moe, SIZES[:1]),  # which takes the most registers
}


def launched(call: Call, arch: str, every: bool) -> Iterator[tuple[int, Caught]]:
    """Candidates, and what they launch."""
    for candidate in range(MAX_CANDIDATES) if every else [None]:
        with launches_on(arch) as launches:
            try:
                call(candidate)
            except ValueError as error:
                if not str(error).startswith("candidate: "):
                    raise
                break  # the end of the table
        for each in launches:
            yield candidate or 0, each


def main(package: str, *given: str) -> None:
    packages = PACKAGES if package == "every" else [package]
    calls = {name: call for each in packages for name, call in PACKAGES[each]().items()}
    chosen = [name for name in given if name in calls] or list(calls)
    for arch in given:
        if arch in calls or arch == "all":
            continue
        for name in chosen:
            for candidate, (kernel, arguments) in launched(calls[name], arch, "all" in given):
                named = {"arch": arch, "case": name, "candidate": candidate, "kernel": kernel.__name__}
                found = facts(build(kernel, arguments, arch))
                print(json.dumps(named | {"gluon": kernel.is_gluon()} | found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
