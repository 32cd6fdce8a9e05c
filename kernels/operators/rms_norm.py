"""x over the root of its mean square, times a weight: RMSNorm, forward and backward in one pass over the rows each.

    r = 1 / sqrt(mean(x^2) + eps),    n = x * r,    out = n * (weight + offset)
    m = grad * (weight + offset),    dx = r * (m - n * mean(m * n)),    dweight = sum over rows of grad * n

fp32 inside, one rounding at the store; the weight may have a dtype of its own. dweight is summed in fp32 over a fixed
number of rows by each program, and over these sums by a second launch: no atomics, the same bits each time. Saved for
backward: x and the weight by reference, and r, one fp32 a row. Source: Zhang and Sennrich (arXiv 1910.07467); as one
kernel in Liger's `rms_norm.py`, whose casting mode "gemma" is this rounding, and Apex.

Shape suffixes: R rows of a tile, C columns of a tile.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from kernels.arguments import require_device, require_floats, require_length
from kernels.hardware import arch_of
from kernels.jit import jit, path_of, tl
from kernels.launch import Launch, cdiv, operator, pick, refuse_tangents
from kernels.operators.configs import TileConfig, norm_candidates
from kernels.operators.launch import strides
from kernels.rounding import rounded

TILES = 16  # that a program of the backward pass has, one below another; their sum of dweight stays in registers
SUM_COLUMNS = 32  # of dweight, that a program of the second launch has: one line of memory a row


def reference(x: Tensor, weight: Tensor | None = None, eps: float = 1e-6, *, offset: float = 0.0) -> Tensor:
    """The truth, differentiable: x (..., H), weight (H,) -> (..., H) in the dtype of x."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    out = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (out if weight is None else out * (weight.to(wide.dtype) + offset)).to(x.dtype)


def rms_norm(
    x: Tensor, weight: Tensor | None = None, eps: float = 1e-6, *, offset: float = 0.0, candidate: int | None = None
) -> Tensor:
    """x (..., H), weight (H,) or None, both bf16, fp16 or fp32, each of its own -> (..., H) in x's dtype, contiguous.

    x may have any strides; dimensions before the last that do not collapse are copied. `offset` is added to the weight:
    1 for Gemma's, whose weights begin at 0. Squares are summed in fp32, so fp32 rows with entries beyond 1.8e19 become
    0. `candidate` picks an entry of the configuration table; forward all give the same bits up to the order of a sum.
    """
    require_norm(x, weight, eps)
    refuse_tangents("rms_norm", x, weight)
    out: Tensor = _rms_norm(x, weight, float(eps), float(offset), candidate)[0]
    return out


def require_norm(x: Tensor, weight: Tensor | None, eps: float) -> None:
    """What a norm of rows takes."""
    require_floats(x, "x")
    if x.ndim == 0:
        raise ValueError("x: has no dimension; may have one or more, of which the last is normalised")
    if not eps >= 0:
        raise ValueError(f"eps: is {eps}; may be 0 or more")
    if weight is not None:
        require_floats(weight, "weight", ndim=1)
        require_length(weight, "weight", x.shape[-1], "column of x")
        require_device(weight, "weight", x, "x")


@operator("rms_norm")
def _rms_norm(
    x: Tensor, weight: Tensor | None, eps: float, offset: float, candidate: int | None
) -> tuple[Tensor, Tensor]:
    """The result, and r of each row, (rows,) fp32."""
    out, scales = _outputs(x)
    if x.numel() == 0:
        return out, scales.zero_()
    rows = _rows(x)
    if path_of(_forward, x.device) == "eager":
        scales.copy_(torch.rsqrt(x.float().square().mean(-1) + eps))
        return out.copy_(reference(x, weight, eps, offset=offset)), scales
    config, launch = _plan(_forward, arch_of(x.device), rows.shape[1], candidate)
    operands = rows, None if weight is None else weight.contiguous(), out, scales, *rows.shape, *strides(rows)
    launch(x.device, cdiv(rows.shape[0], config.rows), *operands, eps, offset)
    return out, scales


@_rms_norm.register_fake
def _outputs(x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape[:-1], dtype=torch.float32)


@operator("rms_norm_backward")
def rms_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, scales: Tensor, offset: float, sums: bool, candidate: int | None
) -> tuple[Tensor, Tensor]:
    """grad (..., H) any strides -> dx (..., H) contiguous; dweight (H,) in the weight's dtype, none of it unless
    `sums`."""
    dx, dweight = _gradients(grad, x, weight, scales, offset, sums, candidate)
    if x.numel() == 0:
        return dx, dweight.zero_()
    width = x.shape[-1]
    grads, rows, scales = _rows(grad), _rows(x), scales if scales.ndim == 1 else scales.flatten()
    if path_of(_backward, x.device) == "eager":
        normed, upstream = rows.float() * scales[:, None], grads.float()
        m = upstream if weight is None else upstream * (weight.float() + offset)
        dx.copy_((scales[:, None] * (m - normed * (m * normed).mean(-1, keepdim=True))).view(x.shape))
        return dx, dweight.copy_((upstream * normed).sum(0)) if sums else dweight
    config, launch = _plan(_backward, arch_of(x.device), width, candidate)
    programs = cdiv(rows.shape[0], config.rows * _tiles(config, width))
    partial = x.new_empty((programs, width), dtype=torch.float32) if sums else None
    operands = grads, rows, None if weight is None else weight.contiguous(), scales, dx, partial
    launch(x.device, programs, *operands, *rows.shape, *strides(grads, rows), offset)
    if partial is not None:
        _sums(arch_of(x.device))(x.device, cdiv(width, SUM_COLUMNS), partial, dweight, programs, width)
    return dx, dweight


