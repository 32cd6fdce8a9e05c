"""Rows between the order of tokens and the order of experts, one kernel a move, with dot products on the way.

    spread   rows[inverse[t, k]] = w[t, k] · x[t]
    sum      out[t] = Σ_k w[t, k] · rows[inverse[t, k]],  in the order of k
    dots     dot[t, k] = <x[t], rows[inverse[t, k]]>,  beside either, of what it reads anyway

Each is the backward pass of the other, dots that of their weights. One program has one token and all of its rows: it
reads x[t] once, and each row once. Everything is counted in float32 and rounded once; product and sum are rounded
one by one, never as one fused step, so that the kernels and torch's operators give the same bits (dots apart, which
are summed in another order). float64, which only the oracle runs in, is left to torch's operators.

The moves are those of torchtitan's `TokenReorderer` and `_combine` (models/moe), permute and unpermute in Megatron.

Shape suffixes: T tokens, D model width, K experts a token, M = T · K rows, P the power of two from K, C columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor

from kernels.hardware import arch_of
from kernels.jit import Path, jit, path_of, tl
from kernels.launch import Launch, operator, pick, power_of_two
from kernels.moe.configs import move_candidates
from kernels.moe.precision import wide
from kernels.rounding import rounded


def path(device: torch.device | str, *dtypes: torch.dtype) -> Path:
    """What a move of tensors of these dtypes runs on this device now (`kernels.jit`)."""
    return "eager" if torch.float64 in dtypes else path_of(_spread, device)


def spread_rows(
    x_TD: Tensor,
    weights_TK: Tensor | None,
    inverse_TK: Tensor,
    dtype: torch.dtype | None = None,
    *,
    candidate: int | None = None,
) -> Tensor:
    """rows (M, D) contiguous, in x's dtype, then cast to `dtype` if that is another; no autograd.

    x of any strides; inverse (T, K) int64, a permutation of the rows; `candidate` picks an entry of the
    configuration table.
    """
    return _spread_rows(x_TD, weights_TK, inverse_TK, dtype or x_TD.dtype, candidate)


def sum_rows(
    rows_MD: Tensor,
    weights_TK: Tensor | None,
    inverse_TK: Tensor,
    dtype: torch.dtype | None = None,
    *,
    plus_MD: Tensor | None = None,
    candidate: int | None = None,
) -> Tensor:
    """out (T, D) contiguous, in `dtype` or rows' own; no autograd. With `plus` rows are rows + plus, in float32."""
    return _sum_rows(rows_MD, plus_MD, weights_TK, inverse_TK, dtype or rows_MD.dtype, candidate)


def spread_rows_and_dot(
    x_TD: Tensor, weights_TK: Tensor, inverse_TK: Tensor, rows_MD: Tensor, *, candidate: int | None = None
) -> tuple[Tensor, Tensor]:
    """`spread_rows`, and the dots of x with other rows, (T, K) in float32 (float64 where x is)."""
    return _spread_and_dot(x_TD, weights_TK, inverse_TK, rows_MD, candidate)  # type: ignore[no-any-return]


def sum_rows_and_dot(
    rows_MD: Tensor,
    weights_TK: Tensor,
    inverse_TK: Tensor,
    x_TD: Tensor,
    *,
    plus_MD: Tensor | None = None,
    candidate: int | None = None,
) -> tuple[Tensor, Tensor]:
    """`sum_rows` in x's dtype, and the dots of x with the same rows, (T, K) in float32 (float64 where x is)."""
    return _sum_and_dot(rows_MD, plus_MD, weights_TK, inverse_TK, x_TD, candidate)  # type: ignore[no-any-return]


# ---------------------------------------------------------------------------------------------------
# As operators: one each in a graph, whichever path they take.


@operator("moe_spread_rows")
def _spread_rows(
    x: Tensor, weights: Tensor | None, inverse: Tensor, dtype: torch.dtype, candidate: int | None
) -> Tensor:
    if path(x.device, x.dtype, dtype) == "eager":
        return _spread_eagerly(x, weights, inverse, dtype)
    out = _rows_of(x, weights, inverse, dtype)
    _launch(_spread, (x, weights, inverse, out, None, None), (x, None), candidate)
    return out


@_spread_rows.register_fake
def _rows_of(x: Tensor, weights: Tensor | None, inverse: Tensor, dtype: torch.dtype, *_: Any) -> Tensor:
    return x.new_empty((inverse.shape[0] * inverse.shape[1], x.shape[1]), dtype=dtype)


@operator("moe_spread_rows_and_dot")
def _spread_and_dot(
    x: Tensor, weights: Tensor, inverse: Tensor, rows: Tensor, candidate: int | None
) -> tuple[Tensor, Tensor]:
    if path(x.device, x.dtype, rows.dtype) == "eager":
        return _spread_eagerly(x, weights, inverse, x.dtype), _dot_eagerly(x, rows, None, inverse)
    out, dots = _rows_and_dots_of(x, weights, inverse)
    _launch(_spread, (x, weights, inverse, out, rows, dots), (x, rows), candidate)
    return out, dots


