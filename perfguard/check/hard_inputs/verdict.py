"""The judgement of one derived call: outside the domain, right, or wrong. The reference defines the domain."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from perfguard.check.hard_inputs.comparison import (
    LEAST_ROUNDINGS,
    LOST,
    Outcome,
    Rule,
    Usual,
    check_ties,
    coarsened,
    compare,
    compare_cast,
    follows_rule,
)
from perfguard.check.hard_inputs.derivation import (
    INCOMING,
    TUNED,
    Derivation,
    derived_call,
    derived_tensor,
    followers_of,
)
from perfguard.check.hard_inputs.domain import check_domain, lost, scaled
from perfguard.check.hard_inputs.nearby import Nearby, nearby, roundings
from perfguard.check.hard_inputs.scalars import OPTIONS
from perfguard.check.hard_inputs.values import takes_values
from perfguard.check.memory import GUARD, Canaries, empty_tensors_have_addresses, poisoned
from perfguard.check.numerics.procedure import LeftOut
from perfguard.check.numerics.sums import (
    ROUNDING,
    dtype_name,
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
from perfguard.tensors.asserted import asserted_on_the_host

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
        outcome = _compared(call, derivation, usual)
    except LeftOut as left:
        return Outcome(left_out=str(left))
    if outcome.problem and derivation.text(OPTIONS):
        # A test does not show that the code of an option that it does not give computes in more than its inputs' dtype.
        with contextlib.suppress(LeftOut):
            return _compared(call, derivation, usual, _coarsest(Inputs(call)))
    return outcome


def _compared(
    call: Call, derivation: Derivation, usual: Callable[[], Usual], coarse: torch.dtype | None = None
) -> Outcome:
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
    coarse = coarse or inputs.procedure.coarse
    if coarse is not None or inputs.procedure.is_cast:
        trial, eager = coarsened(trial, eager, coarse)
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
    if finite and (problem := lost(trial, truth, near, usual()) or _no_choice(trial, truth, near)):
        return Outcome(problem=problem)
    checked = truth.first_gradient if rule.saturated else len(truth.eager)
    for position in range(0 if derivation.unmentioned else checked):  # The base's result has the same edges.
        check_domain(position, truth, near, finite, trial.tensors()[position])
    ties = [near.untied, *near.chosen] if noisy else []
    rule = replace(rule, usual=usual(), masked=near.masked or (), incoming=derivation.incoming, noisy=[*noisy, *ties])
    outcome = compare(trial, truth, near.rounded, rule)
    if outcome.backward and derivation.scales and not scaled(truth, usual()):
        raise LeftOut("the reference does not scale with its input")
    return outcome


def _coarsest(inputs: Inputs) -> torch.dtype | None:
    floats = [each.dtype for each in inputs.tensors if each.dtype in LEAST_ROUNDINGS]
    return max(floats, key=lambda dtype: ROUNDING[dtype], default=None)


def _is_nothing(gradient: Tensor | None) -> bool:
    return gradient is None or not bool(gradient.any())


def _are_finite(inputs: Inputs) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in inputs.tensors if takes_values(tensor))


@contextmanager
def defines_the_domain() -> Iterator[None]:
    """Runs of the reference. Inputs that it refuses are outside the domain."""
    try:
        with asserted_on_the_host():
            yield
    except (*REFUSALS, *SLIPS) as error:  # A reference may expect a tensor as an option.
        if is_out_of_memory(error) or device_is_lost(error):
            raise
        raise LeftOut("the reference raises") from error


def _eager(reference: Reference, derivation: Derivation) -> tuple[Trial, Gradients]:
    """The reference's results, and the incoming gradients; no gradients if nothing is differentiable."""
    if derivation.forward_only:
        return reference.run([]), []
    text, only = derivation.text(INCOMING), derivation.only_output
    eager, upstream = reference.eager(lambda gradient: derived_tensor(gradient, "" if only is not None else text), only)
    if only is not None and sum(eager.differentiable) < 2:
        raise LeftOut("there are no other outputs")
    return eager, upstream


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
            told = told and not any(changes(derivation, each) for each in derivation.alike)
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
    may_lack = derivation.trains and not derivation.unmentioned
    pairs = zip(trial.gradients, eager.gradients, strict=True) if may_lack else ()
    if any(_is_nothing(mine) != _is_nothing(theirs) for mine, theirs in pairs):
        raise LeftOut("one side offers no gradient of an input that needed none")
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
