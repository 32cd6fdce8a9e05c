"""The judgement of one derived call: outside the domain, right, or wrong. The reference defines the domain."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from perfguard.check.hard_inputs.comparison import (
    AT_AN_EDGE,
    LOST,
    NEARBY,
    Outcome,
    Rule,
    Usual,
    check_ties,
    coarsened,
    compare,
    compare_cast,
    errors,
    follows_rule,
    least_error,
)
from perfguard.check.hard_inputs.derivation import (
    INCOMING,
    TUNED,
    Derivation,
    derived_call,
    derived_tensor,
    followers_of,
)
from perfguard.check.hard_inputs.nearby import FLUSHED, Nearby, nearby, roundings
from perfguard.check.hard_inputs.values import LARGEST, takes_values
from perfguard.check.memory import GUARD, Canaries, empty_tensors_have_addresses, poisoned
from perfguard.check.numerics.procedure import LeftOut
from perfguard.check.numerics.sums import (
    FP8_DTYPES,
    NAN,
    ROUNDING,
    dtype_name,
    kinds,
    real_numbers,
    rmse,
)
from perfguard.check.numerics.trial import Gradients, Inputs, Trial, run_trial, surrounded_gradient
from perfguard.check.numerics.truth import Reference, Truth
from perfguard.check.writers import with_writers
from perfguard.interpreter.entry import interpreter_error
from perfguard.interpreter.running import NotInterpreted, StrictRunImpossible, bounded
from perfguard.model.call import Call
from perfguard.model.errors import MeasurementError, described, hit_recompile_limit, is_out_of_memory

JUMP = 1e-3  # share of the whole tensor's RMS by which a group may change if ties are broken
SCALE_MOVES = 2.0**-18  # relative change by inputs off by a rounding, beyond which a scale is at an edge
SCALED = 1e-3  # The largest difference from a whole exponent: 1.2 % of the RMS.
_OFF = 4.0  # roundings by which results of operators are made off: a short sum has as many

#: exceptions by which a reference refuses its inputs
REFUSALS = (MeasurementError, RuntimeError, ValueError, TypeError, IndexError, ArithmeticError, AssertionError)
#: exceptions that are never a refusal, but a mistake in code that only such an input reaches
SLIPS = (AttributeError, NameError)


def judged(call: Call, derivation: Derivation, usual: Callable[[], Usual] = dict) -> Outcome:
    """Run the reference and the candidate on the inputs of `call`, which come from `derivation`.

    The domain only matters if the two differ. The oracle is then run on the inputs and near them. If sizes were cut,
    outputs of another structure mean that the reference interpreted the inputs differently.

    Args:
        usual: the RMS of each tensor on the given inputs.
    """
    try:
        return _compared(call, derivation, usual)
    except LeftOut as left:
        return Outcome(left_out=str(left))


def _compared(call: Call, derivation: Derivation, usual: Callable[[], Usual]) -> Outcome:
    inputs = Inputs(call)
    finite = _are_finite(inputs)
    overflow = any(part.kind == "values" for part in derivation.parts) and not finite  # float16 does
    if overflow and call.hard and "non-finite" in call.hard.without:
        raise LeftOut("inputs overflow")
    reference = Reference(call, inputs)
    with defines_the_domain():
        eager, upstream = _eager(reference, derivation)
    if derivation.text(INCOMING) and not upstream:
        raise LeftOut("there are no gradients")
    if derivation.text(INCOMING) and any(each is not None and not bool(each.isfinite().all()) for each in upstream):
        raise LeftOut("incoming gradients overflow")
    trial = _candidate(call, eager, upstream, derivation)
    if isinstance(trial, str):
        return Outcome(problem=trial)
    if inputs.procedure.coarse is not None or inputs.procedure.is_cast:
        trial, eager = coarsened(trial, eager, inputs.procedure.coarse)
    if not trial.unequal(eager):
        return Outcome()
    if inputs.procedure.is_cast:
        with defines_the_domain():
            return compare_cast(trial, reference.truth(eager, upstream))
    infinite = any(bool(tensor.isinf().any()) for tensor in inputs.tensors if takes_values(tensor))
    rule = Rule(infinite=infinite, cancels=derivation.cancels, saturated=derivation.saturates)
    check_ties(trial, eager, derivation.is_called)
    with defines_the_domain():
        truth = reference.truth(eager, upstream)
        if not compare(trial, truth, truth.oracle, rule).problem:
            return Outcome()
        near = nearby(call, eager, upstream)
        off = max((_OFF * ROUNDING[each.dtype] for each in inputs.tensors if each.dtype in ROUNDING), default=0.0)
        noisy = roundings(call, eager, upstream, off) if rule.saturated and upstream else []
    if finite and (problem := _lost(trial, truth, near, usual()) or _no_choice(trial, truth, near)):
        return Outcome(problem=problem)
    for position in range(truth.first_gradient if rule.saturated else len(truth.eager)):
        _check_domain(position, truth, near, finite)
    ties = [near.untied, *near.chosen] if noisy else []
    rule = replace(rule, usual=usual(), masked=near.masked or (), incoming=derivation.incoming, noisy=[*noisy, *ties])
    outcome = compare(trial, truth, near.rounded, rule)
    if outcome.backward and derivation.scales and not _scaled(truth, usual()):
        raise LeftOut("the reference does not scale with its input")
    return outcome


def _are_finite(inputs: Inputs) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in inputs.tensors if takes_values(tensor))


@contextmanager
def defines_the_domain() -> Iterator[None]:
    """Runs of the reference. Inputs that it refuses are outside the domain."""
    try:
        yield
    except (*REFUSALS, *SLIPS) as error:  # A reference may expect a tensor as an option.
        if is_out_of_memory(error) or device_is_lost(error):
            raise
        raise LeftOut("the reference raises") from error


def _eager(reference: Reference, derivation: Derivation) -> tuple[Trial, Gradients]:
    """The reference's results, and the incoming gradients; no gradients if nothing is differentiable."""
    if derivation.forward_only:
        return reference.run([]), []
    return reference.eager(lambda gradient: derived_tensor(gradient, derivation.text(INCOMING)))