@rms_norm_backward.register_fake
def _gradients(grad: Tensor, x: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
    weight, _, _, sums, _ = given
    dtype = x.dtype if weight is None else weight.dtype
    return x.new_empty(x.shape), x.new_empty(x.shape[-1] if sums else 0, dtype=dtype)


def save_norm(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Of an operator whose arguments begin with x, weight, eps and offset and end with the candidate, and whose first
    results are the normed rows and their r."""
    x, weight, _, ctx.offset, *_, ctx.candidate = inputs
    ctx.others = len(inputs) - 2
    ctx.save_for_backward(x, weight, output[1])
    ctx.mark_non_differentiable(*output[1:])


def differentiate_norm(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    """The gradients of that operator's arguments, by that of the normed rows alone."""
    x, weight, scales = ctx.saved_tensors
    needs_weight = ctx.needs_input_grad[1]
    dx, dweight = rms_norm_backward(grad, x, weight, scales, ctx.offset, needs_weight, ctx.candidate)
    return dx, dweight if needs_weight else None, *[None] * ctx.others


_rms_norm.register_autograd(differentiate_norm, setup_context=save_norm)


def _rows(x: Tensor) -> Tensor:
    """x as a matrix, which most are: a view of one costs the host a microsecond."""
    return x if x.ndim == 2 else x.reshape(-1, x.shape[-1])


def _tiles(config: TileConfig, width: int) -> int:
    """A row that is wider than a tile is passed twice, and then leaves no registers for sums of several tiles."""
    return TILES if width <= config.columns else 1


@cache
def _plan(kernel: Any, arch: str, width: int, candidate: int | None) -> tuple[TileConfig, Launch]:
    config = pick(norm_candidates(arch, width), candidate)
    sizes = {"WHOLE": width <= config.columns, "R": config.rows, "C": config.columns, "num_warps": config.warps}
    if kernel is _backward:
        sizes["TILES"] = _tiles(config, width)
    return config, Launch(kernel, BY_HAND=arch == "cpu", **sizes)


@cache
def _sums(arch: str) -> Launch:
    return Launch(_sum_partial, BY_HAND=arch == "cpu", AHEAD=4, R=64, C=SUM_COLUMNS, num_warps=4)


@jit()
def load_tile(ptr, row_R, real_R, column_C, width, step_row, step_column):  # type: ignore[no-untyped-def]
    """(R, C) in fp32, 0 where there is nothing."""
    inside_RC = real_R[:, None] & (column_C < width)[None, :]
    at_RC = row_R[:, None] * step_row + column_C[None, :] * step_column
    return tl.load(ptr + at_RC, mask=inside_RC, other=0.0).to(tl.float32)


@jit()
def first_tile(  # type: ignore[no-untyped-def]
    x_ptr, row_R, real_R, column_C, width, x_row, x_column, eps, WHOLE: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """The first columns of rows, all of them where WHOLE, and r of each row."""
    x_RC = load_tile(x_ptr, row_R, real_R, column_C, width, x_row, x_column)
    sum_R = tl.sum(x_RC * x_RC, 1)
    if not WHOLE:
        for first in range(C, width, C):
            x_RC = load_tile(x_ptr, row_R, real_R, first + column_C, width, x_row, x_column)
            sum_R += tl.sum(x_RC * x_RC, 1)
    return x_RC, tl.rsqrt(sum_R / width + eps)


@jit()
def normed(  # type: ignore[no-untyped-def]
    x_RC, scale_R, weight_ptr, at_C, width, offset, DTYPE: tl.constexpr, BY_HAND: tl.constexpr,
):  # fmt: skip
    """The normed tile as it is stored, (R, C); 0 past the width, or NaN in a row that is NaN."""
    out_RC = x_RC * scale_R[:, None]
    if weight_ptr is not None:
        out_RC *= _factors(weight_ptr, at_C, width, offset)[None, :]
    return rounded(out_RC, DTYPE, BY_HAND)


@jit()
def _factors(weight_ptr, column_C, width, offset):  # type: ignore[no-untyped-def]
    return tl.load(weight_ptr + column_C, mask=column_C < width, other=0.0).to(tl.float32) + offset


@jit(do_not_specialize=["rows", "eps", "offset"])
def _forward(  # type: ignore[no-untyped-def]
    x_ptr, weight_ptr, out_ptr, scales_ptr, rows, width, x_row, x_column, eps, offset,
    BY_HAND: tl.constexpr, WHOLE: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    row_R = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    real_R = row_R < rows
    column_C = tl.arange(0, C).to(tl.int64)
    x_RC, scale_R = first_tile(x_ptr, row_R, real_R, column_C, width, x_row, x_column, eps, WHOLE, C)
    tl.store(scales_ptr + row_R, scale_R, mask=real_R)
    for first in range(0, width, C):
        at_C = first + column_C
        if not WHOLE:
            x_RC = load_tile(x_ptr, row_R, real_R, at_C, width, x_row, x_column)
        out_RC = normed(x_RC, scale_R, weight_ptr, at_C, width, offset, out_ptr.dtype.element_ty, BY_HAND)
        to_RC = out_ptr + row_R[:, None] * width + at_C[None, :]
        tl.store(to_RC, out_RC, mask=real_R[:, None] & (at_C < width)[None, :])


@jit()
def _slopes(  # type: ignore[no-untyped-def]
    grad_ptr, x_ptr, weight_ptr, row_R, real_R, scale_R, column_C, width, grad_row, grad_column, x_row, x_column,
    offset,
):  # fmt: skip
    """grad, m and n of a tile, (R, C)."""
    grad_RC = load_tile(grad_ptr, row_R, real_R, column_C, width, grad_row, grad_column)
    n_RC = load_tile(x_ptr, row_R, real_R, column_C, width, x_row, x_column) * scale_R[:, None]
    m_RC = grad_RC
    if weight_ptr is not None:
        m_RC *= _factors(weight_ptr, column_C, width, offset)[None, :]
    return grad_RC, m_RC, n_RC


@jit(do_not_specialize=["rows", "offset"])
def _backward(  # type: ignore[no-untyped-def]
    grad_ptr, x_ptr, weight_ptr, scales_ptr, dx_ptr, partial_ptr, rows, width, grad_row, grad_column, x_row, x_column,
    offset, BY_HAND: tl.constexpr, WHOLE: tl.constexpr, R: tl.constexpr, C: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """TILES tiles of R rows, and what they give to dweight."""
    program = tl.program_id(0).to(tl.int64)
    column_C = tl.arange(0, C).to(tl.int64)
    sum_RC = tl.zeros((R, C), tl.float32)
    for tile in range(TILES):
        row_R = (program * TILES + tile) * R + tl.arange(0, R)
        real_R = row_R < rows
        scale_R = tl.load(scales_ptr + row_R, mask=real_R, other=0.0)
        grad_RC, m_RC, n_RC = _slopes(
            grad_ptr, x_ptr, weight_ptr, row_R, real_R, scale_R, column_C, width, grad_row, grad_column, x_row,
            x_column, offset,
        )  # fmt: skip
        dot_R = tl.sum(m_RC * n_RC, 1)
        if not WHOLE:
            for first in range(C, width, C):
                grad_RC, m_RC, n_RC = _slopes(
                    grad_ptr, x_ptr, weight_ptr, row_R, real_R, scale_R, first + column_C, width, grad_row, grad_column,
                    x_row, x_column, offset,
                )  # fmt: skip
                dot_R += tl.sum(m_RC * n_RC, 1)
        mean_R = dot_R / width
        for first in range(0, width, C):
            at_C = first + column_C
            if not WHOLE:
                grad_RC, m_RC, n_RC = _slopes(
                    grad_ptr, x_ptr, weight_ptr, row_R, real_R, scale_R, at_C, width, grad_row, grad_column, x_row,
                    x_column, offset,
                )  # fmt: skip
            dx_RC = scale_R[:, None] * (m_RC - n_RC * mean_R[:, None])
            to_RC = dx_ptr + row_R[:, None] * width + at_C[None, :]
            inside_RC = real_R[:, None] & (at_C < width)[None, :]
            tl.store(to_RC, rounded(dx_RC, dx_ptr.dtype.element_ty, BY_HAND), mask=inside_RC)
            if partial_ptr is not None:
                if WHOLE:
                    sum_RC += grad_RC * n_RC
                else:
                    sum_C = tl.sum(grad_RC * n_RC, 0)
                    tl.store(partial_ptr + program * width + at_C, sum_C, mask=at_C < width)
    if WHOLE and partial_ptr is not None:
        tl.store(partial_ptr + program * width + column_C, tl.sum(sum_RC, 0), mask=column_C < width)


@jit(do_not_specialize=["count"])
def _sum_partial(  # type: ignore[no-untyped-def]
    partial_ptr, dweight_ptr, count, width,
    BY_HAND: tl.constexpr, AHEAD: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """dweight, from what each of `count` programs has summed."""
    column_C = tl.program_id(0).to(tl.int64) * C + tl.arange(0, C)
    sum_RC = tl.zeros((R, C), tl.float32)
    for first in tl.range(0, count, R, num_stages=AHEAD):
        row_R = first + tl.arange(0, R).to(tl.int64)
        sum_RC += load_tile(partial_ptr, row_R, row_R < count, column_C, width, width, 1)
    sum_C = rounded(tl.sum(sum_RC, 0), dweight_ptr.dtype.element_ty, BY_HAND)
    tl.store(dweight_ptr + column_C, sum_C, mask=column_C < width)
