"""Rotary positions: pairs of a head's columns turned by an angle that grows with the position, in one pass.

    (a, b) -> (a * cos - b * sin,  a * sin + b * cos)
    interleaved: pairs are columns (0, 1), (2, 3), …     halves: columns (0, P), (1, P + 1), …

The backward pass turns back, by the same kernel. fp32 inside, one rounding at the store: a cast in the middle would be
left out by a compiler's fusion, so that compiled and eager differ by what it rounds (torchtitan #2196). Columns from
2 P on are copied (partial rotary). Saved for backward: the table. Source: Su et al. (arXiv 2104.09864); halves as in
Hugging Face's Llama and Liger's `rope.py`, neighbours as in torchtitan and DeepSeek-V3.

Shape suffixes: B sequences, S positions, H heads of a program, D columns of a head, P pairs.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from kernels.arguments import require_device, require_floats
from kernels.hardware import arch_of
from kernels.jit import jit, path_of, tl
from kernels.launch import Launch, cdiv, operator, pick, saving
from kernels.operators.configs import TileConfig, rope_candidates
from kernels.rounding import rounded

MOST_PAIRS = 1 << 14  # that a program holds with their columns; a head of more is turned by torch's operators


def reference(x: Tensor, table: Tensor, *, interleaved: bool = True, inverse: bool = False) -> Tensor:
    """The truth, differentiable in x: x (B, S, H, D), table (S, P, 2) or (B, S, P, 2) -> (B, S, H, D) in x's dtype."""
    pairs, wide = table.shape[-2], torch.promote_types(x.dtype, torch.float32)
    turned, rest = x[..., : 2 * pairs].to(wide), x[..., 2 * pairs :]
    a, b = turned.unflatten(-1, (pairs, 2)).unbind(-1) if interleaved else turned.chunk(2, -1)
    cos, sin = table.detach().to(wide).unsqueeze(-3).unbind(-1)  # the same for all heads
    sin = -sin if inverse else sin
    parts = a * cos - b * sin, a * sin + b * cos
    out = torch.stack(parts, -1).flatten(-2) if interleaved else torch.cat(parts, -1)
    return torch.cat((out.to(x.dtype), rest), -1)


def rope(x: Tensor, table: Tensor, *, interleaved: bool = True, candidate: int | None = None) -> Tensor:
    """x (B, S, H, D) bf16, fp16 or fp32, any strides -> the same turned by the table, in x's dtype, contiguous.

    Args:
        table: cos and sin of the angles of each position, (S, P, 2), or (B, S, P, 2) for positions of their own in each
            sequence, bf16, fp16 or fp32, without a gradient; 2 P is D at most. `kernels.layers.rope.rope_table`
            makes one.
        interleaved: neighbouring columns are a pair; False: columns p and P + p are.
        candidate: an entry of the configuration table, for tests and sweeps; all give the same bits.
    """
    require_floats(x, "x", ndim=4)
    require_floats(table, "table")
    require_device(table, "table", x, "x")
    batch, positions, _, width = x.shape
    if table.ndim not in (3, 4) or table.shape[-3] != positions or table.shape[-1] != 2 or 2 * table.shape[-2] > width:
        raise ValueError(
            f"table: has shape {tuple(table.shape)}; may have ({positions}, P, 2) or ({batch}, {positions}, P, 2) with "
            f"2 P of {width} at most, for x of shape {tuple(x.shape)}"
        )
    if table.ndim == 4 and table.shape[0] != batch:
        raise ValueError(f"table: is for {table.shape[0]} sequences; may be for {batch}, as many as x has")
    if table.requires_grad and torch.is_grad_enabled():
        raise ValueError("table: requires a gradient, which there is none of; table.detach() makes it a constant")
    out: Tensor = _rope(x, table, interleaved, False, candidate)
    return out


@operator("rope")
def _rope(x: Tensor, table: Tensor, interleaved: bool, inverse: bool, candidate: int | None) -> Tensor:
    out = _output(x, table, interleaved, inverse, candidate)
    if x.numel() == 0:
        return out
    if path_of(_turn, x.device) == "eager" or table.shape[-2] > MOST_PAIRS:
        return out.copy_(reference(x, table, interleaved=interleaved, inverse=inverse))
    batch, positions, heads, width = x.shape
    pairs, table = table.shape[-2], table.contiguous()
    config, launch = _plan(arch_of(x.device), heads, pairs, interleaved, inverse, candidate)
    programs = batch * positions * cdiv(heads, config.rows)
    of_sequence = table.stride(0) if table.ndim == 4 else 0
    launch(x.device, programs, x, table, out, positions, heads, width, pairs, *x.stride(), of_sequence)
    return out


