"""The largest offset that each kernel forms on tensors as large as can be, in all layouts, read off Triton's IR.

    python -m tests.kernels.addresses

A process of its own, because the tests define the kernels as interpreted functions. Operators run on meta tensors as on
a GPU; what they launch is compiled as far as Triton's own IR, and its addresses are followed there (`intervals.py`).
Prints a JSON object for each launch: the case, the kernel, programs, addresses, the largest offset in elements, the
lines that let an address wrap, and those of which it is argued here that they do not.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from triton._C.libtriton import ir
from triton.compiler import ASTSource, make_backend
from triton.experimental.gluon._runtime import GluonASTSource

from kernels import fp8, launch, operators
from kernels.fp8 import launch_products
from kernels.grouped import launch as grouped_launch
from kernels.moe import rows as moe_rows
from kernels.moe import weighted_gate
from kernels.operators.clamped_swiglu import _clamped_swiglu_backward
from kernels.operators.gather import _gather_backward
from kernels.operators.indexed_bias_add import _bias_gradient
from kernels.operators.scaling import scale_, scaled
from kernels.operators.scatter import _scatter_backward
from kernels.operators.silu_mul import _silu_mul_backward
from tests.kernels.intervals import Module, wrapped
from tests.kernels.targets import target_of

Caught = tuple[Any, int, dict[str, Any]]  # kernel, programs, arguments

TOKENS, WIDTH, EXPERTS, OUTER = 1 << 23, 1 << 15, 512, 1 << 13
MOST_ROWS = 1 << 28  # of a narrow matrix
DTYPES = {
    torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.uint8: "u8", torch.int32: "i32",
    torch.int64: "i64", torch.uint32: "u32", torch.float8_e4m3fn: "fp8e4nv", torch.float8_e4m3fnuz: "fp8e4b8",
}  # fmt: skip


@contextmanager
def caught(arch: str) -> Iterator[list[Caught]]:
    """Within, operators run on meta tensors as on this architecture; launches are kept, and not made."""
    found: list[Caught] = []

    def keep(prepared: Any, device: torch.device, programs: int, *arguments: Any) -> None:
        names = prepared.kernel.arg_names
        found.append((prepared.kernel, programs, dict(zip(names, arguments, strict=False)) | prepared.constants))

    answers = {"arch_of": arch, "processors_of": 132, "path_of": "triton"}
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(launch.Launch, "__call__", keep))
        stack.enter_context(mock.patch.object(launch.Operator, "__call__", lambda self, *given: self.function(*given)))
        for module in [module for name, module in sys.modules.items() if name.startswith("kernels.")]:
            for name, answer in answers.items():
                if hasattr(module, name):
                    stack.enter_context(mock.patch.object(module, name, lambda *_, answer=answer: answer))
        yield found


# ---- what is launched ------------------------------------------------------------------------------------------------


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


LAYOUTS: dict[str, Callable[..., Tensor]] = {
    "row-major": meta,
    "column-major": lambda *shape, **of: meta(*shape[:-2], shape[-1], shape[-2], **of).mT,
    # A stride of 2^31 is given to a kernel as 64 bits, and takes what it is multiplied by with it.
    "far apart": lambda *shape, **of: meta(*shape[:-1], 1 << 30, **of)[..., : 2 * shape[-1] : 2],
    "rows far apart": lambda *shape, **of: meta(*shape[:-1], 1 << 30, **of)[..., : shape[-1]],
    "far apart, column-major": lambda *shape, **of: (
        meta(*shape[:-2], shape[-1], 1 << 30, **of)[..., : 2 * shape[-2] : 2].mT
    ),
}


def calls(make: Callable[..., Tensor]) -> dict[str, Callable[[], Any]]:
    """Every public kernel on the largest tensors, laid out as `make` has it."""
    offs = meta(EXPERTS, dtype=torch.int32)
    index, expert = meta(TOKENS, dtype=torch.int64), meta(TOKENS, dtype=torch.int64)
    inverse, choices = meta(TOKENS // 8, 8, dtype=torch.int64), meta(TOKENS // 8, 8, dtype=torch.float32)

    def x(width: int = WIDTH) -> Tensor:
        return make(TOKENS, width)

    def weight() -> Tensor:
        return make(EXPERTS, WIDTH, OUTER)

    def quantised() -> tuple[Tensor, ...]:
        codes = torch.float8_e4m3fn
        return meta(TOKENS, WIDTH, dtype=codes), meta(EXPERTS, OUTER, WIDTH, dtype=codes)

    def floats(*shape: int) -> Tensor:
        return meta(*shape, dtype=torch.float32)

    return {
        "quantize_rowwise": lambda: fp8.quantize_rowwise(x()),
        "quantize_colwise_3d": lambda: fp8.quantize_colwise_3d(weight()),
        "quantize_rowwise_per_group": lambda: fp8.quantize_rowwise_per_group(x().t(), offs),
        "quantize_colwise_per_group": lambda: fp8.quantize_colwise_per_group(x(), offs),
        "quantize_colwise_per_group padded": lambda: fp8.quantize_colwise_per_group(x(), offs, alignment=16),
        "quantize_colwise_per_group fp32": lambda: fp8.quantize_colwise_per_group(
            make(TOKENS, WIDTH, dtype=torch.float32), offs
        ),
        "quantize_colwise_per_group_dual": lambda: fp8.quantize_colwise_per_group_dual(x(), x(OUTER), offs),
        "quantize_transpose_3d_atomic": lambda: fp8.quantize_transpose_3d_atomic(weight()),
        "quantize_transpose_3d_atomic short": lambda: fp8.quantize_transpose_3d_atomic(make(EXPERTS, 1 << 18, 1024)),
        "grouped rows": lambda: grouped_launch.rows_product(x(), weight(), offs, meta(TOKENS, OUTER), None),
        "grouped groups": lambda: grouped_launch.groups_product(
            x().t(), x(OUTER), offs, meta(EXPERTS, WIDTH, OUTER), None
        ),
        "grouped groups pointers": lambda: grouped_launch.groups_product(
            x().t(), x(OUTER - 1), offs, meta(EXPERTS, WIDTH, OUTER - 1), None
        ),
        "clear": lambda: (
            grouped_launch.clear_rows(meta(TOKENS, WIDTH), offs),
            grouped_launch.clear_groups(meta(EXPERTS, WIDTH, OUTER), offs),
        ),
        "fp8 rows": lambda: [
            launch_products.rows_product(*quantised(), floats(TOKENS), floats(EXPERTS, OUTER), offs, fast)
            for fast in (True, False)
        ],
        "fp8 groups": lambda: [
            launch_products.groups_product(
                quantised()[0].view(WIDTH, TOKENS), quantised()[0].view(WIDTH, TOKENS)[:OUTER],
                floats(EXPERTS, WIDTH), floats(EXPERTS, OUTER), offs, fast,
            )
            for fast in (True, False)
        ],
        "silu_mul": lambda: (operators.silu_mul(x(), x()), _silu_mul_backward(x(), x(), x(), None)),
        "clamped_swiglu": lambda: (
            operators.clamped_swiglu(x()), _clamped_swiglu_backward(x(WIDTH // 2), x(), 1.7, 7.0, None)
        ),
        "indexed_bias_add": lambda: (
            operators.indexed_bias_add(x(), make(EXPERTS, WIDTH), expert, offs),
            _bias_gradient(x(), offs, torch.bfloat16, None),
            _bias_gradient(x(1024), offs, torch.bfloat16, None),
        ),
        "padded_index_gather": lambda: (
            operators.padded_index_gather(x(), index),
            _gather_backward(x(), index, TOKENS, None),
            _gather_backward(make(TOKENS, 16), index, MOST_ROWS, None),
        ),
        "scatter_for_grouped_gemm": lambda: (
            operators.scatter_for_grouped_gemm(x(), expert, EXPERTS // 2, 128, 1, False),
            _scatter_backward(x(), index, None),
        ),
        "cross_entropy": lambda: (
            operators.cross_entropy(x(), index),
            operators.cross_entropy(x(), index, weight=floats(WIDTH), label_smoothing=0.1),
            scaled(x(), floats(), None),
            scale_(x(), floats(), None),
        ),
        "moe rows": lambda: (
            moe_rows.spread_rows(make(TOKENS // 8, WIDTH), choices, inverse),
            moe_rows.spread_rows_and_dot(make(TOKENS // 8, WIDTH), choices, inverse, x()),
            moe_rows.sum_rows(x(), choices, inverse, plus_MD=x()),
            moe_rows.sum_rows_and_dot(x(), choices, inverse, make(TOKENS // 8, WIDTH)),
        ),
        "weighted gate": lambda: weighted_gate.weighted_gate_backward(x(), x(), x(), choices, inverse),
    }  # fmt: skip


# ---- its addresses ---------------------------------------------------------------------------------------------------


def type_of(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"*{DTYPES[value.dtype]}"
    if hasattr(value, "block_shape"):
        layout = f",{value.layout!r}" if hasattr(value, "layout") else ""
        return f"tensordesc<{DTYPES[value.base.dtype]}{list(value.block_shape)}{layout}>"
    return "fp32" if isinstance(value, float) else "i32" if -(2**31) <= value < 2**31 else "i64"


def ir_of(kernel: Any, arguments: dict[str, Any], arch: str) -> str:
    """Triton's IR of a launch, specialised as the launcher does it, with all functions within one."""
    constants, signature, attributes = {}, {}, {}
    for place, parameter in enumerate(kernel.params):
        value, specialised = arguments[parameter.name], not parameter.do_not_specialize
        if parameter.is_constexpr or value is None or (specialised and type(value) is int and value == 1):
            constants[(place,)], signature[parameter.name] = value, "constexpr"
            continue
        signature[parameter.name] = type_of(value)
        if isinstance(value, Tensor) or (specialised and type(value) is int and value % 16 == 0):
            attributes[(place,)] = [["tt.divisibility", 16]]
    language = GluonASTSource if kernel.is_gluon() else ASTSource
    source = language(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    target = target_of(arch)
    backend = make_backend(target)
    asked = {"num_warps": arguments.get("num_warps", 4), "sanitize_overflow": False, **source.parse_options()}
    options, context, stages = backend.parse_options(asked), ir.context(), {}
    ir.load_dialects(context)
    backend.load_dialects(context)
    functions = backend.get_codegen_implementation(options)
    module = source.make_ir(target, options, functions, backend.get_module_map(), context)
    backend.add_stages(stages, options, source.language)
    return str(stages["ttgir" if kernel.is_gluon() else "ttir"](module, {}))


# Products of which intervals alone say that they may pass their type, and what they do not pass: an argument of the
# kernel, a number, or (None) what the type holds.
ARGUED: dict[tuple[str, str], str | int | None] = {
    # A chunk lies within its group, and a group within the rows.
    ("columns.py", "first = base + chunk * height"): "rows",
    ("columns.py", "c_first = base + c * height"): "rows",
    ("ring_chunks.py", "first = base + number * height"): "rows",
    # Chunks of all groups are those of all rows, and one more a group; items are chunks times stripes.
    ("ring.py", "for item in range(gl.program_id(0), table.chunks * table.all_stripes, gl.num_programs(0)):"): None,
    ("ring_chunks.py", "block = item // (table.chunks * CONFIG.stripes)"): None,
    # One term of the sum that tells a row is not zero.
    (
        "rows.py",
        "x_RC = tl.load(x_ptr + row_R[:, None] * x_row + column_C[None, :] * x_column, mask=inside_RC, other=0.0)",
    ): TOKENS << 33,
    # Item number `item` of a persistent kernel: what it is divided into is no more than it.
    ("ring_chunks.py", "stripes = gl.minimum(table.all_stripes - block * CONFIG.stripes, CONFIG.stripes)"): "width",
    ("ring_chunks.py", "in_block = item - block * (table.chunks * CONFIG.stripes)"): None,
    ("ring_chunks.py", "stripe = block * CONFIG.stripes + (in_block - place * stripes)"): "width",
    ("ring_chunks.py", "pair0 = stripe * (CONFIG.width // 2)"): "width",
    # A tile begins within its matrix.
    ("rows.py", "first_row = start + down * H"): "rows",
    ("rows.py", "first_column = across * W"): "outer",
    ("groups.py", "column_W = across * W + tl.arange(0, W)"): "outer",
    ("products.py", "first_row = start + down * H"): "rows",
    ("products.py", "first_column = across * W"): "outer",
    ("products.py", "x_HD = a_descriptor.load([down * H, p])"): "height",
    ("products.py", "x_HD = a_descriptor.load([first_row, k])"): "rows",
    ("products.py", "y_WD = b_descriptor.load([across * W, p])"): "width",
    ("products.py", "y_WD = tl.reshape(b_descriptor.load([group, first_column, k]), (W, D))"): "outer",
    ("specialised.py", "row = start + (2 * down + half) * H"): "rows",
    ("specialised.py", "across * W, gl.where(is_group, outer, 0), H, W, MMA,"): "outer",
}


def main() -> None:
    seen = set()
    for arch, layout in product(("sm_90", "gfx942"), LAYOUTS):
        for name, call in calls(LAYOUTS[layout]).items():
            with caught(arch) as launches:
                call()
            for kernel, programs, arguments in launches:
                numbers = {name: value for name, value in arguments.items() if type(value) is int}
                told = [str(value.dtype) if isinstance(value, Tensor) else value for value in arguments.values()]
                if (key := f"{kernel.fn.__module__} {kernel.fn.__name__} {programs} {told}") in seen:
                    continue
                seen.add(key)
                # Where an address is made of numbers in memory, they are rows, or ends of groups.
                found_in_memory = -1, max(TOKENS, numbers.get("rows", 0))
                module = Module(ir_of(kernel, arguments, arch), numbers, programs, found_in_memory, ARGUED)
                accesses = module.run()
                found = {
                    "case": f"{name}, {layout}, {arch}",
                    "kernel": f"{kernel.fn.__module__}.{kernel.fn.__name__}",
                    "programs": programs,
                    "addresses": len(accesses),
                    "largest": max((access.largest for access in accesses), default=0),
                    "wraps": list(wrapped(accesses)),
                    "argued": sorted(module.used),
                }
                print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
