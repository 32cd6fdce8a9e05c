"""Losses of rows of logits, and the gradients of the logits, in one pass over each row.

`cross_entropy.py` has the formulas. 1 - p of the target is computed as others / total.

Shape suffixes: N rows, V vocabulary, L lanes, D depth; what has none is (D, L, 8) in a kernel.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernels.arguments import require_indices
from kernels.hardware import arch_of
from kernels.jit import jit, path_of, tl
from kernels.launch import Launch, operator, pick
from kernels.operators.configs import cross_entropy_candidates
from kernels.rounding import rounded

LOG2_E = None if tl is None else tl.constexpr(1.4426950408889634)


class Options(NamedTuple):
    """What a row's loss is, beyond target and ignore_index, as the operators take it."""

    weight: Tensor | None = None  # (V,)
    ratio: Tensor | None = None  # of a weighted mean: r above
    label_smoothing: float = 0.0
    softcap: float | None = None
    lse_square_scale: float = 0.0
    z_losses: bool = False  # the rows' z-losses are a second row of what holds their losses


# Of an operator, whose schema has no place for a tuple: the parameters of `Options` one by one.
OPTIONS = (
    "Tensor? weight=None, Tensor? ratio=None, float label_smoothing=0.0, float? softcap=None, "
    "float lse_square_scale=0.0, bool z_losses=False"
)
_GIVEN = f"logits, Tensor target, Tensor? kept, SymInt ignore_index, SymInt? candidate, {OPTIONS}"


@operator("cross_entropy_losses", schema=f"(Tensor {_GIVEN}) -> Tensor")
def losses_of(logits: Tensor, target: Tensor, kept: Tensor | None, ignore_index: int, *given: Any) -> Tensor:
    """losses (N,) fp32, or (2, N) with the z-losses behind; by `ratio` right for a mean, and not divided."""
    return _run(logits, target, kept, ignore_index, None, *given)


@losses_of.register_fake
def _losses_output(logits: Tensor, *given: Any) -> Tensor:
    return _empty_losses(logits, Options(*given[4:]))


def _empty_losses(logits: Tensor, options: Options) -> Tensor:
    rows = logits.shape[0]
    return logits.new_empty((2, rows) if options.z_losses else (rows,), dtype=torch.float32)


@operator("cross_entropy_gradient", schema=f"(Tensor {_GIVEN}) -> (Tensor, Tensor)")
def gradient_of(
    logits: Tensor, target: Tensor, kept: Tensor | None, ignore_index: int, *given: Any
) -> tuple[Tensor, Tensor]:
    """losses; gradient (N, V) in the dtype of the logits, contiguous, divided by max(1, kept) if given."""
    gradient = logits.new_empty(logits.shape)
    return _run(logits, target, kept, ignore_index, gradient, *given), gradient


