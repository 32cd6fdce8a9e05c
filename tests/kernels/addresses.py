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
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor
from triton._C.libtriton import ir
from triton.compiler import make_backend

from kernels import block_scaled, fp8, launch, operators
from kernels.block_scaled import launch as block_launch
from kernels.block_scaled.reference import padded_blocks
from kernels.fp8 import launch_products
from kernels.grouped import launch as grouped_launch
from kernels.moe import rows as moe_rows
from kernels.moe import weighted_gate
from kernels.operators.clamped_swiglu import _clamped_swiglu_backward
from kernels.operators.cross_entropy_rows import gradient_, gradient_of, losses_of
from kernels.operators.gather import sum_rows_by
from kernels.operators.indexed_bias_add import _bias_gradient
from kernels.operators.rms_norm import rms_norm_backward
from kernels.operators.scaling import scale_, scaled
from kernels.operators.scatter import _scatter_backward
from kernels.operators.silu_mul import _silu_mul_backward
from kernels.operators.totals import kept_rows, total_loss, weight_ratio
from kernels.parallel.vocab_cross_entropy import count_gradient, count_row_parts
from tests.kernels.intervals import Module, wrapped
from tests.kernels.targets import ast_source, kind_of, target_of

Caught = tuple[Any, int, dict[str, Any]]  # kernel, programs, arguments

ARCHITECTURES = "sm_90", "gfx942"


class Sizes(NamedTuple):
    tokens: int
    width: int
    experts: int
    outer: int


MOST = (1 << 31) - (1 << 16)  # what 32 bits hold, and a block past it
MOST_JAGGED = 1 << 29  # rows of groups: 32 bits hold the sum of three
MOST_ROWS = 1 << 28  # of a narrow matrix
# What the checks of arguments let through, grids of 2^31 programs and 2^63 elements aside.
SIZES = {
    "large": Sizes(1 << 23, 1 << 15, 512, 1 << 13),
    "many rows": Sizes(1 << 32, 16, 8, 16),
    "many rows, 32 bits": Sizes(MOST, 16, 8, 16),
    "wide": Sizes(32, 1 << 32, 8, 16),
    "wide groups": Sizes(1 << 23, 1 << 19, 1 << 13, 16),
    "wide weights": Sizes(1 << 23, 16, 1 << 13, 1 << 19),
}


@contextmanager
def caught(arch: str, candidate: int) -> Iterator[list[Caught]]:
    """Within, operators run on meta tensors as on this architecture with so many a candidate of each table, or the last
    one; launches are kept, and not made."""
    found: list[Caught] = []

    def keep(prepared: Any, device: torch.device, programs: int, *arguments: Any) -> None:
        names = prepared.kernel.arg_names
        found.append((prepared.kernel, programs, dict(zip(names, arguments, strict=False)) | prepared.constants))

    answers = {
        "arch_of": lambda *_: arch, "processors_of": lambda *_: 132, "path_of": lambda *_: "triton",
        "pick": lambda configs, _: configs[min(candidate, len(configs) - 1)],
    }  # fmt: skip
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(launch.Launch, "__call__", keep))
        stack.enter_context(mock.patch.object(launch.Operator, "__call__", lambda self, *given: self.function(*given)))
        for module in [module for name, module in sys.modules.items() if name.startswith("kernels.")]:
            for name, answer in answers.items():
                if hasattr(module, name):
                    stack.enter_context(mock.patch.object(module, name, answer))
            for planned in list(vars(module).values()):
                if hasattr(planned, "cache_clear"):
                    planned.cache_clear()
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
DENSE = "row-major", "column-major"


