"""The domain: at which inputs the reference itself is stable, so that its results can judge others."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from perfguard.check.hard_inputs.comparison import AT_AN_EDGE, LOST, NEARBY, Usual, errors, follows_rule, least_error
from perfguard.check.hard_inputs.nearby import FLUSHED, Nearby, Tensors
from perfguard.check.hard_inputs.values import LARGEST
from perfguard.check.numerics.procedure import LeftOut
from perfguard.check.numerics.sums import FP8_DTYPES, NAN, ROUNDING, kinds, real_numbers, rmse
from perfguard.check.numerics.trial import Trial
from perfguard.check.numerics.truth import Truth

JUMP = 1e-3  # Broken ties may change a group by this share of the whole tensor's RMS.
SCALE_MOVES = 2.0**-18  # A scale is at an edge if inputs that are off by a rounding change it by more than this share.
SCALED = 1e-3  # The largest difference from a whole exponent: 1.2 % of the RMS.


def lost(trial: Trial, truth: Truth, near: Nearby, usual: Usual) -> str:
    """The problem of outputs that are NaN or infinite although the reference is finite. This holds at jumps as well: no
    tie or edge between finite results explains NaN or infinity for finite inputs. A reference which itself overflows
    elsewhere, as on the given inputs it does not, leaves open where another formula does."""
    for position, got in enumerate(trial.tensors()[: truth.first_gradient]):
        all_near = [truth.eager, truth.oracle, near.rounded, near.untied, *near.chosen]
        others = [each for tensors in all_near if (each := tensors[position]) is not None]
        if got is None or not follows_rule(got) or any(each.shape != got.shape for each in others):
            continue
        eager = truth.eager[position]
        overflows = eager is not None and bool(real_numbers(eager).isinf().any())
        if overflows and math.isfinite(usual.get(truth.names[position], math.nan)):
            continue
        wrong = ~got.isfinite()
        for each in others:
            wrong &= real_numbers(each).isfinite()
        if bool(wrong.any()):
            at, number = wrong.nonzero()[0].tolist(), int(wrong.sum())
            return (
                f"{truth.names[position]}: {number} of {got.numel()} elements are NaN or Inf of finite inputs, and the "
                f"reference's are finite; first at {at}: got {got[tuple(at)].item()}"
            )
    return ""


def check_domain(position: int, truth: Truth, near: Nearby, finite: bool, got: Tensor | None) -> None:
    """Compare one tensor of eager with the oracle, there and nearby.

    Args:
        finite: whether all inputs are finite. NaN, for example from the logarithm of a negative probability, then means
            that they are outside the domain.
        got: the candidate's tensor.

    Raises:
        LeftOut: the input lies outside the domain.
    """
    eager, rounded, untied = truth.eager[position], near.rounded[position], near.untied[position]
    chosen, scale = [each[position] for each in near.chosen], truth.is_scale(position)
    if eager is None or eager.numel() == 0:
        return
    if not follows_rule(eager):
        if any(_unstable(eager, each) for each in _other_codes(position, eager, near, got)):
            raise LeftOut(AT_AN_EDGE)
        return
    if scale and (rounded is None or bool(((rounded - eager).abs() > SCALE_MOVES * eager.abs()).any())):
        raise LeftOut(AT_AN_EDGE)
    oracle = _or(truth.oracle[position], eager)
    e, o, m, u = (real_numbers(t) for t in (eager, oracle, _or(rounded, oracle), _or(untied, oracle)))
    kind = kinds(o.to(e.dtype).double())
    if not torch.equal(kinds(e.double()), kind):
        raise LeftOut("reference and oracle disagree on what is finite")
    if finite and bool((kind == NAN).any()):
        raise LeftOut("the reference makes NaN of finite inputs")
    others = [real_numbers(each) for each in chosen if each is not None and each.shape == e.shape]
    if any(not torch.equal(kinds(each.to(e.dtype).double()), kind) for each in (m, u, *others)):
        raise LeftOut(AT_AN_EDGE)
    rms, error, shift = errors(e, o, m, truth)
    if bool((error > LOST * rms + NEARBY * shift + least_error(e.dtype)).any()):
        raise LeftOut("reference and oracle are far apart")
    whole, jump = rms.square().mean().sqrt(), errors(u, o, m, truth)[1]
    for each in chosen:
        jump = jump.maximum(errors(real_numbers(_or(each, eager)), e, e, truth)[1])
    if not scale and bool((jump > JUMP * whole + NEARBY * shift + least_error(e.dtype)).any()):
        raise LeftOut(AT_AN_EDGE)
    if near.bounded is not None and _has_no_limit(o, real_numbers(_or(near.bounded[position], oracle))):
        raise LeftOut(AT_AN_EDGE)


def scaled(truth: Truth, usual: Usual) -> bool:
    """Whether all results are those of the given inputs times a power of 2^17. Otherwise a softmax may have saturated:
    exp(x - logsumexp(x)), a correct formula for its gradient, overflows for x of 2^34."""
    for name, oracle in zip(truth.names, truth.oracle, strict=True):
        if oracle is not None and usual.get(name):
            power = math.log2(max(rmse(oracle), FLUSHED) / usual[name]) / LARGEST
            if abs(power - round(power)) > SCALED:
                return False
    return True


def _or(tensor: Tensor | None, other: Tensor) -> Tensor:
    return other if tensor is None or tensor.shape != other.shape else tensor


def _has_no_limit(oracle: Tensor, bounded: Tensor) -> bool:
    """Whether a finite result for infinite inputs is the reference's choice, and not the limit for huge inputs."""
    finite = oracle.double().isfinite()
    if not bool(finite.any()):
        return False
    o, b = (torch.where(finite, t.double(), 0.0) for t in (oracle, bounded))
    return bool(((o - b).abs() > JUMP * (1 + o.abs().amax())).any()) or not bool(b.isfinite().all())


def _other_codes(position: int, eager: Tensor, near: Nearby, got: Tensor | None) -> Tensors:
    """Eager's integers or codes nearby. Those for the largest number in place of infinity are the reference's choice,
    unless the candidate's fp8 codes are in places neither these nor eager's."""
    rounded, bounded = near.rounded[position], near.bounded[position] if near.bounded is not None else eager
    if eager.dtype not in FP8_DTYPES:
        chosen = [each[position] for each in near.chosen]
        return [rounded, bounded, near.untied[position], *chosen, *near.numbered(position)]
    if got is not None and bounded is not None and got.shape == eager.shape == bounded.shape:
        apart = torch.stack([_apart(each, got) for each in (eager, bounded)])  # Roundings may differ by a step.
        bounded = eager if bool(apart.all(0).any()) else bounded
    return [rounded, bounded]


def _unstable(eager: Tensor, moved: Tensor | None) -> bool:
    """Whether integers change at all, or codes by more than a step, on inputs nearby."""
    if moved is None or moved.shape != eager.shape:
        return True
    if eager.dtype in FP8_DTYPES:
        return bool(_apart(eager, moved).any())
    return not torch.equal(eager, moved.to(eager.dtype))


def _apart(codes: Tensor, others: Tensor) -> Tensor:
    """A mask of codes that are more than a step from the others, or NaN or infinite unlike these."""
    a, b = codes.float(), others.float()
    step = ROUNDING[codes.dtype] * 2
    return ((a - b).abs() > step * a.abs() + step) | (kinds(a) != kinds(b))
