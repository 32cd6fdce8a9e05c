"""The rule by which results on derived inputs are right (docs/hard-inputs.md).

It is coarser than that of the given inputs. If values are equal or cancel, eager may have no error by luck, while
another correct kernel has one. So errors are allowed if some roundings explain them, or a change of the inputs by one
float32 rounding or by a subnormal that the device flushes to zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from perfguard.check.hard_inputs.nearby import FLUSHED
from perfguard.check.hard_inputs.values import LARGE
from perfguard.check.numerics.procedure import LeftOut
from perfguard.check.numerics.rule import of_hard_groups
from perfguard.check.numerics.sums import FINITE, NAN, ROUNDING, Groups, kinds, real_numbers, rmse, sum_groups
from perfguard.check.numerics.trial import Trial
from perfguard.check.numerics.truth import Truth

MULTIPLE = 4.0  # The allowed multiple of eager's error.
NEARBY = 64.0  # The allowed multiple of the change by inputs that are off by a rounding.
LEAST_ROUNDINGS = {torch.bfloat16: 2.0, torch.float16: 2.0, torch.float32: 64.0, torch.float64: 64.0}
_RESIDUES = 16.0  # The allowed multiple of the residue that roundings of operators leave of terms that cancel.
# Where scores are 2^7 times as large, a softmax that is made again of their logsumexp is off by so much: its backward
# pass subtracts terms that then no longer cancel.
_OF_LARGE = LEAST_ROUNDINGS[torch.float32] * ROUNDING[torch.float32] * 2**LARGE
_SHARE = 0.1  # The allowed relative error of an element, which no rounding exceeds.
_FEW = 0.005  # In this share of elements, terms may cancel further than the draws of roundings show.
LOST = 0.1  # The relative error from which on eager does not define the domain.
AT_AN_EDGE = "at a tie or an edge of the reference"
NEGLIGIBLE = 2.0**-20  # Sixteen roundings of float32.

Usual = Mapping[str, float]


@dataclass(frozen=True)
class Outcome:
    """The outcome of one derived input.

    Attributes:
        left_out: the reason why the input is outside the call's domain.
        problem: the error; the result is right if both are empty.
        backward: whether a gradient is wrong.
    """

    left_out: str = ""
    problem: str = ""
    backward: bool = False


@dataclass(frozen=True)
class Rule:
    """The requirements on results.

    Attributes:
        infinite: inputs are infinite, so that NaN may be right (`_unlike`).
        cancels: terms of the results may cancel.
        saturated: gradients have to be finite where the reference's are, and right where no cancellation decides
            (`_beyond_residues`).
        usual: the RMS of each tensor on the given inputs; an error of `NEGLIGIBLE` times this is allowed, of gradients
            some roundings of it: what is left where terms of that size cancel.
        masked: by position, what is also right in place of NaN: `Nearby.masked`.
        incoming: by how much larger incoming gradients are than usual.
        noisy: what the oracle's tensors may be as well if its operators round, or choose others of equal elements.
    """

    infinite: bool
    cancels: bool
    saturated: bool
    usual: Usual = field(default_factory=dict)
    masked: Sequence[Tensor | None] = ()
    incoming: float = 1.0
    noisy: Sequence[Sequence[Tensor | None]] = ()

    @property
    def usual_gradient(self) -> float:
        """The RMS of the largest gradient on the given inputs."""
        return max((rms for name, rms in self.usual.items() if name.startswith("gradient of ")), default=0.0)


def compare(trial: Trial, truth: Truth, near: Sequence[Tensor | None], rule: Rule) -> Outcome:
    """The outcome with the problem of the first wrong tensor, if any."""
    tensors = _with_free_ids(trial.tensors(), truth.eager, 0.0)
    exact = truth.exact_scales(tensors)
    for position, (got, eager) in enumerate(zip(tensors, truth.eager, strict=True)):
        oracle, moved = truth.oracle[position], near[position]
        by_rule = got is not None and eager is not None and got.numel() and follows_rule(eager)
        if got is None or eager is None or not by_rule or truth.is_scale(position):
            problem = truth.judge(position, got, exact, tensors).problem
        elif got.shape != eager.shape or got.dtype != eager.dtype:
            problem = truth.judge(position, got).problem
        else:
            want = eager if oracle is None else oracle
            problem = _far((got, eager, want, want if moved is None else moved), truth, position, rule)
        if problem:
            return Outcome(problem=problem, backward=position >= truth.first_gradient)
    return Outcome()


def _with_free_ids(got: Sequence[Tensor | None], eager: Sequence[Tensor | None], share: float) -> list[Tensor | None]:
    """The candidate's tensors, with the reference's ids where an id is free.

    Args:
        share: the relative difference of two weights that may tie. With 0, an id is free if its weight is 0 or NaN on
            both sides: a router whose probabilities have reached 0 takes any of these experts, and nothing comes of it.
    """
    pairs = [(mine, theirs) for mine, theirs in zip(got, eager, strict=True) if mine is not None and theirs is not None]
    weights = [pair for pair in pairs if all(follows_rule(each) for each in pair)]

    def with_theirs(mine: Tensor | None, theirs: Tensor | None) -> Tensor | None:
        if mine is None or theirs is None or mine.dtype not in (torch.int32, torch.int64) or not mine.numel():
            return mine
        for pair in weights:
            if mine.shape == theirs.shape == pair[0].shape == pair[1].shape:
                a, b = (each.double() for each in pair)
                free = (a - b).abs() <= share * b.abs() if share else a.abs().maximum(b.abs()) <= FLUSHED
                free |= a.isnan() & b.isnan()
                free &= (mine >= theirs.amin()) & (mine <= theirs.amax())
                mine = torch.where(free, theirs.to(mine.dtype), mine)
        return mine

    return [with_theirs(*pair) for pair in zip(got, eager, strict=True)]


def check_ties(trial: Trial, eager: Trial, recast: bool) -> None:
    """In a dtype that the caller has not chosen (`recast`), compare integers and the floats beside them.

    Raises:
        LeftOut: integers differ, and only where these floats are alike by roundings, as weights of experts that tie.
    """
    if recast:
        share = MULTIPLE * max((ROUNDING.get(each.dtype, 0.0) for each in trial.outputs), default=0.0)
        mine, theirs = trial.tensors(), eager.tensors()
        triples = zip(mine, _with_free_ids(mine, theirs, share), theirs, strict=True)
        changed = [(free, their) for got, free, their in triples if free is not got and free is not None]
        if changed and all(their is not None and torch.equal(free, their) for free, their in changed):
            raise LeftOut(AT_AN_EDGE)


def coarsened(trial: Trial, eager: Trial, dtype: torch.dtype | None) -> tuple[Trial, Trial]:
    """Both with floats in one dtype, the coarsest of theirs and `dtype`."""
    made: tuple[list[Tensor | None], list[Tensor | None]] = [], []
    for pair in zip(trial.tensors(), eager.tensors(), strict=True):
        floats = [each.dtype for each in pair if each is not None and each.dtype in LEAST_ROUNDINGS]
        dtypes = [*floats, *([dtype] if dtype else [])]
        coarsest = max(dtypes, key=lambda each: torch.finfo(each).eps, default=None)
        for side, each in zip(made, pair, strict=True):
            side.append(each if each is None or each.dtype not in LEAST_ROUNDINGS else each.to(coarsest))
    return _with_tensors(trial, made[0]), _with_tensors(eager, made[1])


def _with_tensors(trial: Trial, tensors: Sequence[Tensor | None]) -> Trial:
    outputs, end = len(trial.outputs), len(trial.outputs) + len(trial.written)
    known = [each for each in tensors[:end] if each is not None]
    return replace(trial, outputs=known[:outputs], written=known[outputs:], gradients=[*tensors[end:]])


def compare_cast(trial: Trial, truth: Truth) -> Outcome:
    """The outcome where operators choose their dtypes: other formulas round elsewhere, and choose others of values that
    are close. So integers are not compared, and of each float the whole tensor is."""
    for position, (got, eager) in enumerate(zip(trial.tensors(), truth.eager, strict=True)):
        oracle, name, backward = truth.oracle[position], truth.names[position], position >= truth.first_gradient
        if eager is None or oracle is None or not follows_rule(eager):
            continue
        rms, by_eager = rmse(oracle), rmse(eager, oracle)
        if not by_eager <= LOST * rms or (backward and not rms):  # NaN; terms that cancel as a whole
            continue
        if got is None:
            if rms:
                return Outcome(problem=f"{name}: there is none; the reference's RMS is {rms:.3g}", backward=backward)
            continue
        lost = eager.isfinite() & oracle.isfinite() & ~got.isfinite()
        if bool(lost.any()):
            return Outcome(problem=f"{name}: {int(lost.sum())} elements are NaN or Inf", backward=backward)
        error, limit = rmse(got, oracle), max(MULTIPLE * by_eager, LOST * rms) + least_error(got.dtype)
        if not error <= limit:
            return Outcome(problem=f"{name}: RMSE {error:.3g}, limit {limit:.3g}, RMS {rms:.3g}", backward=backward)
    return Outcome()


def _far(tensors: Sequence[Tensor], truth: Truth, position: int, rule: Rule) -> str:
    """The problem of a tensor that is further from the oracle than roundings explain, or ''.

    Args:
        tensors: the candidate's, eager's, the oracle's, and the oracle's for inputs off by a rounding.
    """
    c, e, o, m = map(real_numbers, tensors)
    name, gradient = truth.names[position], position >= truth.first_gradient
    residue = gradient and rule.saturated
    # What only these inputs make infinite, in float64 too, is NaN in formulas that subtract it.
    overflown = math.isfinite(rule.usual.get(name, math.nan)) and bool(o.isinf().any())
    unlike = (
        _overflows(c, (e, o, m), rule.infinite) if residue else _unlike(c, o.to(c.dtype), rule.infinite or overflown)
    )
    unlike &= ~_at_the_end_of_its_range(c, o)
    if overflown and not rule.infinite:  # where another formula does not overflow, as a stable logsumexp does not
        unlike &= ~(o.isinf() & c.isfinite())
    masked = rule.masked[position] if rule.masked else None
    if masked is not None:  # a mask by `where` stops NaN, one by a product with 0 does not
        unlike &= ~_close(c, real_numbers(masked))
    if bool(unlike.any()):
        index = [int(each) for each in unlike.nonzero()[0]]
        values = f"got {float(c[tuple(index)]):.6g}, want {float(o[tuple(index)]):.6g}"
        number = f"{int(unlike.sum())} of {c.numel()} elements"
        return f"{name}: {number} are NaN or Inf unlike the oracle's; {values} at {index}"
    if residue:
        noisy = [real_numbers(each) for tensors in rule.noisy if (each := tensors[position]) is not None]
        return _beyond_residues((c, e, o, m), noisy, name, rule)
    rms, error, shift = errors(c, o, m, truth)
    _, by_eager, _ = errors(e, o, m, truth)
    if gradient or rule.cancels:  # if terms of a sum over rows cancel, their roundings scale with other groups
        rms = rms.maximum(rms.square().mean().sqrt())
    roundings = LEAST_ROUNDINGS[c.dtype] * ROUNDING[c.dtype]
    least = (roundings * rms).maximum(of_hard_groups(by_eager, rms))
    given = truth.tolerance.k if truth.tolerance and truth.tolerance.k is not None else 0.0
    limit = max(MULTIPLE, 2 * given) * by_eager.maximum(least) + NEARBY * shift + least_error(c.dtype)
    usual = rule.usual.get(name, 0.0)
    limit = limit + (MULTIPLE * roundings * rule.incoming if gradient else NEGLIGIBLE) * usual
    if bool((error > limit).any()):
        limit = limit + MULTIPLE * truth.left_over(position, rule.incoming * rule.usual_gradient)
    if not bool((error > limit).any()):
        return ""
    groups = _groups(c, truth)
    group = int((error / limit).argmax())
    a, b = groups.select(c, group), groups.select(o, group)
    element = int((a.double() - b.double()).abs().nan_to_num(0.0, 0.0, 0.0).argmax())
    return (
        f"{name}: RMSE {float(error[group]):.3g} in {groups.label(group)}, limit {float(limit[group]):.3g}; worst at "
        f"{groups.index(group, element)}: got {float(a[element]):.6g}, want {float(b[element]):.6g}"
    )


def _beyond_residues(tensors: Sequence[Tensor], noisy: Sequence[Tensor], name: str, rule: Rule) -> str:
    """The problem of a gradient some element of which is off by more than a tenth and by far more than roundings of
    operators change it, or its row, or ''."""
    c, e, o, m = (each.double() for each in tensors)
    off = torch.stack([(each.double() - o).abs() for each in (e, *noisy)]).amax(0)
    off = off.maximum(off.square().mean(-1, keepdim=True).sqrt()) if off.ndim else off
    limit = _RESIDUES * off + _SHARE * o.abs() + NEARBY * (m - o).abs() + least_error(tensors[0].dtype)
    roundings = LEAST_ROUNDINGS[tensors[0].dtype] * ROUNDING[tensors[0].dtype]
    limit += MULTIPLE * roundings * rule.incoming * max(rule.usual.get(name, 0.0), rule.usual_gradient)
    limit += _OF_LARGE * o.nan_to_num(0.0, 0.0, 0.0).square().mean().sqrt()
    wrong = ((c - o).abs() > limit) & limit.isfinite()
    if int(wrong.sum()) <= _FEW * wrong.numel():
        return ""
    index = [int(each) for each in wrong.nonzero()[0]]
    values = f"got {float(c[tuple(index)]):.6g}, want {float(o[tuple(index)]):.6g}"
    return f"{name}: {int(wrong.sum())} of {c.numel()} elements are wrong at large inputs; {values} at {index}"


def _unlike(got: Tensor, want: Tensor, infinite: bool) -> Tensor:
    """A mask of misplaced NaN and infinities.

    Results for infinite inputs depend on the formula: inf - inf is NaN, another formula gives a limit. So with infinite
    inputs NaN is right in place of an infinity, and any value is right where the reference has NaN.
    """
    kind, due = kinds(got.double()), kinds(want.double())
    if not infinite:
        return kind != due
    return (kind != due) & (due != NAN) & ~((due != FINITE) & (kind == NAN))


def _overflows(got: Tensor, references: Sequence[Tensor], infinite: bool) -> Tensor:
    """A mask of elements that are not finite where all references are; empty for infinite inputs."""
    finite = torch.stack([each.to(got.dtype).isfinite() for each in references]).all(0)
    return finite & ~got.isfinite() & (not infinite)


def _at_the_end_of_its_range(got: Tensor, want: Tensor) -> Tensor:
    """A mask of elements that roundings alone may have made infinite, or kept from it."""
    largest = torch.finfo(got.dtype).max
    apart = (got.double().clamp(-largest, largest) - want.double()).abs()
    return apart <= MULTIPLE * LEAST_ROUNDINGS[got.dtype] * ROUNDING[got.dtype] * largest


def follows_rule(tensor: Tensor) -> bool:
    """Whether errors are judged, and not codes or integers."""
    return tensor.dtype in LEAST_ROUNDINGS or tensor.is_complex()


def errors(candidate: Tensor, oracle: Tensor, moved: Tensor, truth: Truth) -> tuple[Tensor, Tensor, Tensor]:
    """Per group: RMS of the oracle, RMSE of the candidate, RMSE of the oracle nearby."""
    return sum_groups(candidate, moved, oracle, _groups(candidate, truth)).roots()


def _groups(tensor: Tensor, truth: Truth) -> Groups:
    return Groups(tensor.shape, truth.tolerance.group_dim if truth.tolerance else None)


def least_error(dtype: torch.dtype) -> float:
    """An error that is always allowed: a few of the dtype's least numbers."""
    info = torch.finfo(dtype)
    return max(4 * info.smallest_normal * info.eps, 4 * FLUSHED)


def _close(got: Tensor, want: Tensor) -> Tensor:
    """A mask of elements that differ by few roundings of the largest."""
    largest = want.double().nan_to_num(0.0, 0.0, 0.0).abs().amax()
    return (got.double() - want.double()).abs() <= NEARBY * ROUNDING[got.dtype] * largest