def is_told(base: Call, derivation: Derivation, joint: Derivation | None = None) -> bool:
    """Whether the reference can judge a derivation. It may ignore an option, or the rest of an input if others are
    shorter, and its random results are no truth.

    Args:
        base: the call from which inputs are derived.
        joint: the derivation that changes all places of a size, of which the first changes some.
    """

    def changes(one: Derivation, other: Derivation, seed: int = 0) -> bool:
        calls = [replace(derived_call(base, each), seed=base.seed + by) for each, by in ((one, 0), (other, seed))]
        first, second = (Reference(call, Inputs(call)).run([]) for call in calls)
        alike = [each.shape for each in first.outputs] == [each.shape for each in second.outputs]
        return not alike or first.names != second.names or bool(first.unequal(second))

    try:
        with defines_the_domain():
            chosen = [part for part in derivation.parts if part.kind in ("scalars", "unmarked integers")]
            told = all(changes(Derivation((part,)), followers_of(part, base)) for part in chosen)
            told = told and not (derivation.scalars and changes(derivation, derivation, seed=1))
            others = [] if joint is None else [joint, Derivation(())]
            return told and all(changes(derivation, each) for each in others)
    except LeftOut:
        return False


def usual_scales(call: Call) -> Usual:
    """The RMS of the reference's outputs and gradients by name; empty if it raises."""
    inputs = Inputs(call)
    try:
        eager, upstream = _eager(Reference(call, inputs), Derivation(()))
    except REFUSALS as error:
        if device_is_lost(error):
            raise
        return {}
    names = [*eager.names, *inputs.written_names, *(f"gradient of {name}" for name in inputs.leaf_names if upstream)]
    pairs = zip(names, eager.tensors(), strict=True)
    return {name: rmse(tensor) for name, tensor in pairs if tensor is not None and follows_rule(tensor)}


def device_is_lost(error: BaseException) -> bool:
    """Whether the device no longer responds, so that later results are meaningless."""
    return type(error).__name__ == "AcceleratorError" or "CUDA error" in str(error) or "HIP error" in str(error)


# -- the candidate -----------------------------------------------------------------------------------------------------


def _candidate(call: Call, eager: Trial, upstream: Gradients, derivation: Derivation) -> Trial | str:
    """The candidate's results in memory filled with NaN, or its problem.

    Inputs lie between guards, which expose reads beside them. On a CPU, unmapped memory there could end the process.

    Raises:
        LeftOut: the candidate may refuse the input, or means something else by it than the reference.
    """
    inputs = Inputs(call)
    canaries = Canaries.on(inputs.device)
    try:
        guarded = _between_guards(inputs, upstream, canaries, derivation)
        with guarded as incoming, poisoned("nan", canaries), bounded(canaries.content_of):
            trial = run_trial(call.fn, inputs, incoming, seed=call.seed)
    except Exception as error:
        return _raised(error, derivation, inputs)
    for words in canaries.written():
        return f"out of bounds: {words}"
    for words in trial.modified:
        if derivation.scalars:
            raise LeftOut("an option that asks for writes")
        return with_writers([words], call, Inputs(call), upstream)[0]
    ours, theirs = ([(name, each.shape) for name, each in zip(t.names, t.outputs, strict=True)] for t in (trial, eager))
    if ours != theirs:
        if derivation.resizes or derivation.scalars or derivation.text(TUNED):
            raise LeftOut("other results than the reference's by shape")
        return "outputs: other tensors than the reference's"
    for place, (name, got, want) in enumerate(zip(trial.names, trial.outputs, eager.outputs, strict=True)):
        if got.dtype != want.dtype and not inputs.procedure.may_return(got.dtype, place):
            return f"{name}: dtype {dtype_name(got)} for {dtype_name(want)}, which the reference has"
    return trial


