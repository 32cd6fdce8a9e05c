"""One derived call: outside the domain, right, or wrong. The reference decides what the domain is.

The rule is coarser than that of the given inputs (docs/hard-inputs.md): values that are equal or cancel leave eager
without any error by luck, and another correct kernel with one. So an error is allowed that some roundings explain,
or inputs that are off by as much as one float32 rounding or a subnormal that the device flushes to zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from perfguard.call import Call
from perfguard.canaries import Canaries
from perfguard.errors import MeasurementError
from perfguard.hard.derivation import derived_tensor
from perfguard.numerics.codes import FP8_DTYPES
from perfguard.numerics.differences import real_numbers
from perfguard.numerics.oracle import free_bytes
from perfguard.numerics.rule import FINITE, NAN, ROUNDING, Groups, kinds, sum_groups
from perfguard.numerics.trial import Inputs, Trial, run_trial, upstream_gradients
from perfguard.numerics.truth import Gradients, Reference, Truth
from perfguard.poison import Value, poisoned

MULTIPLE = 4.0  # of eager's error
NEARBY = 64.0  # of what inputs that are off by a rounding change
LEAST_ROUNDINGS = {torch.bfloat16: 2.0, torch.float16: 2.0, torch.float32: 64.0, torch.float64: 64.0}
FLUSHED = 2.0**-125  # twice the least normal float32: what is below may count as zero
LOST = 0.1  # relative error of eager's from which on it says nothing of the domain
_CANARY_SHARE = 1 / 8
_OFF = 2.0**-22  # a few roundings of float32
_TIES = 2.0**-12  # by which values move where integers may depend on which of them is larger

Tensor = torch.Tensor
Maybe = Tensor | None


@dataclass(frozen=True)
class Outcome:
    """`left_out`: why the input is none of the call's; `problem`: what is wrong. Both empty: right."""

    left_out: str = ""
    problem: str = ""


class _Near(Inputs):
    """The inputs, off by a rounding."""

    def __init__(self, call: Call, off: float) -> None:
        super().__init__(call)
        generators = {t.device: torch.Generator(t.device).manual_seed(call.seed) for t in self.tensors}
        made: dict[int, Tensor] = {}
        for leaf in self.tensors:
            if leaf.is_floating_point() and leaf.dtype not in FP8_DTYPES and leaf.itemsize > 1:
                made[id(leaf)] = _moved(leaf, off, generators[leaf.device])
        self._leaves = [made.get(id(leaf), leaf) for leaf in self._leaves]


def _moved(tensor: Tensor, off: float, generator: torch.Generator) -> Tensor:
    def noise() -> Tensor:
        signs = torch.randint(0, 2, tensor.shape, generator=generator, device=tensor.device)
        return signs.double() * 2 - 1

    relative = min(off, 2.0**-50) if tensor.dtype is torch.float64 and off == _OFF else off
    least = FLUSHED if off == _OFF else off
    moved = tensor.detach().double()
    return (moved * (1 + relative * noise()) + least * noise()).requires_grad_(tensor.requires_grad)


def judged(call: Call, *, forward_only: bool = False, cut: bool = False, incoming: str = "") -> Outcome:
    """Run the reference, the oracle and the candidate on the inputs of `call`, which are derived ones.

    Args:
        forward_only: gradients are left out.
        cut: sizes are others than given: outputs of another structure then say that the reference took the inputs for
            something else.
        incoming: how the incoming gradients are derived from random ones, in words.
    """
    inputs = Inputs(call)
    reference = Reference(call, inputs)
    try:
        eager = reference.run([])
        upstream: Gradients = []
        if not forward_only and inputs.leaf_names and any(eager.differentiable):
            upstream = upstream_gradients(eager, call.seed)
            upstream = [None if each is None else derived_tensor(each, incoming) for each in upstream]
            eager = reference.run(upstream)
        elif incoming:
            return Outcome(left_out="there are no gradients")
        truth = reference.truth(eager, upstream)
    except torch.OutOfMemoryError:
        raise
    except (
        MeasurementError,
        RuntimeError,
        ValueError,
        TypeError,
        IndexError,
        ArithmeticError,
        AssertionError,
    ) as error:
        if _device_is_lost(error):
            raise
        return Outcome(left_out="the reference raises")
    near = _near(call, reference, eager, upstream)
    if near is None:
        return Outcome(left_out="the reference raises")
    if unclear := _outside(truth, near):
        return Outcome(left_out=unclear)
    return _candidate(call, inputs, eager, upstream, truth, near, cut)