@_spread_and_dot.register_fake
def _rows_and_dots_of(x: Tensor, weights: Tensor, inverse: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return _rows_of(x, weights, inverse, x.dtype), x.new_empty(inverse.shape, dtype=wide(x.dtype))


@operator("moe_sum_rows")
def _sum_rows(
    rows: Tensor,
    plus: Tensor | None,
    weights: Tensor | None,
    inverse: Tensor,
    dtype: torch.dtype,
    candidate: int | None,
) -> Tensor:
    if path(rows.device, rows.dtype, dtype) == "eager":
        return _sum_eagerly(rows, plus, weights, inverse, dtype)
    out = _tokens_of(rows, plus, weights, inverse, dtype)
    _launch(_sum, (rows, plus, weights, inverse, out, None, None), (rows, plus, None), candidate)
    return out


@_sum_rows.register_fake
def _tokens_of(
    rows: Tensor, plus: Tensor | None, weights: Tensor | None, inverse: Tensor, dtype: torch.dtype, *_: Any
) -> Tensor:
    return rows.new_empty((inverse.shape[0], rows.shape[1]), dtype=dtype)


@operator("moe_sum_rows_and_dot")
def _sum_and_dot(
    rows: Tensor, plus: Tensor | None, weights: Tensor, inverse: Tensor, x: Tensor, candidate: int | None
) -> tuple[Tensor, Tensor]:
    if path(rows.device, rows.dtype, x.dtype) == "eager":
        return _sum_eagerly(rows, plus, weights, inverse, x.dtype), _dot_eagerly(x, rows, plus, inverse)
    out, dots = _tokens_and_dots_of(rows, plus, weights, inverse, x)
    _launch(_sum, (rows, plus, weights, inverse, out, x, dots), (rows, plus, x), candidate)
    return out, dots


@_sum_and_dot.register_fake
def _tokens_and_dots_of(
    rows: Tensor, plus: Tensor | None, weights: Tensor, inverse: Tensor, x: Tensor, *_: Any
) -> tuple[Tensor, Tensor]:
    return _tokens_of(rows, plus, weights, inverse, x.dtype), x.new_empty(inverse.shape, dtype=wide(x.dtype))


# ---------------------------------------------------------------------------------------------------
# In torch's operators, one choice at a time: (T, K, D) is never whole in float32.


def _spread_eagerly(x: Tensor, weights: Tensor | None, inverse: Tensor, dtype: torch.dtype) -> Tensor:
    if weights is None:
        place = torch.arange(inverse.numel(), device=x.device)
        order = torch.empty_like(place).index_copy_(0, inverse.flatten(), place)  # row -> choice
        return x.index_select(0, order.div(inverse.shape[1], rounding_mode="floor")).to(dtype)
    out = x.new_empty((inverse.numel(), x.shape[1]), dtype=dtype)
    for choice in range(inverse.shape[1]):
        part = x.to(wide(x.dtype)) * weights[:, choice, None]
        out.index_copy_(0, inverse[:, choice], part.to(x.dtype).to(dtype))
    return out


def _sum_eagerly(
    rows: Tensor, plus: Tensor | None, weights: Tensor | None, inverse: Tensor, dtype: torch.dtype
) -> Tensor:
    total = rows.new_zeros((inverse.shape[0], rows.shape[1]), dtype=wide(dtype))
    for choice, part in enumerate(_by_choice(rows, plus, inverse, total.dtype)):
        total += part if weights is None else part.mul_(weights[:, choice, None])
    return total.to(dtype)


def _dot_eagerly(x: Tensor, rows: Tensor, plus: Tensor | None, inverse: Tensor) -> Tensor:
    x = x.to(wide(x.dtype))
    dots = x.new_empty(inverse.shape)
    for choice, part in enumerate(_by_choice(rows, plus, inverse, x.dtype)):
        dots[:, choice] = part.mul_(x).sum(dim=-1)
    return dots


def _by_choice(rows: Tensor, plus: Tensor | None, inverse: Tensor, dtype: torch.dtype) -> Iterator[Tensor]:
    """Of each choice in turn the tokens' rows, (T, D) in `dtype`, the caller's own."""
    for row in inverse.unbind(1):
        part = rows.index_select(0, row).to(dtype)
        yield part if plus is None else part.add_(plus.index_select(0, row))


# ---------------------------------------------------------------------------------------------------
# In Triton.


def _launch(
    kernel: Any, operands: tuple[Tensor | None, ...], matrices: tuple[Tensor | None, ...], candidate: int | None
) -> None:
    """A program for each token. `operands` end in weights, inverse, out, what out's dots are with, and the dots;
    `matrices` are those of them whose strides the kernel takes."""
    *leading, weights, inverse, out, other, dots = operands
    assert inverse is not None
    assert out is not None
    if out.numel() == 0:
        if dots is not None:
            dots.zero_()
        return
    (tokens, top_k), (_, width), device = inverse.shape, out.shape, out.device
    launch = _moving(kernel, arch_of(device), width, kernel is _spread and dots is not None, top_k, candidate)
    dense = None if weights is None else weights.contiguous()
    steps = [step for each in matrices for step in ((0, 0) if each is None else each.stride())]
    launch(device, tokens, *leading, dense, inverse.contiguous(), out, other, dots, width, *steps)


@cache
def _moving(kernel: Any, arch: str, width: int, dots: bool, top_k: int, candidate: int | None) -> Launch:
    """`dots`: rows are spread and multiplied with others on the way."""
    config = pick(move_candidates(arch, width, dots=dots), candidate)
    sizes = {"K": top_k, "P": power_of_two(top_k), "C": config.columns, "num_warps": config.warps}
    options = {"enable_fp_fusion": False} if kernel is _sum else {}
    return Launch(kernel, BY_HAND=arch == "cpu", **sizes, **options)


@jit()
def _spread(  # type: ignore[no-untyped-def]
    x_ptr, weights_ptr, inverse_ptr, out_ptr, rows_ptr, dots_ptr, width, x_row, x_column, rows_row, rows_column,
    BY_HAND: tl.constexpr, K: tl.constexpr, P: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    X: tl.constexpr = x_ptr.dtype.element_ty
    OUT: tl.constexpr = out_ptr.dtype.element_ty
    token = tl.program_id(0).to(tl.int64)
    choice_P = tl.arange(0, P)
    row_P = tl.load(inverse_ptr + token * K + choice_P, mask=choice_P < K, other=0)
    if weights_ptr is not None:
        weight_P = tl.load(weights_ptr + token * K + choice_P, mask=choice_P < K, other=0.0).to(tl.float32)
    if dots_ptr is not None:
        product_PC = tl.zeros((P, C), tl.float32)
    for first in range(0, width, C):
        column_C = first + tl.arange(0, C).to(tl.int64)
        inside_PC = (choice_P < K)[:, None] & (column_C < width)[None, :]
        x_C = tl.load(x_ptr + token * x_row + column_C * x_column, mask=column_C < width, other=0.0)
        if dots_ptr is not None:  # before the store, behind which no load may be moved: both are on their way at once
            from_PC = rows_ptr + row_P[:, None] * rows_row + column_C[None, :] * rows_column
            row_PC = tl.load(from_PC, mask=inside_PC, other=0.0).to(tl.float32)
            product_PC += row_PC * x_C[None, :].to(tl.float32)
        value_PC = x_C[None, :]
        if weights_ptr is not None:
            value_PC = rounded(value_PC.to(tl.float32) * weight_P[:, None], X, BY_HAND)
        if OUT != X:
            value_PC = rounded(value_PC.to(tl.float32), OUT, BY_HAND)
        tl.store(out_ptr + row_P[:, None] * width + column_C[None, :], value_PC, mask=inside_PC)
    if dots_ptr is not None:
        tl.store(dots_ptr + token * K + choice_P, tl.sum(product_PC, 1), mask=choice_P < K)


@jit()
def _sum(  # type: ignore[no-untyped-def]
    rows_ptr, plus_ptr, weights_ptr, inverse_ptr, out_ptr, x_ptr, dots_ptr, width,
    rows_row, rows_column, plus_row, plus_column, x_row, x_column,
    BY_HAND: tl.constexpr, K: tl.constexpr, P: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    choice_P = tl.arange(0, P)
    dot_P = tl.zeros((P,), tl.float32)
    for first in range(0, width, C):
        column_C = first + tl.arange(0, C).to(tl.int64)
        inside_C = column_C < width
        sum_C = tl.zeros((C,), tl.float32)
        if dots_ptr is not None:
            x_C = tl.load(x_ptr + token * x_row + column_C * x_column, mask=inside_C, other=0.0).to(tl.float32)
        for choice in tl.static_range(K):  # unrolled: the rows of all choices are on their way at once
            row = tl.load(inverse_ptr + token * K + choice)
            part_C = tl.load(rows_ptr + row * rows_row + column_C * rows_column, mask=inside_C, other=0.0)
            part_C = part_C.to(tl.float32)
            if plus_ptr is not None:
                plus_C = tl.load(plus_ptr + row * plus_row + column_C * plus_column, mask=inside_C, other=0.0)
                part_C += plus_C.to(tl.float32)
            if dots_ptr is not None:
                dot_P += tl.where(choice_P == choice, tl.sum(part_C * x_C, 0), 0.0)
            if weights_ptr is not None:
                part_C *= tl.load(weights_ptr + token * K + choice).to(tl.float32)
            sum_C += part_C
        tl.store(out_ptr + token * width + column_C, rounded(sum_C, out_ptr.dtype.element_ty, BY_HAND), mask=inside_C)
    if dots_ptr is not None:
        tl.store(dots_ptr + token * K + choice_P, dot_P, mask=choice_P < K)
