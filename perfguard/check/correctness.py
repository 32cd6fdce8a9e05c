"""Checks a call's candidate against the reference and the oracle, and against itself.

Checks against itself use poisoned memory, a second call, unmodified inputs, and incoming gradients of other layouts.
docs/numerics.md defines the rule.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import pairwise

import torch

from perfguard._compat.triton_internals import silent_interpreter
from perfguard.check.checked import Checked
from perfguard.check.hard_inputs.state import Restored, State
from perfguard.check.memory import GUARD, VALUES, Canaries, Value, poisoned, recycle
from perfguard.check.numerics.sums import kinds, real_numbers, rmse
from perfguard.check.numerics.trial import Gradients, Inputs, Trial, run_trial
from perfguard.check.numerics.truth import Reference, with_hint
from perfguard.check.other_results import OtherResults
from perfguard.check.writers import with_writers
from perfguard.model.call import GRADIENTS, Call
from perfguard.model.errors import MeasurementError, described, next_step, shown
from perfguard.model.records import Accuracy
from perfguard.tensors.layouts import equal_rows, transposed

#: Further calls by kind of device, which may show atomic additions in another order: on a GPU two agree now and then.
LATER = {"cpu": 0}
LATER_ON_A_GPU = 3
RUNS = 11  # calls in all, once a result was seen to differ from run to run
NOTABLE_RATIO = 1.25  # candidate's error / eager's error, from which on it is noted
_MOVED = 0.1  # relative change of eager's result above which an unchanged result counts as cached
_DIFFERS = "differs from"  # Words of a problem in which calls alone are not alike.

FILLED: dict[Value, str] = {"nan": "NaN", "large": "a large finite value", "zero": "zeros"}


def check(call: Call, *, full: bool = True) -> Checked:
    """Run the candidate and check all its outputs, written arguments and gradients.

    Args:
        call: what to check. Inputs that require grad are differentiated where the reference's outputs
            require grad. If `call.fn` is a torch.nn.Module, its parameters are inputs too; the reference is
            then a Module with as many of them, or any function of the same module object.
        full: False skips the second call (but not where several ranks make it), the layouts of incoming gradients and,
            if the first call is right, all poisons but NaN.

    Raises:
        MeasurementError: the reference cannot be the oracle.
        Exception: what the candidate or the reference raises, with a note on the run that raised it.
    """
    inputs = Inputs(call)
    device = inputs.device
    other = [] if device.type == "cpu" else [device]
    kind = {"device_type": device.type} if other else {}
    # Every run draws the same random numbers, and the user's generators keep their state.
    with torch.random.fork_rng(other, **kind), silent_interpreter():
        found = _Check(call, inputs).run(full)
        # Where calls alone differ, their results may follow from state, as those of a cache do.
        only_vary = bool(found.wrong) and all(_DIFFERS in problem for problem in found.wrong)
        if not only_vary or call.ranks.in_step or not (state := State(call)).names:
            return found
        with state.aligned():
            restored = replace(call, procedure=Restored(state))
            return _Check(restored, Inputs(restored)).run(full)


class _Check:
    """The checks of one call, which collect `problems`."""

    def __init__(self, call: Call, inputs: Inputs) -> None:
        self.call = call
        self.inputs = inputs
        self.reference = Reference(call, inputs)
        try:
            self.eager, self.upstream = self.reference.eager()
        except Exception as error:
            error.add_note(f"perfguard: the reference raised this{self._on()}")
            raise
        self.problems: list[str] = []
        self.varying: list[str] = []
        self.names: list[str] | None = None

    def run(self, full: bool) -> Checked:
        # Guards from the first call on: a write past an end may kill the process.
        with self._guards() as canaries:
            base = self.base = self._candidate("its first call", poisoned(None, canaries))
        outside = any(problem.startswith("out of bounds: ") for problem in self.problems)
        forward: list[Accuracy] = []
        backward: list[Accuracy] | None = [] if self.upstream else None
        if not self.call.on_any_rank(not self._same_structure()):
            truth = self.truth = self.reference.truth(self.eager, self.upstream)
            exact = truth.exact_scales(base.tensors())
            accuracies = [
                truth.judge(position, tensor, exact, base.tensors()) for position, tensor in enumerate(base.tensors())
            ]
            accuracies = [self._with_layouts(accuracy) for accuracy in accuracies]
            self.reference.notes += filter(None, map(_less_accurate, accuracies))
            forward = accuracies[: truth.first_gradient]
            backward = accuracies[truth.first_gradient :] if self.upstream else None
            if not self.call.on_any_rank(outside):
                right = {position for position, accuracy in enumerate(accuracies) if not accuracy.problem}
                self._against_itself(right, not self.call.on_any_rank(len(right) < len(accuracies)), full)
        problems = with_writers(list(dict.fromkeys(self.problems)), self.call, self.inputs, self.upstream)
        inputs, notes, strides = self.inputs.describe(), self.reference.notes, self.eager.strides
        return Checked(forward, backward, problems, inputs, notes, self.varying, strides)

    def _against_itself(self, right: set[int], all_right: bool, full: bool) -> None:
        """`right`: positions of the tensors that the first call got right."""
        # Old memory may have held the one poison of a quick check, so a wrong call is repeated with all of them.
        twice = full or self.call.ranks.in_step
        unsteady = self._repeat(VALUES if full or not all_right else VALUES[:1], twice=twice)
        if full and not self.base.modified:  # otherwise, copies of the inputs could be written or freed unseen
            self._beside(unsteady)
            self._cached(right)
        if full and self.upstream:
            self._layouts(right)

    def _with_layouts(self, accuracy: Accuracy) -> Accuracy:
        """Name unusual memory layouts of the inputs, which are a frequent cause of wrong results."""
        return with_hint(accuracy, "; ".join(self.inputs.unusual(accuracy.worst_index)) if accuracy.problem else "")

    def _on(self) -> str:
        """`, on float32[64,16]`: the inputs of a run that raised."""
        inputs = self.inputs.describe()
        return f", on {inputs}" if inputs else ""

    @contextmanager
    def _guards(self) -> Iterator[Canaries]:
        """Guards for buffers of a call inside. Writes to them are problems."""
        canaries = Canaries.on(self.inputs.device)
        yield canaries
        self.problems += [f"out of bounds: {words}" for words in canaries.written()]

    def _candidate(
        self,
        when: str,
        around: AbstractContextManager[None] | None = None,
        *,
        upstream: Gradients | None = None,
        own: bool = True,
    ) -> Trial:
        """`own`: run on the inputs' own memory. Undeclared writes to it are reported and undone."""
        incoming = self.upstream if upstream is None else upstream
        try:
            with around or nullcontext():
                trial = run_trial(self.call.fn, self.inputs, incoming, seed=self.call.seed, restore=own)
        except Exception as error:
            raised = f"perfguard: the candidate raised this in {when}{self._on()}"
            error.add_note("; ".join(filter(None, (raised, next_step(error)))))
            raise
        if self.names not in (None, trial.names):
            raise MeasurementError(
                f"outputs: {len(trial.names)} tensors in {when}, {len(self.names or [])} before; "
                "let every call return the same"
            )
        self.names = trial.names
        self.problems += map(_or_declared, trial.modified)
        return trial

    def _same_structure(self) -> bool:
        base, eager = self.base, self.eager
        if base.names != eager.names:
            got, want = (", ".join(trial.names) or "no tensor" for trial in (base, eager))
            self.problems.append(f"outputs: the candidate returns {got}; the reference returns {want}")
            return False
        others = OtherResults()
        if not others.alike(base.others, eager.others):
            got, want = shown(base.others), shown(eager.others)
            self.problems.append(f"outputs: beside tensors the candidate returns {got}; the reference {want}")
        self.reference.notes += (
            f"outputs: what a {name} holds is not compared; return tensors, numbers or texts"
            for name in others.by_class
        )
        for name, has, needs in zip(base.names, base.differentiable, eager.differentiable, strict=True):
            if needs and not has and self.inputs.leaf_names:
                self.problems.append(f"{name}: does not require grad, the reference's does: a detached path")
        return True

    def _repeat(self, poisons: Sequence[Value], *, twice: bool) -> set[int]:
        """Repeat the call, plain and with fresh memory of each kind, and return the positions whose bits differ.

        A tensor that differs without a cause (equal memory, other bits) may differ by less than eager's error.
        """
        base, truth = self.base, self.truth
        plain = [base]
        if twice:
            plain.append(self._candidate("its second call"))
        plain += self._later()
        filled = {value: self._filled(value) for value in poisons}
        anchor = filled.get("zero", base)
        differing = {value: anchor.unequal(trial) for value, trial in filled.items()}
        suspects = set().union(*differing.values(), *(anchor.unequal(trial) for trial in plain))
        if not self.call.on_any_rank(bool(suspects)):
            return set()
        # Reversed, so that alternating results are not compared with themselves; twice, so that they rarely agree by
        # chance.
        again_too = {value for value in filled if self.call.on_any_rank(bool(differing[value]))}
        repeated = [value for value in reversed(filled) if value in again_too or filled[value] is anchor] * 2
        again = [(filled[value], self._filled(value)) for value in repeated]
        moving = set().union(*(first.unequal(later) for first, later in [*again, *pairwise(plain[1:])]))
        everywhere = [*plain, *filled.values(), *(later for _, later in again)]
        if self.call.on_any_rank(bool(moving)):
            everywhere += [self._candidate("a later call") for _ in range(RUNS - len(everywhere))]
        for position in sorted(suspects):
            depends = next((value for value in filled if position in differing[value]), None)
            if position not in moving and depends is not None:
                change = anchor.change_to(filled[depends], position, truth.groups)
                with_memory = f"with fresh memory filled with {FILLED[depends]}"
                self.problems.append(f"{truth.names[position]}: depends on old memory: {change} {with_memory}")
            else:
                others = [trial for trial in everywhere[1:] if position in base.unequal(trial)]
                self._report_varying(position, others, len(everywhere) - 1 if position in moving else None)
        return suspects

    def _later(self) -> list[Trial]:
        """Further calls if one of a few differs from the first. Equal ones are not kept: they may be gigabytes."""
        for _ in range(LATER.get(self.inputs.device.type, LATER_ON_A_GPU)):
            later = self._candidate("a later call")
            if self.call.on_any_rank(bool(self.base.unequal(later))):
                return [later, *(self._candidate("a later call") for _ in range(RUNS - 2))]
        return []

    def _report_varying(self, position: int, others: Sequence[Trial], further: int | None) -> None:
        """Report a tensor that varies from run to run: a problem if by more than eager's own error, otherwise a
        note.

        Args:
            others: the runs in which it differs from the first.
            further: number of runs after the first; None if these do not differ from each other.
        """
        if not others:
            return
        name, allowed = self.truth.names[position], self.truth.eager_error(position)
        what = f"the first call {_DIFFERS} later ones" if further is None else f"{_DIFFERS} run to run"
        number = "" if further is None else f"{len(others)} of {further} further runs differ; "
        spread, words = max((self._spread(self.base, trial, position) for trial in others), key=lambda each: each[0])
        if spread > allowed:
            self.problems.append(f"{name}: {what}: {number}{words}")
        elif number:
            self.varying.append(name)
            self.reference.notes.append(f"{name}: {what}, by less than eager's own error: {number}{words}")

    def _spread(self, old: Trial, new: Trial, position: int) -> tuple[float, str]:
        """Difference of one tensor between two calls, as a number and in words."""
        a, b = old.tensors()[position], new.tensors()[position]
        if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype:
            return math.inf, "in presence, shape or dtype"
        spread = rmse(b, a)
        if not torch.equal(*(kinds(real_numbers(tensor).double()) for tensor in (a, b))):
            spread = math.inf
        words = f"by RMSE {spread:.3g}, eager's own error is {self.truth.eager_error(position):.3g}"
        return spread, f"{words}; {old.change_to(new, position, self.truth.groups)}"

    def _filled(self, value: Value) -> Trial:
        """A call with fresh and recycled memory filled with `value`."""
        kept = [tensor for tensor in self.base.tensors() if tensor is not None] + self.inputs.tensors
        recycle({tensor.numel() * tensor.element_size() for tensor in kept}, self.inputs.device, value)
        return self._candidate(f"a call with fresh memory filled with {FILLED[value]}", poisoned(value))

    def _beside(self, unsteady: set[int]) -> None:
        """A call on inputs between guards: memory beside them must be neither read nor written.

        A result may differ because of its new place. It is reported only if it depends on what the guards hold: by more
        than eager's own error, or in the same way each time. Atomic additions differ by chance, and by less.
        """
        truth, zeros = self.truth, partial(_fill_of_one, -1)
        trial = self._surrounded(lambda _: GUARD)
        if trial is None or not set(self.base.unequal(trial)) - unsteady:
            return
        anchor = self._surrounded(zeros)
        for number, beside in enumerate(self.inputs.storage_names):
            nan = partial(_fill_of_one, number)
            trial = self._surrounded(nan)
            if trial is None or anchor is None:
                return
            suspects = sorted(set(anchor.unequal(trial)) - unsteady)
            large = {at for at in suspects if self._spread(anchor, trial, at)[0] > truth.eager_error(at)}
            moving: set[int] = set()
            for first, fills in [(anchor, zeros), (trial, nan)] * 2 if large != set(suspects) else []:
                later = self._surrounded(fills)
                moving.update(suspects if later is None else first.unequal(later))
            for position in suspects:
                if position in large or position not in moving:
                    change = anchor.change_to(trial, position, truth.groups)
                    words = f"depends on memory beside {beside}: {change} where that holds NaN"
                    self.problems.append(f"{truth.names[position]}: {words}")

    def _surrounded(self, fills: Callable[[int], int]) -> Trial | None:
        """A call on copies of the inputs between guards; None if memory is short, or without inputs in memory."""
        with self._guards() as canaries, self.inputs.surrounded(canaries, fills) as buffers:
            if not buffers:
                return None
            return self._candidate("a call with NaN in the memory beside its inputs", own=False)

    def _cached(self, right: set[int]) -> None:
        """A call on the same memory with its rows reversed: a result that stays bitwise equal must do so in eager, too.

        A cache by address passes every other check, in the time of a dictionary lookup. The call may not accept inputs
        in this order, so an exception is no finding.
        """
        moved = self._on_reversed_rows(
            lambda: run_trial(self.call.fn, self.inputs, self.upstream, seed=self.call.seed, restore=False)
        )
        if moved is None or moved.names != self.base.names:
            return
        same = right.difference(self.base.unequal(moved))
        wanted = self._on_reversed_rows(lambda: self.reference.run(self.upstream, restore=False)) if same else None
        if wanted is None:
            return
        for position in sorted(same):
            old, new = self.eager.tensors()[position], wanted.tensors()[position]
            if old is not None and new is not None and _moves(old, new):
                self.problems.append(
                    f"{self.truth.names[position]}: returns cached results: stays bitwise the same where the inputs' "
                    "rows are reversed in place, the reference's changes; compute it in every call"
                )

    def _on_reversed_rows(self, run: Callable[[], Trial]) -> Trial | None:
        """`run` on the inputs with their rows reversed in place; None if nothing was reversed, or if it refuses."""
        with self.inputs.moved() as any_moved:
            try:
                return run() if any_moved else None
            except (RuntimeError, ValueError, TypeError, IndexError, AssertionError):
                return None

    def _layouts(self, right: set[int]) -> None:
        """Calls with incoming gradients of other strides. Stride 0 changes the values, so those need another truth."""
        layouts = [("transposed, at an odd storage offset", transposed)]
        if not self.inputs.gives_gradients:  # a repeated row has no memory of its own to overwrite
            layouts.append(("expanded (stride 0)", equal_rows))
        for layout, change in layouts:
            incoming = [None if gradient is None else change(gradient) for gradient in self.upstream]
            if all(gradient is None or gradient.ndim == 0 for gradient in incoming):
                continue
            try:
                trial = self._candidate(f"a call with incoming gradients {layout}", upstream=incoming)
            except Exception as error:
                self.problems.append(f"backward: raises with incoming gradients {layout}: {described(error)}")
                continue
            truth = self.truth
            if change is equal_rows:
                values = [None if gradient is None else gradient.contiguous() for gradient in incoming]
                truth = self.reference.truth(self.reference.run(values), values)
            elif not self.base.unequal(trial):
                continue
            for position in range(truth.first_gradient, len(truth.names)):
                problem = truth.judge(position, trial.tensors()[position], tensors=trial.tensors()).problem
                if problem and position in right:
                    self.problems.append(f"{problem}; this with incoming gradients {layout}")


