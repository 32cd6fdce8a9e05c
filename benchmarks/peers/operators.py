"""Memory-saving operators against torch, eager and compiled, and against a copy that moves the same bytes.

Bytes are the fewest that could move: each input read once, each result written once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.peers.contest import COPY, Call, Contest
from kernels import operators
from kernels.operators.shapes import GroupedRows, MovedShape, RopeShape, RowsShape

ALIGNMENT = 128  # of groups, for a grouped matmul
Operator = Callable[..., Any]


def compiled(function: Operator, smoke: bool) -> Operator:
    """What torch makes of it by itself. A smoke test traces it and does not wait for a compiler."""
    result: Operator = torch.compile(function, backend="eager" if smoke else "inductor", dynamic=False)
    return result


def contests(device: torch.device, smoke: bool) -> Iterator[Contest]:
    gate = RowsShape(33, 40) if smoke else RowsShape(8192, 4096)
    yield from _contests("silu_mul", plain_silu_mul, gate, gate.pair(device), 3, 5, smoke)
    gate = RowsShape(33, 40) if smoke else RowsShape(4096, 2880)
    yield from _contests("clamped_swiglu", plain_clamped_swiglu, gate, gate.interleaved(device), 3, 5, smoke)
    norm = RowsShape(33, 40) if smoke else RowsShape(4096, 7168)
    yield from _contests("rms_norm", plain_rms_norm, norm, norm.weighted(device), 2, 3, smoke)
    turn = RopeShape(9, 3, 24) if smoke else RopeShape(8192, 32, 128)
    yield from _contests("rope", operators.reference.rope, turn, turn.inputs(device), 2, 2, smoke)
    rows = GroupedRows(64, 48, 4) if smoke else GroupedRows(4096, 5760, 8)
    yield from _contests("indexed_bias_add", plain_bias_add, rows, rows.biased(device), 2, 1, smoke)
    moved = MovedShape(32, 16, 4, copies=2) if smoke else MovedShape(8192, 2048, 64)
    copies = moved.copies
    yield from _contests(
        "padded_index_gather", plain_gather, moved, moved.gathered(device), 2 * copies, copies + 1, smoke
    )
    written = 1 + moved.groups * (ALIGNMENT - 1) / moved.rows
    yield from _contests(
        "scatter_for_grouped_gemm", plain_scatter, moved, moved.scattered(device), 1 + written, 2, smoke
    )


def plain_silu_mul(g: Tensor, u: Tensor) -> Tensor:
    return F.silu(g) * u


def plain_clamped_swiglu(gu: Tensor, alpha: float = 1.702, limit: float = 7.0) -> Tensor:
    g, u = gu[:, ::2].clamp(max=limit), gu[:, 1::2].clamp(-limit, limit)
    return (u + 1) * g * torch.sigmoid(alpha * g)


def plain_rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, weight.shape, weight, 1e-6)


def plain_bias_add(x: Tensor, bias: Tensor, group_ids: Tensor, offs: Tensor) -> Tensor:
    del offs
    return x + bias[group_ids]


def plain_gather(x: Tensor, index: Tensor) -> Tensor:
    return x[index]


def plain_scatter(x: Tensor, expert: Tensor, groups: int) -> Tensor:
    """Without a host read, as ours with `host_counts=False`."""
    ones = torch.ones_like(expert)
    counts = torch.zeros(groups, dtype=torch.int64, device=x.device).scatter_add(0, expert, ones)
    padded = (counts + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
    sorted_expert, order = expert.sort(stable=True)
    gaps = (padded.cumsum(0) - padded) - (counts.cumsum(0) - counts)
    place = torch.arange(len(expert), device=x.device) + gaps[sorted_expert]
    rev = torch.empty_like(order).scatter(0, order, place)
    out = x.new_zeros((len(expert) + groups * (ALIGNMENT - 1), x.shape[1]))
    return out.index_put((rev,), x)


def _contests(
    name: str, plain: Operator, shape: Any, inputs: Sequence[Any], forward: float, backward: float, smoke: bool
) -> Iterator[Contest]:
    """Forward, then forward and backward; so many bf16 values move for each element of the shape."""
    ours = getattr(operators, name)
    if name == "scatter_for_grouped_gemm":
        ours = partial(ours, alignment=ALIGNMENT, host_counts=False)
    ways: dict[str, Operator] = {"ours": ours, "torch eager": plain, "torch compiled": compiled(plain, smoke)}
    for job, run, values in ((name, _forward, forward), (f"{name} + bwd", _trained, forward + backward)):
        moved = int(2 * values * shape.elements)
        rivals: dict[str, Call] = {way: partial(run, operator, inputs) for way, operator in ways.items()}
        tolerance = 0.1 if job == "indexed_bias_add + bwd" else 0.02  # torch sums the bias' gradient in bfloat16
        yield Contest(job, str(shape), rivals, tolerance=tolerance, bytes=moved)
        yield Contest(job, str(shape), {COPY: _copy(moved, inputs[0])}, tolerance=None, bytes=moved)


def _first(result: Any) -> Tensor:
    return result if isinstance(result, Tensor) else result[0]


def _forward(operator: Operator, inputs: Sequence[Any]) -> list[Tensor]:
    with torch.no_grad():
        return [_first(operator(*inputs))]


def _trained(operator: Operator, inputs: Sequence[Any]) -> list[Tensor]:
    out = _first(operator(*inputs))
    wanted = [tensor for tensor in inputs if isinstance(tensor, Tensor) and tensor.requires_grad]
    return [out.detach(), *torch.autograd.grad(out, wanted, out.detach())]


def _copy(moved: int, like: Tensor) -> Call:
    source = torch.zeros(moved // 2, dtype=torch.uint8, device=like.device)
    target = torch.empty_like(source)
    return lambda: (target.copy_(source),)