def calls(
    make: Callable[..., Tensor], tokens: int, width: int, experts: int, outer: int
) -> dict[str, Callable[[], Any]]:
    """Every public kernel on tensors of these sizes, laid out as `make` has it."""
    offs = meta(experts, dtype=torch.int32)
    index, expert = meta(tokens, dtype=torch.int64), meta(tokens, dtype=torch.int64)
    inverse, choices = meta(tokens // 8, 8, dtype=torch.int64), meta(tokens // 8, 8, dtype=torch.float32)
    jagged, narrow = min(tokens, MOST_JAGGED), min(width, MOST_JAGGED)
    targets = make(tokens, 16, dtype=torch.int64)[:, 0]
    target = targets[:MOST]  # a grid of programs for it

    def x(columns: int = width) -> Tensor:
        return make(tokens, columns)

    def ragged(columns: int = narrow) -> Tensor:
        return make(jagged, columns)

    def logits() -> Tensor:
        return make(min(tokens, MOST), min(width, MOST))

    def weight() -> Tensor:
        return make(experts, narrow, outer)

    def codes(*shape: int) -> Tensor:
        return meta(*shape, dtype=torch.float8_e4m3fn)

    def floats(*shape: int) -> Tensor:
        return meta(*shape, dtype=torch.float32)

    def scales(mx: bool, height: int, width: int) -> Tensor:
        if mx:
            return meta(height, -(-width // 32), dtype=torch.float8_e8m0fnu)
        return floats(-(-width // 128), height).mT

    def rows_of(mx: bool) -> tuple[Tensor, Tensor]:
        return codes(jagged, narrow), scales(mx, jagged, narrow)

    def columns_of(mx: bool, height: int) -> tuple[Tensor, Tensor]:
        padded = padded_blocks(jagged, experts) * 128
        return codes(height, padded), scales(mx, height, padded)

    def weight_of(mx: bool) -> tuple[Tensor, Tensor]:
        in_squares = floats(experts, -(-outer // 128), -(-narrow // 128))
        of_rows = meta(experts, outer, -(-narrow // 32), dtype=torch.float8_e8m0fnu)
        return codes(experts, outer, narrow), of_rows if mx else in_squares

    return {
        "quantize_rowwise": lambda: fp8.quantize_rowwise(x()),
        "quantize_colwise_3d": lambda: fp8.quantize_colwise_3d(weight()),
        "quantize_rowwise_per_group": lambda: fp8.quantize_rowwise_per_group(ragged().t(), offs),
        "quantize_colwise_per_group": lambda: fp8.quantize_colwise_per_group(ragged(), offs),
        "quantize_colwise_per_group padded": lambda: fp8.quantize_colwise_per_group(ragged(), offs, alignment=16),
        "quantize_colwise_per_group chunks": lambda: fp8.quantize_colwise_per_group(make(1 << 14, 1 << 29), offs),
        "quantize_colwise_per_group_dual": lambda: fp8.quantize_colwise_per_group_dual(ragged(), ragged(outer), offs),
        "quantize_transpose_3d_atomic": lambda: fp8.quantize_transpose_3d_atomic(weight()),
        "quantize_transpose_3d_atomic short": lambda: fp8.quantize_transpose_3d_atomic(make(experts, outer, 1024)),
        "quantize in blocks": lambda: (fp8.quantize_1x128(x()), fp8.quantize_mx(x()), fp8.quantize_128x128(weight())),
        "grouped rows": lambda: grouped_launch.rows_product(ragged(), weight(), offs, meta(jagged, outer), None),
        "grouped groups": lambda: grouped_launch.groups_product(
            ragged().t(), ragged(outer), offs, meta(experts, narrow, outer), None
        ),
        "grouped groups pointers": lambda: grouped_launch.groups_product(
            ragged().t(), ragged(outer - 1), offs, meta(experts, narrow, outer - 1), None
        ),
        "clear": lambda: (
            grouped_launch.clear_rows(meta(jagged, narrow), offs),
            grouped_launch.clear_groups(meta(experts, narrow, outer), offs),
        ),
        "fp8 rows": lambda: [
            launch_products.rows_product(
                codes(jagged, narrow), codes(experts, outer, narrow), floats(jagged), floats(experts, outer), offs, fast
            )
            for fast in (True, False)
        ],
        "fp8 groups": lambda: [
            launch_products.groups_product(
                codes(narrow, jagged), codes(outer, jagged), floats(experts, narrow), floats(experts, outer), offs, fast
            )
            for fast in (True, False)
        ],
        "block scales": lambda: [
            (
                block_launch.quantize(ragged(), offs, rows_of(mx), columns_of(mx, narrow), mx, False),
                block_launch.rows_product(rows_of(mx), weight_of(mx), offs, meta(jagged, outer)),
                block_launch.groups_product(
                    columns_of(mx, outer), columns_of(mx, narrow), offs, jagged, meta(experts, outer, narrow)
                ),
            )
            for mx in (False, True)
        ],
        "permute and pad": lambda: block_scaled.permute_and_pad(
            ragged(), make(4, max(experts // 16, 1), dtype=torch.int32), 128
        ),
        "silu_mul": lambda: (operators.silu_mul(x(), x()), _silu_mul_backward(x(), x(), x(), None)),
        "clamped_swiglu": lambda: (
            operators.clamped_swiglu(x()), _clamped_swiglu_backward(x(width // 2), x(), 1.7, 7.0, None)
        ),
        "rms_norm": lambda: [
            (operators.rms_norm(each, of), rms_norm_backward(each, each, of, floats(len(each)), 0.0, True, None))
            for each, of in ((x(), meta(width)), (x(16), meta(16)))
        ],
        "rms_norm_quantize": lambda: [
            operators.rms_norm_quantize(each, of, scaling=scaling)
            for each, of in ((x(), meta(width)), (x(16), meta(16)))
            for scaling in ("rowwise", "1x128")
        ],
        "rope": lambda: [
            operators.rope(
                x().unflatten(0, (4, -1)).unflatten(-1, (-1, 16)), meta(tokens // 4, pairs, 2), interleaved=interleaved
            )
            for pairs, interleaved in ((8, True), (8, False), (3, True))
        ],
        "indexed_bias_add": lambda: (
            operators.indexed_bias_add(x(), make(experts, width), expert, offs),
            operators.indexed_bias_add(x(), make(experts, width), expert.int(), offs),
            _bias_gradient(x(), offs.long(), torch.bfloat16, None),
            _bias_gradient(x(), offs, torch.bfloat16, None),
            _bias_gradient(x(1024), offs, torch.bfloat16, None),
        ),
        "padded_index_gather": lambda: (
            operators.padded_index_gather(x(), index),
            sum_rows_by(x(), index, min(tokens, MOST_ROWS), None),
            sum_rows_by(make(tokens, 16), index, MOST_ROWS, None),
        ),
        "scatter_for_grouped_gemm": lambda: (
            operators.scatter_for_grouped_gemm(ragged(), meta(jagged, dtype=torch.int64), experts // 2, 128, 1, False),
            _scatter_backward(x(), index, None),
        ),
        "cross_entropy": lambda: (
            losses_of(logits(), target, None, -100, None),
            gradient_of(logits(), target, None, -100, None),
            gradient_(logits(), target, None, -100, None),
            gradient_(logits(), target, None, -100, None, make(1, min(width, MOST))[0], floats(), 0.1),
            weight_ratio(targets, make(1, min(width, MOST))[0], floats(), -100),
            kept_rows(targets, -100),
            total_loss(floats(tokens), floats()),
            scaled(x(), floats(), None),
            scale_(x(), floats(), None),
            scale_(x(), floats(tokens), None),
        ),
        "split vocabulary": lambda: (
            count_row_parts(logits(), target, 0, -100),
            count_gradient(logits(), target, floats(3, len(target)), floats(len(target)), 0),
        ),
        "moe rows": lambda: (
            moe_rows.spread_rows(make(tokens // 8, width), choices, inverse),
            moe_rows.spread_rows_and_dot(make(tokens // 8, width), choices, inverse, x()),
            moe_rows.sum_rows(x(), choices, inverse, plus_MD=x()),
            moe_rows.sum_rows_and_dot(x(), choices, inverse, make(tokens // 8, width)),
        ),
        "weighted gate": lambda: weighted_gate.weighted_gate_backward(x(), x(), x(), choices, inverse),
    }  # fmt: skip


# ---- its addresses ---------------------------------------------------------------------------------------------------


def ir_of(kernel: Any, arguments: dict[str, Any], arch: str) -> str:
    """Triton's IR of a launch, with all functions within one."""
    source, target = ast_source(kernel, arguments), target_of(arch)
    backend = make_backend(target)
    asked = {"num_warps": arguments.get("num_warps", 4), "sanitize_overflow": False, **source.parse_options()}
    options, context, stages = backend.parse_options(asked), ir.context(), {}
    ir.load_dialects(context)
    backend.load_dialects(context)
    functions = backend.get_codegen_implementation(options)
    module = source.make_ir(target, options, functions, backend.get_module_map(), context)
    backend.add_stages(stages, options, source.language)
    return str(stages["ttgir" if kernel.is_gluon() else "ttir"](module, {}))


# Lines whose numbers, by intervals alone, may pass their type, and what they do not pass: arguments of the kernel, a
# number, or (None) what the type holds.
ARGUED: dict[tuple[str, str], str | int | None] = {
    # A chunk lies within its group, and a group within the rows.
    ("columns.py", "first = base + chunk * height"): "rows",
    ("columns.py", "c_first = base + c * height"): "rows",
    ("ring_chunks.py", "first = base + number * height"): "rows",
    # Groups that are not empty have a row for each chunk.
    ("ring_chunks.py", "chunks_G = gl.associative_scan(gl.where(is_group_G, chunks_G, 0), 0, _add)"): "rows",
    # Chunks of all groups are those of all rows, and one more a group; items are chunks times stripes.
    ("ring.py", "for item in range(gl.program_id(0), table.chunks * table.all_stripes, gl.num_programs(0)):"): None,
    ("ring_chunks.py", "block = item // (table.chunks * CONFIG.stripes)"): None,
    # Counts of keys add up to all of them.
    ("counting.py", "before_B = tl.sum(tl.where((chunk_K < chunk)[:, None], counts_KB, 0), 0)"): "count",
    ("counting.py", "before_B += tl.sum(counts_FB, 0)"): "count",
    ("counting.py", "return tl.sum(counts_KB, 0), before_B"): "count",
    ("lists.py", "first_B = tl.cumsum(all_B, 0) - all_B + before_B"): "count",
    # A list ends within all places.
    (
        "lists.py",
        "sum_C = _sum_places(x_ptr, order_ptr, start, start + asked, column_C, width, x_row, x_column, R, C)",
    ): ("count"),
    # One term of the sum is not zero.
    (
        "lists.py",
        "from_R = tl.sum(tl.where(rank_P[:, None] == rank_R[None, :], place_P[:, None], 0), 0).to(tl.int64)",
    ): "count",
    # No more groups end before a slot than there are.
    ("columns.py", "group += tl.sum(before.to(tl.int32), 0)"): "groups",
    # Where groups end is below 2^31, as it is told in 32 bits.
    ("scatter.py", "ends_B = tl.cumsum(ks_B, 0)"): MOST,
    ("scatter.py", "first_S = tl.gather(ends_B - ks_B + before_B, key_S, 0)"): MOST,
    # Item number `item` of a persistent kernel: what it is divided into is no more than it.
    ("ring_chunks.py", "stripes = gl.minimum(table.all_stripes - block * CONFIG.stripes, CONFIG.stripes)"): 64,
    ("ring_chunks.py", "in_block = item - block * (table.chunks * CONFIG.stripes)"): None,
    (
        "ring_chunks.py",
        "stripe = block * CONFIG.stripes + (in_block - place * stripes)",
    ): "(width + width2) // 32",
    ("quantize.py", "row_R = start + (block - first) * R + tl.arange(0, R)"): "rows + 128",
    # A block has a row.
    ("quantize.py", "return tl.cumsum(tl.cdiv(tl.maximum(ends_G - starts_G, 0), SIZE), 0)"): "rows",
    # A tile begins within its matrix, and ends a block behind it at most.
    ("rows.py", "first_row = start + down * H"): "rows",
    ("rows.py", "first_column = across * W"): "outer",
    ("groups.py", "row_H = down * H + tl.arange(0, H)"): "inner + 256",
    ("groups.py", "column_W = across * W + tl.arange(0, W)"): "outer + 256",
    ("products.py", "first_row = start + down * H"): "rows",
    ("products.py", "first_column = across * W"): "outer",
    ("products.py", "row_H = down * H + tl.arange(0, H)"): "height + 256",
    ("products.py", "column_W = across * W + tl.arange(0, W)"): "width + 256",
    ("products.py", "x_HD = a_descriptor.load([down * H, p])"): "height",
    ("products.py", "x_HD = a_descriptor.load([first_row, k])"): "rows",
    ("products.py", "y_WD = b_descriptor.load([across * W, p])"): "width",
    ("products.py", "y_WD = tl.reshape(b_descriptor.load([group, first_column, k]), (W, D))"): "outer",
    ("specialised.py", "row = start + (2 * down + half) * H"): "rows",
    ("specialised.py", "row = (2 * down + half) * H"): "height",
    ("specialised.py", "across * W, gl.where(is_group, outer, 0), H, W, MMA,"): "outer",
    ("specialised.py", "gl.where(start < end, height, 0), across * W, gl.where(start < end, width, 0), H, W, MMA,"): (
        "height + width"
    ),
    # Tiles of all groups are fewer than elements of the result by 2^12 and more.
    ("rows.py", "last_G = tl.cumsum(tiles_G, 0)"): MOST,
    ("products.py", "last_G = tl.cumsum(tl.cdiv(tl.maximum(ends_G - starts_G, 0), H) * wide, 0)"): MOST,
    (
        "rows.py",
        "for tile in tl.range(tl.program_id(0), tl.sum(tiles_G, 0), tl.num_programs(0), flatten=CONFIG.flatten):",
    ): (MOST),
    ("specialised.py", "last += gl.cdiv(end - start, H) * wide"): MOST,
    ("specialised.py", "down, across = place(tile - first, gl.cdiv(end - start, H), wide, BAND)"): MOST,
    ("specialised.py", "down, across = place(tile - first, gl.cdiv(end - start, 2 * H), wide, BAND)"): MOST,
    ("products.py", "last_G = block_ends(offs_ptr, groups, rows, H, GROUPS) * wide"): MOST,
    (
        "products.py",
        "down, across = place(tile - first, tl.maximum(tl.cdiv(end - start, H), 1), wide, CONFIG.band)",
    ): MOST,
    (
        "products.py",
        "tile - (passed >> 32).to(tl.int32), tl.maximum(tl.cdiv(end - start, H), 1), wide, CONFIG.band",
    ): MOST,
    ("tiles.py", "within = index - band * (BAND * wide)"): MOST,
    ("tiles.py", "rows = min(high - first, BAND)  # Gluon, which calls this too, has no tl.minimum"): 1 << 24,
    ("tiles.py", "return first + within % rows, within // rows"): 1 << 24,
    ("specialised.py", "tile += gl.num_programs(0)"): MOST,
    ("specialised.py", "group += 1"): "groups + 1",
    # Of a maximum the low half, a group, is taken.
    ("products.py", "group = passed.to(tl.int32)"): "groups",
}


class Asked(NamedTuple):
    """A launch whose addresses are followed; what is of one `kind` is compiled to the same."""

    case: str
    kernel: Any
    programs: int
    arguments: dict[str, Any]
    arch: str
    tokens: int
    kind: str


def launches() -> Iterator[Asked]:
    """Of all calls with all sizes in all layouts, and all candidates of configurations: each launch once."""
    seen = set()
    for arch, size, layout, candidate in product(ARCHITECTURES, SIZES, LAYOUTS, range(launch.MAX_CANDIDATES)):
        # What is larger still and lies apart passes 2^63 bytes.
        if (size != "large" and (layout not in DENSE or candidate)) or (candidate and layout.startswith("far")):
            continue
        for name, call in calls(LAYOUTS[layout], *SIZES[size]).items():
            with caught(arch, candidate) as found:
                call()
            for kernel, programs, arguments in found:
                if programs >= 1 << 31:  # the driver refuses that grid
                    continue
                told = [str(value.dtype) if isinstance(value, Tensor) else value for value in arguments.values()]
                name_of_kernel = f"{kernel.fn.__module__}.{kernel.fn.__name__}"
                if (key := f"{name_of_kernel} {programs} {told}") not in seen:
                    seen.add(key)
                    kind = f"{arch} {name_of_kernel} {kind_of(kernel, arguments)}"
                    yield Asked(
                        f"{name}, {size}, {layout}, {arch}", kernel, programs, arguments, arch, SIZES[size].tokens, kind
                    )


def module_of(asked: Asked, text: str) -> Module:
    numbers = {name: value for name, value in asked.arguments.items() if type(value) is int}
    # Where an address is made of numbers in memory, they are rows, classes, or ends of groups.
    most = [
        numbers[name] for name in ("rows", "count", "source_rows", "codes", "vocabulary", "classes") if name in numbers
    ]
    return Module(text, numbers, asked.programs, (-1, max(most, default=asked.tokens)), ARGUED)


def main() -> None:
    texts: dict[str, str] = {}
    for asked in launches():
        if asked.kind not in texts:
            texts[asked.kind] = ir_of(asked.kernel, asked.arguments, asked.arch)
        module = module_of(asked, texts[asked.kind])
        accesses = module.run()
        found = {
            "case": asked.case,
            "kernel": f"{asked.kernel.fn.__module__}.{asked.kernel.fn.__name__}",
            "programs": asked.programs,
            "addresses": len(accesses),
            "largest": max((access.largest for access in accesses), default=0),
            "wraps": list(wrapped(accesses)),
            "argued": sorted(module.used),
        }
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
