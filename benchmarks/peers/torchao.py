"""Ours beside torchao's prototype of float8 training: six of its quantisers and the grouped matmul, where it can run.

Both go through torchao's own names and arguments (`kernels.compat.torchao`), at the shapes of docs/h200.md. torchao
tunes each kernel for each shape when it first sees it, which is in no time here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from benchmarks.peers.contest import Call, Contest
from benchmarks.peers.matmuls import FP8_NOISE, SHAPES, SMOKE, trained
from kernels.compat import torchao as ours

_ROOM = "torchao.prototype.moe_training"
MODULES = {
    "triton_fp8_rowwise_2d_scale_and_cast": "kernels.float8_rowwise",
    "triton_fp8_colwise_3d_scale_and_cast": "kernels.float8_rowwise",
    "triton_fp8_rowwise_3d_transpose_rhs": "kernels.float8_rowwise",
    "triton_fp8_rowwise_3d_transpose_rhs_fused_reduction": "kernels.float8_rowwise",
    # Its row-wise kernel per group writes wrong places (torchao 0.18), so there is nothing to race.
    "triton_fp8_per_group_colwise_scales": "kernels.jagged_float8_scales",
    "triton_fp8_per_group_colwise_scales_dual": "kernels.jagged_float8_scales",
}
MATMUL = "_to_fp8_rowwise_then_scaled_grouped_mm"


def theirs(module: str, device: torch.device) -> ModuleType | None:
    """A module of torchao's prototype; None where it is not installed or could not run."""
    if device.type != "cuda":
        return None
    try:
        return importlib.import_module(f"{_ROOM}.{module}")
    except ImportError:
        return None


def matmul(device: torch.device) -> Callable[..., Tensor] | None:
    """Its grouped matmul in float8, forward and backward: (a, b, offs=). It cannot pad groups (0.18)."""
    found = getattr(theirs("fp8_grouped_mm", device), MATMUL, None)
    return None if found is None else partial(found, pad_token_groups_for_grouped_mm=False)


def contests(device: torch.device, smoke: bool) -> Iterator[Contest]:
    for shape in SMOKE if smoke else SHAPES:
        a, w, offs = (each.detach() for each in shape.inputs(device))
        grad = torch.randn(shape.rows, shape.outer, device=device, dtype=a.dtype)
        a_columns, grad_columns = (each.t().contiguous().t() for each in (a, grad))  # as torchao's kernels want them
        for name, module in MODULES.items():
            if "3d" in name:
                given: tuple[Any, ...] = (w.mT,)
            elif "per_group" in name:
                given = (grad_columns, a_columns, offs) if name.endswith("dual") else (a_columns, offs)
            else:
                given = (a,)
            elements = sum(each.numel() for each in given if each is not offs)
            found: dict[str, Any] = {
                "ours": getattr(ours, name),
                "torchao": getattr(theirs(module, device), name, None),
            }
            rivals: dict[str, Call] = {
                who: partial(function, *given, torch.float8_e4m3fn, True) for who, function in found.items() if function
            }
            yield Contest(name.removeprefix("triton_fp8_"), str(shape), rivals, 0.02, bytes=3 * elements)
        a, w, offs = shape.inputs(device)
        with torch.no_grad():
            w *= shape.inner**-0.5
        products = {"ours": getattr(ours, MATMUL), "torchao": matmul(device)}
        rivals = {
            who: partial(trained, lambda a, b, offs, f=function: f(a, b, offs=offs), a, w, offs, grad)
            for who, function in products.items() if function
        }  # fmt: skip
        yield Contest("fp8 matmul + backward", str(shape), rivals, FP8_NOISE, flop=3 * shape.flop)