def _raised(error: Exception, derivation: Derivation, inputs: Inputs) -> str:
    """The problem of a candidate that raised."""
    if is_out_of_memory(error) or device_is_lost(error) or isinstance(error, LeftOut):
        raise error
    said = interpreter_error(error)
    if isinstance(said, NotInterpreted | StrictRunImpossible):
        raise LeftOut(str(said)) from error
    if said is not None:
        return str(said)
    if hit_recompile_limit(error):  # Derived inputs have used up the variants, not the user's calls.
        raise LeftOut("torch.compile compiles no further variant") from error
    refusable = derivation.may_be_refused or isinstance(error, NotImplementedError) or not _are_finite(inputs)
    if refusable and (derivation.scalars or not isinstance(error, SLIPS)):
        raise LeftOut("the candidate raises") from error
    return f"raises {described(error)}"


@contextmanager
def _between_guards(
    inputs: Inputs, upstream: Gradients, canaries: Canaries, derivation: Derivation
) -> Iterator[Gradients]:
    """Replace inputs by copies between guards while inside; yields incoming gradients that are such copies as well."""
    if derivation.far_apart:  # gigabytes, which are not copied
        yield upstream
        return
    with inputs.surrounded(canaries, lambda _: GUARD), empty_tensors_have_addresses():
        yield [
            surrounded_gradient(gradient, f"the incoming gradient of output {place}", canaries)
            for place, gradient in enumerate(upstream)
        ]


def _no_choice(trial: Trial, truth: Truth, near: Nearby) -> str:
    """The problem of outputs whose rows hold other values than the reference's, in any order. Whichever of equal
    elements is chosen, such as the first or the last of equal logits, the rows keep their values."""
    for position, got in enumerate(trial.tensors()[: truth.first_gradient]):
        eager, *chosen = (tensors[position] for tensors in (truth.eager, *near.chosen))
        if got is None or eager is None or not follows_rule(eager) or got.shape != eager.shape or not eager.ndim:
            continue
        if bool(real_numbers(eager).isnan().any()):
            continue
        others = [each for each in chosen if each is not None and each.shape == eager.shape]
        want, mine, *rows = (real_numbers(each).double().sort(-1).values for each in (eager, got, *others))
        differs = [each for each in others if not torch.equal(each, eager)]
        limit = LOST * want.where(want.isfinite(), 0).square().mean(-1, keepdim=True).sqrt()
        if differs and all(map(partial(_are_within, want, limit), rows)) and not _are_within(want, limit, mine):
            row = int((~_is_within(want, limit, mine)).flatten(0, -2).any(-1).nonzero()[0]) if want.ndim > 1 else 0
            return f"{truth.names[position]}: row {row} has other values than the reference's, whichever of equal ones"
    return ""


def _is_within(want: Tensor, limit: Tensor, got: Tensor) -> Tensor:
    return (want == got) | ((want - got).abs() <= limit) | (want.isnan() & got.isnan())


def _are_within(want: Tensor, limit: Tensor, got: Tensor) -> bool:
    return bool(_is_within(want, limit, got).all())


# -- the domain --------------------------------------------------------------------------------------------------------


def _lost(trial: Trial, truth: Truth, near: Nearby, usual: Usual) -> str:
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
        lost = ~got.isfinite()
        for each in others:
            lost &= real_numbers(each).isfinite()
        if bool(lost.any()):
            at, number = lost.nonzero()[0].tolist(), int(lost.sum())
            return (
                f"{truth.names[position]}: {number} of {got.numel()} elements are NaN or Inf of finite inputs, and the "
                f"reference's are finite; first at {at}: got {got[tuple(at)].item()}"
            )
    return ""


def _check_domain(position: int, truth: Truth, near: Nearby, finite: bool) -> None:
    """Compare one tensor of eager with the oracle, there and nearby.

    Args:
        finite: whether all inputs are finite. NaN, for example from the logarithm of a negative probability, then means
            that they are outside the domain.

    Raises:
        LeftOut: the input lies outside the domain.
    """
    eager, rounded, untied = truth.eager[position], near.rounded[position], near.untied[position]
    chosen, scale = [each[position] for each in near.chosen], truth.is_scale(position)
    if eager is None or eager.numel() == 0:
        return
    if not follows_rule(eager):
        moved = [rounded] if eager.dtype in FP8_DTYPES else [*chosen, rounded, untied, *near.numbered(position)]
        # A code of an infinity, and a place of NaN, is the reference's choice.
        moved += [near.bounded[position]] if near.bounded is not None else []
        if any(_unstable(eager, each) for each in moved):
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


def _scaled(truth: Truth, usual: Usual) -> bool:
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


def _unstable(eager: Tensor, moved: Tensor | None) -> bool:
    """Whether integers change at all, or codes by more than a step, on inputs nearby."""
    if moved is None or moved.shape != eager.shape:
        return True
    if eager.dtype in FP8_DTYPES:
        a, b = eager.float(), moved.float()
        step = ROUNDING[eager.dtype] * 2
        return bool(((a - b).abs() > step * a.abs() + step).any()) or not torch.equal(kinds(a), kinds(b))
    return not torch.equal(eager, moved.to(eager.dtype))