def _near(call: Call, reference: Reference, eager: Trial, upstream: Gradients) -> list[list[Maybe]] | None:
    """The oracle's tensors on inputs off by a rounding; where outputs hold integers or codes, on others, too."""
    discrete = any(t is not None and not _by_rule(t) for t in eager.tensors())
    found = []
    for off in (_OFF, _TIES) if discrete else (_OFF,):
        try:
            found.append(Reference(call, _Near(call, off)).oracle(eager, upstream))
        except (MeasurementError, RuntimeError, ValueError, TypeError, IndexError, AssertionError) as error:
            if _device_is_lost(error):
                raise
            return None
    return found


def _by_rule(tensor: Tensor) -> bool:
    return tensor.dtype in LEAST_ROUNDINGS or tensor.is_complex()


def _outside(truth: Truth, near: Sequence[Sequence[Maybe]]) -> str:
    """Why the input lies outside the domain, or ''."""
    for position, eager in enumerate(truth.eager):
        oracle, moved = truth.oracle[position], near[0][position]
        if eager is None or eager.numel() == 0:
            continue
        if not _by_rule(eager):
            if any(_unstable(eager, other[position]) for other in near):
                return "at a tie or an edge of the reference"
            continue
        if oracle is None or moved is None:
            oracle = eager if oracle is None else oracle
            moved = oracle if moved is None else moved
        e, o, m = (real_numbers(t) for t in (eager, oracle, moved))
        kind = kinds(o.to(e.dtype).double())
        if not torch.equal(kinds(e.double()), kind):
            return "reference and oracle disagree on what is finite"
        if not torch.equal(kinds(m.to(e.dtype).double()), kind):
            return "at a tie or an edge of the reference"
        rms, error, shift = _errors(e, o, m, truth)
        if bool((error > LOST * rms + NEARBY * shift + _least(e.dtype)).any()):
            return "reference and oracle are far apart"
    return ""


def _unstable(eager: Tensor, moved: Maybe) -> bool:
    """Whether integers change, or codes by more than a step, on inputs nearby."""
    if moved is None or moved.shape != eager.shape:
        return True
    if eager.dtype in FP8_DTYPES:
        a, b = eager.float(), moved.float()
        step = ROUNDING[eager.dtype] * 2
        return bool(((a - b).abs() > step * a.abs() + step).any()) or not torch.equal(kinds(a), kinds(b))
    return not torch.equal(eager, moved.to(eager.dtype))


def _errors(candidate: Tensor, oracle: Tensor, moved: Tensor, truth: Truth) -> tuple[Tensor, Tensor, Tensor]:
    """By groups: RMS of the oracle, RMSE of the candidate, RMSE of the oracle nearby."""
    groups = Groups(candidate.shape, truth.tolerance.group_dim if truth.tolerance else None)
    sums = sum_groups(candidate, moved, oracle, groups)
    return tuple((each / sums.count).sqrt() for each in (sums.oracle, sums.candidate, sums.eager))  # type: ignore


def _least(dtype: torch.dtype) -> float:
    info = torch.finfo(dtype)
    return max(4 * info.smallest_normal * info.eps, 4 * FLUSHED)


def _candidate(
    call: Call,
    inputs: Inputs,
    eager: Trial,
    upstream: Gradients,
    truth: Truth,
    near: Sequence[Sequence[Maybe]],
    cut: bool,
) -> Outcome:
    infinite = any(tensor.dtype in LEAST_ROUNDINGS and bool(tensor.isinf().any()) for tensor in inputs.tensors)
    device = next((tensor.device for tensor in inputs.tensors), torch.device("cpu"))
    fills: tuple[Value, ...] = ("nan", "zero")
    for value in fills:
        canaries = Canaries(_CANARY_SHARE * free_bytes(device)) if value == "nan" else None
        try:
            with poisoned(value, canaries):
                trial = run_trial(call.fn, inputs, upstream, seed=call.seed)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            if _device_is_lost(error):
                raise
            return Outcome(left_out="the candidate raises")
        problem = next((f"out of bounds: {words}" for words in canaries.written()), "") if canaries else ""
        problem = problem or next(iter(trial.modified), "")
        if not problem and not _same_structure(trial, eager):
            if cut:
                return Outcome(left_out="other results than the reference's by shape")
            problem = "outputs: other tensors than the reference's"
        if not problem:
            problem = _wrong(trial, truth, near[0], infinite)
        if problem:
            return Outcome(problem=problem)
    return Outcome()