def _or_declared(modified: str) -> str:
    """Add the declaration to write if the modification is intended."""
    found = re.match(r"(?:argument (\d+)|the incoming gradient of output \d+) was modified", modified)
    if found is None:
        return modified
    place = found[1] or f'"{GRADIENTS}"'
    result = found[1] and "in the backward pass" not in modified
    compared = f"mutates=({place},), which is compared, or " if result else ""
    return f"{modified}; where that is meant, declare it: {compared}clobbers=({place},)"


def _less_accurate(accuracy: Accuracy) -> str:
    """A note on a right result whose error exceeds eager's by more than chance."""
    if accuracy.problem or accuracy.error_ratio is None or accuracy.error_ratio < NOTABLE_RATIO:
        return ""
    return (
        f"{accuracy.output}: {accuracy.error_ratio:.3g} times eager's error "
        f"(RMSE {accuracy.rmse or 0:.3g}, limit {accuracy.limit or 0:.3g})"
    )


def _fill_of_one(one: int, buffer: int) -> int:
    """NaN beside one input, zeros beside the others."""
    return GUARD if buffer == one else 0


def _moves(old: torch.Tensor, new: torch.Tensor) -> bool:
    """Whether a result changed by far more than another order of summation explains."""
    if old.shape != new.shape or old.dtype != new.dtype or old.numel() == 0:
        return False
    if not (old.is_floating_point() or old.is_complex()):
        return int((old != new).sum()) > _MOVED * old.numel()
    return rmse(old, new) > _MOVED * max(rmse(old), rmse(new))