@gradient_of.register_fake
def _gradient_outputs(logits: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
    return _losses_output(logits, *given), logits.new_empty(logits.shape)


@operator("cross_entropy_gradient_", mutates=("logits",), schema=f"(Tensor(a0!) {_GIVEN}) -> Tensor")
def gradient_(logits: Tensor, target: Tensor, kept: Tensor | None, ignore_index: int, *given: Any) -> Tensor:
    """losses; the gradient takes the place of the logits."""
    return _run(logits, target, kept, ignore_index, logits, *given)


gradient_.register_fake(_losses_output)


def _run(
    logits: Tensor, target: Tensor, kept: Tensor | None, ignore_index: int, gradient: Tensor | None, *given: Any
) -> Tensor:
    candidate, *asked_for = given
    options = Options(*asked_for)
    rows, vocabulary = logits.shape
    require_indices(target, "target", vocabulary, besides=ignore_index)
    if path_of(_rows, logits.device) == "eager":
        return _eager(logits, target, kept, ignore_index, gradient, options)
    losses = _empty_losses(logits, options)
    if rows == 0:
        return losses
    steps = *logits.stride(), target.stride(0), *(logits if gradient is None else gradient).stride()
    weight, ratio, smoothing, softcap, z_scale, z_losses = options
    # What is not asked for is None, and no code.
    asked = (
        weight, None if weight is None else weight.stride(0), ratio, smoothing or None, softcap,
        z_scale if z_scale or z_losses else None, 1 if z_losses else None,
    )  # fmt: skip
    plain = all(each is None for each in asked)
    launch = _rows_launch(
        arch_of(logits.device), kept is not None, gradient is not None, steps[1] == 1, steps[4] == 1, plain, candidate
    )
    launch(logits.device, rows, logits, target, kept, losses, gradient, vocabulary, ignore_index, *steps, *asked)
    return losses


@cache
def _rows_launch(
    arch: str, mean: bool, gradient: bool, unit: bool, unit_gradient: bool, plain: bool, candidate: int | None
) -> Launch:
    config = pick(cross_entropy_candidates(arch, plain), candidate)
    return Launch(
        _rows, MEAN=mean, GRADIENT=gradient, UNIT=unit, UNIT_GRADIENT=unit_gradient, BY_HAND=arch == "cpu",
        D=config.depth, L=config.lanes, num_warps=config.warps,
    )  # fmt: skip


def _eager(
    logits: Tensor, target: Tensor, kept: Tensor | None, ignore_index: int, gradient: Tensor | None, options: Options
) -> Tensor:
    """The formulas above in torch's own operators; a target out of range is NaN."""
    if logits.numel() == 0:
        return _empty_losses(logits, options).zero_()
    vocabulary = logits.shape[1]
    weight, ratio, smoothing, cap, z_scale, _ = options
    x_NV = logits.float()
    if cap is not None:
        slope_NV = (x_NV / cap).cosh().pow_(-2)  # 1 - tanh^2
        x_NV = cap * (x_NV / cap).tanh()
    ignored_N, known_N = target == ignore_index, (target >= 0) & (target < vocabulary)
    at_N1 = target.long().clamp(0, vocabulary - 1)[:, None]
    max_N1 = x_NV.amax(1, keepdim=True)
    shift_N1 = torch.where(max_N1 == -torch.inf, 0, max_N1)
    e_NV = (x_NV - shift_N1).exp_()
    e_N1 = e_NV.gather(1, at_N1)
    others_N1 = e_NV.scatter(1, at_N1, 0).sum(1, keepdim=True)
    total_N1 = others_N1 + e_N1
    x_N1 = x_NV.gather(1, at_N1)
    loss_N1 = torch.where(x_N1 == max_N1, torch.log1p(others_N1 / e_N1), max_N1 - x_N1 + total_N1.log())
    lse_N1 = max_N1 + total_N1.log()
    z_loss_N1 = z_scale * lse_N1.square() if z_scale else torch.zeros_like(loss_N1)
    weight_1V = None if weight is None else weight.float()[None]
    weight_N1 = 1.0 if weight_1V is None else weight_1V[0, at_N1]
    by = 1.0 if ratio is None else ratio
    own_N1, each = by * (1 - smoothing) * weight_N1, by * (smoothing / vocabulary)
    weights = vocabulary if weight_1V is None else weight_1V.sum()
    if smoothing:
        zero_N1 = torch.where(x_N1 == -torch.inf, 0, x_N1)
        below_N1 = (zero_N1 - x_NV).mul_(1.0 if weight_1V is None else weight_1V).sum(1, keepdim=True)
        above_N1 = torch.where(x_N1 == -torch.inf, lse_N1, loss_N1)
        loss_N1 = own_N1 * loss_N1 + each * (weights * above_N1 + below_N1)
    elif weight is not None:
        loss_N1 = own_N1 * loss_N1
    scale = torch.ones((), device=logits.device) if kept is None else kept.clamp_min(1).float().reciprocal()
    scale_N1 = torch.where(known_N, scale, torch.nan)[:, None]
    if gradient is not None:
        all_N1, rest_N1 = own_N1 * scale_N1, 0.0
        if smoothing:
            all_N1 = all_N1 + each * weights * scale_N1
            rest_N1 = each * (weights - weight_N1) * scale_N1
        if z_scale:
            all_N1, rest_N1 = (part + 2 * z_scale * lse_N1 * scale_N1 for part in (all_N1, rest_N1))
        e_NV.mul_(all_N1 / total_N1)
        if smoothing:
            e_NV.sub_(each * scale_N1 * (1.0 if weight_1V is None else weight_1V))
        e_NV.scatter_(1, at_N1, rest_N1 - (others_N1 / total_N1) * all_N1)
        if cap is not None:
            e_NV.mul_(slope_NV)
        gradient.copy_(e_NV.masked_fill_(ignored_N[:, None], 0))
    rows_N = torch.cat((loss_N1 + z_loss_N1, z_loss_N1), 1).t() if options.z_losses else (loss_N1 + z_loss_N1)[:, 0]
    return torch.where(known_N, rows_N, torch.nan).masked_fill_(ignored_N, 0).contiguous()


# ---- kernels -------------------------------------------------------------------------------------------------------


@jit(do_not_specialize=["ignore_index"])
def _rows(  # type: ignore[no-untyped-def]  # noqa: C901  # most branches are the compiler's
    logits_ptr, target_ptr, kept_ptr, losses_ptr, gradient_ptr, vocabulary, ignore_index,
    logits_row, logits_column, target_stride, gradient_row, gradient_column,
    weight_ptr, weight_stride, ratio_ptr, smoothing, softcap, z_scale, z_losses,
    MEAN: tl.constexpr, GRADIENT: tl.constexpr, UNIT: tl.constexpr, UNIT_GRADIENT: tl.constexpr,
    BY_HAND: tl.constexpr, D: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """One row a program, D * L * 8 columns at a time: 8 neighbours a lane, D times, so that D loads are under way.

    The gradient may lie where the logits do: what is read is read by then. From `weight_ptr` on None is not asked for.
    """
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(target_ptr + row * target_stride)
    logits_ptr += row * logits_row
    if GRADIENT:
        gradient_ptr += row * gradient_row
        DTYPE: tl.constexpr = gradient_ptr.dtype.element_ty
    PLAIN: tl.constexpr = ((weight_ptr is None) and (smoothing is None)) and (z_scale is None)
    lane = (tl.arange(0, D)[:, None, None] * L + tl.arange(0, L)[None, :, None]) * 8 + tl.arange(0, 8)[None, None, :]
    scale = 1.0
    if MEAN:
        scale = tl.div_rn(1.0, tl.maximum(tl.load(kept_ptr), 1).to(tl.float32))
    if target == ignore_index:  # whatever the logits are, they are not read
        tl.store(losses_ptr + row, 0.0)
        if z_losses is not None:
            tl.store(losses_ptr + tl.num_programs(0) + row, 0.0)
        if GRADIENT:
            for first in range(0, vocabulary, D * L * 8):
                column = first + lane
                to = column if UNIT_GRADIENT else column.to(tl.int64) * gradient_column
                tl.store(gradient_ptr + to, tl.zeros((D, L, 8), DTYPE), mask=column < vocabulary)
    else:
        known = (target >= 0) & (target < vocabulary)
        nan_or_1 = tl.where(known, 1.0, float("nan"))
        chosen = tl.where(known, target, 0).to(tl.int32)  # 64 bits would cost as much as the exponentials
        x_target = tl.load(logits_ptr + chosen.to(tl.int64) * logits_column, mask=known, other=0.0).to(tl.float32)
        if softcap is not None:
            x_target, slope_target = _capped(x_target, softcap)

        # Each lane keeps a maximum and a sum of its own, so that no block waits for all warps to meet.
        top_L = tl.full((L,), float("-inf"), tl.float32)
        others_L = tl.zeros((L,), tl.float32)
        if smoothing is not None:  # the mean of all classes is taken of how far each is from the target
            zero = tl.where(x_target == float("-inf"), 0.0, x_target)
            below_L = tl.zeros((L,), tl.float32)
            weights_L = tl.zeros((L,), tl.float32)
        ahead = _columns(logits_ptr, lane, vocabulary, logits_column, UNIT, "evict_last")
        for first in range(0, vocabulary, D * L * 8):
            column = first + lane
            x = ahead.to(tl.float32)
            ahead = _columns(logits_ptr, column + D * L * 8, vocabulary, logits_column, UNIT, "evict_last")
            if softcap is not None:
                x, _ = _capped(x, softcap)
                x = tl.where(column < vocabulary, x, float("-inf"))
            if smoothing is not None:
                w = _weights(weight_ptr, column, vocabulary, weight_stride)
                below_L += tl.sum(tl.sum(w * (zero - tl.where(column < vocabulary, x, zero)), 2), 0)
                weights_L += tl.sum(tl.sum(w, 2), 0)
            new_L = tl.maximum(top_L, tl.max(tl.max(x, 2), 0))
            base_L = _base(tl.where(new_L == float("-inf"), 0.0, new_L))  # -inf - -inf would be NaN
            e = tl.exp2(tl.fma(x, LOG2_E, -base_L[None, :, None]))
            if (chosen >= first) & (chosen < first + D * L * 8):
                e = tl.where(column == chosen, 0.0, e)
            others_L = others_L * tl.exp2(_base(top_L) - base_L) + tl.sum(tl.sum(e, 2), 0)
            top_L = new_L

        top = tl.max(top_L, 0)
        shift = tl.where(top == float("-inf"), 0.0, top)
        base = _base(shift)
        others = tl.sum(others_L * tl.exp2(_base(top_L) - base), 0)
        e_target = tl.exp2(tl.fma(x_target, LOG2_E, -base))
        total = others + e_target
        against_top = tl.div_rn(total, tl.exp2(tl.fma(shift, LOG2_E, -base)))
        loss = tl.where(x_target == top, _log1p(tl.div_rn(others, e_target)), (top - x_target) + tl.log(against_top))
        if not PLAIN:
            lse = top + tl.log(against_top)
            every = 1.0  # what p is multiplied by in the gradient, and what is left of it at the target
            rest = 0.0
            ratio = 1.0
            weight_target = 1.0
            if ratio_ptr is not None:
                ratio = tl.load(ratio_ptr)
            if weight_ptr is not None:
                weight_at = weight_ptr + chosen.to(tl.int64) * weight_stride
                weight_target = tl.load(weight_at, mask=known, other=0.0).to(tl.float32)
                every = ratio * weight_target
            if smoothing is not None:
                every *= 1.0 - smoothing
                spread = ratio * smoothing / vocabulary
                weights = tl.sum(weights_L, 0)
                above = tl.where(x_target == float("-inf"), lse, loss)
                loss = every * loss + spread * (weights * above + tl.sum(below_L, 0))
                every += spread * weights
                rest = spread * (weights - weight_target)
            elif weight_ptr is not None:
                loss *= every
            if z_scale is not None:
                loss += z_scale * lse * lse
                every += 2.0 * z_scale * lse
                rest += 2.0 * z_scale * lse
            if z_losses is not None:
                tl.store(losses_ptr + tl.num_programs(0) + row, z_scale * lse * lse * nan_or_1)
        tl.store(losses_ptr + row, loss * nan_or_1)
        if GRADIENT:
            scale *= nan_or_1
            if PLAIN:
                factor = tl.div_rn(scale, total)
                at_target = -tl.div_rn(others, total) * scale
            else:
                factor = tl.div_rn(every * scale, total)
                at_target = (rest - every * tl.div_rn(others, total)) * scale
            if softcap is not None:
                at_target *= slope_target
            IN_EXPONENT: tl.constexpr = PLAIN and (DTYPE.primitive_bitwidth == 16)
            if IN_EXPONENT:  # the factor's place: that is exact enough for 16 bits
                base -= tl.log2(factor)
            last = (tl.cdiv(vocabulary, D * L * 8) - 1) * (D * L * 8)
            ahead = _columns(logits_ptr, last + lane, vocabulary, logits_column, UNIT, "evict_first")
            for before in range(0, vocabulary, D * L * 8):  # backwards: what was read last is still near
                first = last - before
                column = first + lane
                x = ahead.to(tl.float32)
                ahead = _columns(logits_ptr, column - D * L * 8, vocabulary, logits_column, UNIT, "evict_first")
                if softcap is not None:
                    x, slope = _capped(x, softcap)
                gradient = tl.exp2(tl.fma(x, LOG2_E, -base))
                if not IN_EXPONENT:
                    gradient *= factor
                if smoothing is not None:
                    gradient -= spread * scale * _weights(weight_ptr, column, vocabulary, weight_stride)
                if softcap is not None:
                    gradient *= slope
                if (chosen >= first) & (chosen < first + D * L * 8):
                    gradient = tl.where(column == chosen, at_target, gradient)
                to = column if UNIT_GRADIENT else column.to(tl.int64) * gradient_column
                result = rounded(gradient, DTYPE, BY_HAND)
                tl.store(gradient_ptr + to, result, mask=column < vocabulary, eviction_policy="evict_first")


@jit()
def _base(x):  # type: ignore[no-untyped-def]
    """The whole part of x log2(e), which exponents are taken from: the step from one to another is exact.

    Of two rounded products the difference is not: a compiler may fuse one product with the subtraction, and then what
    lanes have summed is off by what the product was rounded by, 2^-9 where logits are near 2^14.

    None is below -2^31, that of a finite mask neither, which may be fp32's least number: up to there the product is off
    by 2^6 at most, which exp2 can take, and what lies lower is 0 beside any other logit.
    """
    return tl.floor(tl.maximum(x * LOG2_E, -2147483648.0))


@jit()
def _columns(logits_ptr, column, vocabulary, stride, UNIT: tl.constexpr, POLICY: tl.constexpr):  # type: ignore[no-untyped-def]
    """Logits of a row; -inf, and no access, where there is no such column."""
    at = column if UNIT else column.to(tl.int64) * stride
    inside = (column >= 0) & (column < vocabulary)
    return tl.load(logits_ptr + at, mask=inside, other=float("-inf"), eviction_policy=POLICY)


@jit()
def _weights(weight_ptr, column, vocabulary, stride):  # type: ignore[no-untyped-def]
    """Weights of classes, 1 without any; 0, and no access, where there is no such class."""
    inside = column < vocabulary
    if weight_ptr is None:
        return inside.to(tl.float32)
    else:
        return tl.load(weight_ptr + column.to(tl.int64) * stride, mask=inside, other=0.0).to(tl.float32)


@jit()
def _capped(x, cap):  # type: ignore[no-untyped-def]
    """cap * tanh(x / cap), and its derivative 1 - tanh^2: to fp32's rounding near 0, and where it is nearly flat.

    Below 1 tanh is the seventh convergent of Lambert's continued fraction (error 1e-9), above it (1 - m) / (1 + m) of
    m = exp(-2 |y|), where nothing cancels.
    """
    y = x * (1.0 / cap)
    near = tl.abs(y) < 1.0
    m = tl.exp2(tl.abs(y) * (-2.0 * LOG2_E))
    y_near = tl.where(near, y, 0.0)
    q = y_near * y_near
    upper = tl.where(near, y_near * (135135.0 + q * (17325.0 + q * (378.0 + q))), tl.where(y < 0, m - 1.0, 1.0 - m))
    lower = tl.where(near, 135135.0 + q * (62370.0 + q * (3150.0 + q * 28.0)), 1.0 + m)
    tanh = upper / lower
    return cap * tanh, tl.where(near, 1.0 - tanh * tanh, 4.0 * m / (lower * lower))


@jit()
def _log1p(y):  # type: ignore[no-untyped-def]
    """log(1 + y) of y >= 0, exact to rounding also for small y (Goldberg 1991, theorem 4)."""
    u = 1.0 + y
    return tl.where(u == 1.0, y, tl.log(u) * tl.div_rn(y, u - 1.0))