def _same_structure(trial: Trial, eager: Trial) -> bool:
    if trial.names != eager.names:
        return False
    pairs = zip(trial.outputs, eager.outputs, strict=True)
    return all(a.shape == b.shape and a.dtype == b.dtype for a, b in pairs)


def _wrong(trial: Trial, truth: Truth, near: Sequence[Maybe], infinite: bool) -> str:
    """What is wrong with the first wrong tensor, or ''."""
    tensors = trial.tensors()
    exact = truth.exact_scales(tensors)
    for position, (got, eager) in enumerate(zip(tensors, truth.eager, strict=True)):
        oracle, moved = truth.oracle[position], near[position]
        if got is None or eager is None or got.numel() == 0 or not _by_rule(eager) or truth.is_scale(position):
            problem = truth.judge(position, got, exact).problem
        elif got.shape != eager.shape or got.dtype != eager.dtype:
            problem = truth.judge(position, got).problem
        else:
            want = eager if oracle is None else oracle
            problem = _far(got, eager, want, want if moved is None else moved, truth, position, infinite)
        if problem:
            return problem
    return ""


def _unlike(got: Tensor, want: Tensor, infinite: bool) -> Tensor:
    """Where NaN and infinities are not where they should be.

    What infinite inputs come to depends on the formula: inf - inf is NaN, and a limit by another one. So there a NaN is
    also right for an infinity, and anything is where the reference has NaN.
    """
    kind, due = kinds(got.double()), kinds(want.double())
    if not infinite:
        return kind != due
    return (kind != due) & (due != NAN) & ~((due != FINITE) & (kind == NAN))


def _far(got: Tensor, eager: Tensor, oracle: Tensor, moved: Tensor, truth: Truth, position: int, infinite: bool) -> str:
    """Whether one tensor is further from the oracle than roundings explain."""
    name = truth.names[position]
    c, e, o, m = (real_numbers(t) for t in (got, eager, oracle, moved))
    unlike = _unlike(c, o.to(c.dtype), infinite)
    if bool(unlike.any()):
        index = [int(each) for each in unlike.nonzero()[0]]
        values = f"got {float(c[tuple(index)]):.6g}, want {float(o[tuple(index)]):.6g}"
        number = f"{int(unlike.sum())} of {c.numel()} elements"
        return f"{name}: {number} are NaN or Inf unlike the oracle's; {values} at {index}"
    rms, error, shift = _errors(c, o, m, truth)
    _, by_eager, _ = _errors(e, o, m, truth)
    least = LEAST_ROUNDINGS[c.dtype] * ROUNDING[c.dtype] * rms
    given = truth.tolerance.k if truth.tolerance and truth.tolerance.k is not None else 0.0
    limit = max(MULTIPLE, 2 * given) * by_eager.maximum(least) + NEARBY * shift + _least(c.dtype)
    wrong = error > limit
    if not bool(wrong.any()):
        return ""
    groups = Groups(c.shape, truth.tolerance.group_dim if truth.tolerance else None)
    group = int((error / limit).argmax())
    a, b = groups.select(c, group), groups.select(o, group)
    element = int((a.double() - b.double()).abs().nan_to_num(0.0, 0.0, 0.0).argmax())
    return (
        f"{name}: RMSE {float(error[group]):.3g} in {groups.label(group)}, limit {float(limit[group]):.3g}; worst at "
        f"{groups.index(group, element)}: got {float(a[element]):.6g}, want {float(b[element]):.6g}"
    )


def _device_is_lost(error: BaseException) -> bool:
    """Whether the device answers no more: nothing that follows says anything about the call."""
    return type(error).__name__ == "AcceleratorError" or "CUDA error" in str(error) or "HIP error" in str(error)