@_rope.register_fake
def _output(x: Tensor, table: Tensor, interleaved: bool, inverse: bool, candidate: int | None) -> Tensor:
    return x.new_empty(x.shape)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
    interleaved, inverse, candidate = ctx.rest
    return _rope(grad, *ctx.saved_tensors, interleaved, not inverse, candidate), None, None, None, None


_rope.register_autograd(_differentiate, setup_context=saving(1, rest=2))


@cache
def _plan(
    arch: str, heads: int, pairs: int, interleaved: bool, inverse: bool, candidate: int | None
) -> tuple[TileConfig, Launch]:
    config = pick(rope_candidates(arch, heads, pairs), candidate)
    how = {"INTERLEAVED": interleaved, "INVERSE": inverse, "BY_HAND": arch == "cpu"}
    return config, Launch(_turn, **how, H=config.rows, P=config.columns, num_warps=config.warps)


@jit(do_not_specialize=["positions"])
def _turn(  # type: ignore[no-untyped-def]
    x_ptr, table_ptr, out_ptr, positions, heads, width, pairs, x_sequence, x_position, x_head, x_column, of_sequence,
    INTERLEAVED: tl.constexpr, INVERSE: tl.constexpr, BY_HAND: tl.constexpr, H: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """H heads of one token."""
    OUT: tl.constexpr = out_ptr.dtype.element_ty
    blocks = tl.cdiv(heads, H)
    token = (tl.program_id(0) // blocks).to(tl.int64)
    sequence, position = token // positions, token % positions
    head_H = (tl.program_id(0) % blocks).to(tl.int64) * H + tl.arange(0, H)
    pair_P = tl.arange(0, P)
    angle_ptr = table_ptr + sequence * of_sequence + position * (2 * pairs) + 2 * pair_P
    cos_HP = tl.load(angle_ptr, mask=pair_P < pairs, other=0.0).to(tl.float32)[None, :]
    sin_HP = tl.load(angle_ptr + 1, mask=pair_P < pairs, other=0.0).to(tl.float32)[None, :]
    if INVERSE:
        sin_HP = -sin_HP
    from_H = x_ptr + sequence * x_sequence + position * x_position + head_H[:, None] * x_head
    to_H = out_ptr + (token * heads + head_H[:, None]) * width
    if INTERLEAVED:
        column_D = tl.arange(0, 2 * P)[None, :].to(tl.int64)
        inside_HD = (head_H < heads)[:, None] & (column_D < 2 * pairs)
        x_HD = tl.load(from_H + column_D * x_column, mask=inside_HD, other=0.0).to(tl.float32)
        a_HP, b_HP = tl.split(tl.reshape(x_HD, (H, P, 2)))
        out_HD = tl.join(a_HP * cos_HP - b_HP * sin_HP, a_HP * sin_HP + b_HP * cos_HP)
        tl.store(to_H + column_D, rounded(tl.reshape(out_HD, (H, 2 * P)), OUT, BY_HAND), mask=inside_HD)
    else:
        column_P = pair_P[None, :].to(tl.int64)
        inside_HP = (head_H < heads)[:, None] & (column_P < pairs)
        a_HP = tl.load(from_H + column_P * x_column, mask=inside_HP, other=0.0).to(tl.float32)
        b_HP = tl.load(from_H + (pairs + column_P) * x_column, mask=inside_HP, other=0.0).to(tl.float32)
        tl.store(to_H + column_P, rounded(a_HP * cos_HP - b_HP * sin_HP, OUT, BY_HAND), mask=inside_HP)
        tl.store(to_H + pairs + column_P, rounded(a_HP * sin_HP + b_HP * cos_HP, OUT, BY_HAND), mask=inside_HP)
    for first in range(2 * pairs, width, P):
        column_P = (first + pair_P)[None, :].to(tl.int64)
        inside_HP = (head_H < heads)[:, None] & (column_P < width)
        x_HP = tl.load(from_H + column_P * x_column, mask=inside_HP, other=0.0)
        tl.store(to_H + column_P, x_HP, mask=inside_HP)
