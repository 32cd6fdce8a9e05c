"""Checks a call's candidate against the reference and the oracle, and against itself.

Checks against itself use poisoned memory, a second call, unmodified inputs, and incoming gradients of other layouts.
docs/numerics.md defines the rule.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial

import msgspec
import torch

from perfguard.check.memory import GUARD, VALUES, Canaries, Value, poisoned, recycle
from perfguard.check.numerics.differences import change_between, real_numbers, unequal_positions
from perfguard.check.numerics.oracle import free_bytes
from perfguard.check.numerics.rule import kinds
from perfguard.check.numerics.trial import Inputs, Trial, expanded, run_trial, transposed, upstream_gradients
from perfguard.check.numerics.truth import Gradients, Reference, Truth, rmse
from perfguard.model.call import GRADIENTS, Call
from perfguard.model.errors import MeasurementError
from perfguard.model.records import Accuracy

RUNS = 11  # calls in all, once a result was seen to differ from run to run
NOTABLE_RATIO = 1.25  # candidate's error / eager's error, from which on it is noted
CANARY_SHARE = 1 / 8  # most of the free memory for guarded buffers
_MOVED = 0.1  # relative change of eager's result above which an unchanged result counts as cached

FILLED: dict[Value, str] = {"nan": "NaN", "large": "a large finite value", "zero": "zeros"}


@dataclass(frozen=True)
class Checked:
    """Result of `check`.

    Attributes:
        forward: one Accuracy for each output tensor, then for each argument of `mutates`.
        backward: one for each gradient; None where there are none.
        problems: problems beyond single comparisons, each a sentence that begins with its subject.
        inputs: dtypes, shapes, strides and values of the inputs, the same in every process.
        notes: remarks for the reader that are no problems.
        varying: outputs and gradients that differ from run to run, by less than eager's own error.
    """

    forward: list[Accuracy]
    backward: list[Accuracy] | None
    problems: list[str]
    inputs: str
    notes: list[str] = field(default_factory=list)
    varying: list[str] = field(default_factory=list)

    @property
    def wrong(self) -> list[str]:
        """Every problem, those of the comparisons first; empty when the call is right."""
        accuracies = [*self.forward, *(self.backward or [])]
        return [accuracy.problem for accuracy in accuracies if accuracy.problem] + self.problems


def check(call: Call, *, full: bool = True, once_right: Callable[[], None] = lambda: None) -> Checked:
    """Run the candidate and check all its outputs, written arguments and gradients.

    Args:
        call: what to check. Inputs that require grad are differentiated where the reference's outputs
            require grad. If `call.fn` is a torch.nn.Module, its parameters are inputs too; the reference is
            then a Module with as many of them, or any function of the same module object.
        full: False skips the second call, the layouts of incoming gradients and, if the first call is right, all
            poisons but NaN.
        once_right: called after the first call of the candidate if that was right, before further calls.

    Raises:
        MeasurementError: the reference cannot be the oracle.
        Exception: what the candidate or the reference raises, with a note on the run that raised it.
    """
    inputs = Inputs(call)
    device = next((tensor.device for tensor in inputs.tensors), torch.device("cpu"))
    other = [] if device.type == "cpu" else [device]
    kind = {"device_type": device.type} if other else {}
    # Every run draws the same random numbers, and the user's generators keep their state.
    with torch.random.fork_rng(other, **kind):
        return _Check(call, inputs, device).run(full, once_right)


class _Check:
    """The checks of one call, which collect `problems`."""

    def __init__(self, call: Call, inputs: Inputs, device: torch.device) -> None:
        self.call = call
        self.inputs = inputs
        self.device = device
        self.reference = Reference(call, inputs)
        self.problems: list[str] = []
        self.varying: list[str] = []
        self.names: list[str] | None = None

    def run(self, full: bool, once_right: Callable[[], None]) -> Checked:
        eager, upstream = self._eager()
        canaries = Canaries(self._spare_bytes())  # from the first call on: a write past an end may kill the process
        base = self._candidate(upstream, "its first call", poisoned(None, canaries))
        outside = [f"out of bounds: {words}" for words in canaries.written()]
        self.problems += outside
        forward: list[Accuracy] = []
        backward: list[Accuracy] | None = [] if upstream else None
        if self._same_structure(base, eager):
            truth = self.reference.truth(eager, upstream)
            exact = truth.exact_scales(base.tensors())
            accuracies = [truth.judge(position, tensor, exact) for position, tensor in enumerate(base.tensors())]
            accuracies = [_with_hint(accuracy, self._hint(accuracy)) for accuracy in accuracies]
            self.reference.notes += [words for words in map(_less_accurate, accuracies) if words]
            forward = accuracies[: truth.first_gradient]
            backward = accuracies[truth.first_gradient :] if upstream else None
            if outside:
                return self._found(forward, backward)
            right = {position for position, accuracy in enumerate(accuracies) if not accuracy.problem}
            all_right = len(right) == len(accuracies)
            if all_right:
                once_right()
            # Old memory may have held the one poison of a quick check, so a wrong call is repeated with all of them.
            poisons = VALUES if full or not all_right else VALUES[:1]
            unsteady = self._repeat(base, truth, upstream, poisons, twice=full)
            alone = full and not base.modified  # otherwise, copies of the inputs could be written or freed unseen
            if alone:
                self._beside(base, truth, upstream, unsteady)
                self._cached(base, eager, upstream, truth, right)
            if upstream and full:
                self._layouts(base, truth, upstream, right)
        return self._found(forward, backward)

    def _found(self, forward: list[Accuracy], backward: list[Accuracy] | None) -> Checked:
        return Checked(
            forward,
            backward,
            list(dict.fromkeys(self.problems)),
            self.inputs.describe(),
            self.reference.notes,
            self.varying,
        )

    def _hint(self, accuracy: Accuracy) -> str:
        """Unusual memory layouts of the inputs, which are a frequent cause of wrong results."""
        return "; ".join(self.inputs.unusual(accuracy.worst_index)) if accuracy.problem else ""

    def _eager(self) -> tuple[Trial, Gradients]:
        """The reference as it is, and the incoming gradients if there is a backward pass."""
        eager = self.reference.run([])
        if not self.inputs.leaf_names or not any(eager.differentiable):
            return eager, []
        upstream = upstream_gradients(eager, self.call.seed)
        return self.reference.run(upstream), upstream

    def _candidate(
        self, upstream: Gradients, when: str, around: AbstractContextManager[None] | None = None, *, own: bool = True
    ) -> Trial:
        """`own`: run on the inputs' own memory. Undeclared writes to it are reported and undone."""
        try:
            with around or nullcontext():
                trial = run_trial(self.call.fn, self.inputs, upstream, seed=self.call.seed, restore=own)
        except Exception as error:
            error.add_note(f"perfguard: the candidate raised this in {when}")
            raise
        if self.names not in (None, trial.names):
            raise MeasurementError(
                f"outputs: {len(trial.names)} tensors in {when}, {len(self.names or [])} before; "
                "let every call return the same"
            )
        self.names = trial.names
        self.problems += map(_or_declared, trial.modified)
        return trial

    def _same_structure(self, base: Trial, eager: Trial) -> bool:
        if base.names != eager.names:
            got, want = (", ".join(trial.names) or "no tensor" for trial in (base, eager))
            self.problems.append(f"outputs: the candidate returns {got}; the reference returns {want}")
            return False
        if not _alike(base.others, eager.others):
            got, want = repr(base.others), repr(eager.others)
            self.problems.append(f"outputs: beside tensors the candidate returns {got}; the reference {want}")
        for name, has, needs in zip(base.names, base.differentiable, eager.differentiable, strict=True):
            if needs and not has and self.inputs.leaf_names:
                self.problems.append(f"{name}: does not require grad, the reference's does: a detached path")
        return True

    def _repeat(
        self, base: Trial, truth: Truth, upstream: Gradients, poisons: Sequence[Value], *, twice: bool
    ) -> set[int]:
        """Repeat the call, plain and with fresh memory of each kind, and return the positions whose bits differ.

        A tensor that differs without a cause (equal memory, other bits) may differ by less than eager's error.
        """
        plain = [base]
        if twice:
            plain.append(self._candidate(upstream, "its second call"))
        filled = {value: self._filled(value, base, upstream) for value in poisons}
        anchor = filled.get("zero", base)
        differing = {value: unequal_positions(anchor, trial) for value, trial in filled.items()}
        suspects = set().union(*differing.values(), *(unequal_positions(anchor, trial) for trial in plain))
        if not suspects:
            return set()
        # Reversed, so that alternating results are not compared with themselves; twice, so that they rarely agree by
        # chance.
        repeated = [value for value in reversed(filled) if differing[value] or filled[value] is anchor] * 2
        again = [(filled[value], self._filled(value, base, upstream)) for value in repeated]
        moving = set().union(*(unequal_positions(first, later) for first, later in again))
        everywhere = [*plain, *filled.values(), *(later for _, later in again)]
        if moving:
            everywhere += [self._candidate(upstream, "a later call") for _ in range(RUNS - len(everywhere))]
        for position in sorted(suspects):
            name = truth.names[position]
            depends = next((value for value in filled if position in differing[value]), None)
            if position not in moving and depends is not None:
                change = change_between(anchor, filled[depends], position, truth.groups)
                with_memory = f"with fresh memory filled with {FILLED[depends]}"
                self.problems.append(f"{name}: depends on old memory: {change} {with_memory}")
                continue
            what = "the first call differs from later ones" if position not in moving else "differs from run to run"
            others = [trial for trial in everywhere[1:] if position in unequal_positions(base, trial)]
            number = f"{len(others)} of {len(everywhere) - 1} further runs differ" if position in moving else ""
            self._tell(truth, position, what, number, [self._spread(base, trial, truth, position) for trial in others])
        return suspects

    def _tell(self, truth: Truth, position: int, what: str, number: str, spreads: Sequence[tuple[float, str]]) -> None:
        """Report a tensor that varies from run to run: a problem if by more than eager's own error, otherwise a
        note."""
        if not spreads:
            return
        spread, words = max(spreads, key=lambda each: each[0])
        about = "; ".join(filter(None, (number, words)))
        if spread > truth.eager_error(position):
            self.problems.append(f"{truth.names[position]}: {what}: {about}")
        elif number:
            self.varying.append(truth.names[position])
            self.reference.notes.append(f"{truth.names[position]}: {what}, by less than eager's own error: {about}")

    def _spread(self, old: Trial, new: Trial, truth: Truth, position: int) -> tuple[float, str]:
        """Difference of one tensor between two calls, as a number and in words."""
        a, b = old.tensors()[position], new.tensors()[position]
        if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype:
            return math.inf, "in presence, shape or dtype"
        spread = rmse(b, a)
        if not torch.equal(*(kinds(real_numbers(tensor).double()) for tensor in (a, b))):
            spread = math.inf
        words = f"by RMSE {spread:.3g}, eager's own error is {truth.eager_error(position):.3g}"
        return spread, f"{words}; {change_between(old, new, position, truth.groups)}"

    def _filled(self, value: Value, base: Trial, upstream: Gradients) -> Trial:
        """A call with fresh and recycled memory filled with `value`."""
        kept = [tensor for tensor in base.tensors() if tensor is not None] + self.inputs.tensors
        recycle({tensor.numel() * tensor.element_size() for tensor in kept}, self.device, value)
        return self._candidate(upstream, f"a call with fresh memory filled with {FILLED[value]}", poisoned(value))

    def _spare_bytes(self) -> float:
        return CANARY_SHARE * free_bytes(self.device)

    def _beside(self, base: Trial, truth: Truth, upstream: Gradients, unsteady: set[int]) -> None:
        """A call on inputs between guards: memory beside them must be neither read nor written.

        A result may differ because of its new place. It is reported only if it depends on what the guards hold: by more
        than eager's own error, or in the same way each time. Atomic additions differ by chance, and by less.
        """
        trial, number = self._surrounded(upstream, lambda _: GUARD)
        if trial is None or not set(unequal_positions(base, trial)) - unsteady:
            return
        zeros = partial(_fill_of_one, -1)
        anchor, _ = self._surrounded(upstream, zeros)
        for buffer in range(number):
            nan = partial(_fill_of_one, buffer)
            trial, _ = self._surrounded(upstream, nan)
            if trial is None or anchor is None:
                return
            suspects = sorted(set(unequal_positions(anchor, trial)) - unsteady)
            large = {at for at in suspects if self._spread(anchor, trial, truth, at)[0] > truth.eager_error(at)}
            moving: set[int] = set()
            for first, fills in [(anchor, zeros), (trial, nan)] * 2 if large != set(suspects) else []:
                later, _ = self._surrounded(upstream, fills)
                moving.update(suspects if later is None else unequal_positions(first, later))
            for position in suspects:
                if position in moving and position not in large:
                    continue
                change = change_between(anchor, trial, position, truth.groups)
                beside = self.inputs.storage_names[buffer]
                words = f"{truth.names[position]}: depends on memory beside {beside}: {change} where that holds NaN"
                self.problems.append(words)

    def _surrounded(self, upstream: Gradients, fills: Callable[[int], int]) -> tuple[Trial | None, int]:
        """A call on copies of the inputs between guards, and the number of buffers; None if memory is short."""
        canaries = Canaries(self._spare_bytes())
        with self.inputs.surrounded(canaries, fills) as buffers:
            if not buffers:
                return None, 0
            trial = self._candidate(upstream, "a call with NaN in the memory beside its inputs", own=False)
        self.problems += [f"out of bounds: {words}" for words in canaries.written()]
        return trial, buffers

    def _cached(self, base: Trial, eager: Trial, upstream: Gradients, truth: Truth, right: set[int]) -> None:
        """A call on the same memory with its rows reversed: a result that stays bitwise equal must do so in eager, too.

        A cache by address passes every other check, in the time of a dictionary lookup. The call may not accept inputs
        in this order, so an exception is no finding.
        """
        with self.inputs.moved() as any_moved:
            if not any_moved:
                return
            try:
                moved = run_trial(self.call.fn, self.inputs, upstream, seed=self.call.seed, restore=False)
            except (RuntimeError, ValueError, TypeError, IndexError, AssertionError):
                return
        if moved.names != base.names:
            return
        same = right.difference(unequal_positions(base, moved))
        if not same:
            return
        with self.inputs.moved():
            try:
                wanted = self.reference.run(upstream, restore=False)
            except (RuntimeError, ValueError, TypeError, IndexError, AssertionError):
                return
        for position in sorted(same):
            old, new = eager.tensors()[position], wanted.tensors()[position]
            if old is not None and new is not None and _moves(old, new):
                self.problems.append(
                    f"{truth.names[position]}: returns cached results: stays bitwise the same where the inputs' rows "
                    "are reversed in place, the reference's changes; compute it in every call"
                )

    def _layouts(self, base: Trial, truth: Truth, upstream: Gradients, right: set[int]) -> None:
        """Calls with incoming gradients of other strides. Stride 0 changes the values, so those need another truth."""
        swapped = [None if gradient is None else transposed(gradient) for gradient in upstream]
        spread = [None if gradient is None else expanded(gradient) for gradient in upstream]
        layouts = {"transposed, at an odd storage offset": swapped, "expanded (stride 0)": spread}
        if self.inputs.gives_gradients:  # a repeated row has no memory of its own to overwrite
            del layouts["expanded (stride 0)"]
        for layout, incoming in layouts.items():
            if all(gradient is None or gradient.ndim == 0 for gradient in incoming):
                continue
            try:
                trial = self._candidate(incoming, f"a call with incoming gradients {layout}")
            except Exception as error:
                self.problems.append(f"backward: raises with incoming gradients {layout}: {error}")
                continue
            if incoming is spread:
                values = [None if gradient is None else gradient.contiguous() for gradient in spread]
                truth = self.reference.truth(self.reference.run(values), values)
            elif not unequal_positions(base, trial):
                continue
            for position in range(truth.first_gradient, len(truth.names)):
                problem = truth.judge(position, trial.tensors()[position]).problem
                if problem and position in right:
                    self.problems.append(f"{problem}; this with incoming gradients {layout}")


def _or_declared(modified: str) -> str:
    """Add the declaration to write if the modification is intended."""
    found = re.match(r"(?:argument (\d+)|the incoming gradient of output \d+) was modified", modified)
    if found is None:
        return modified
    place = found[1] or f'"{GRADIENTS}"'
    return f"{modified}; where that is meant, declare it: clobbers=({place},)"


def _with_hint(accuracy: Accuracy, hint: str) -> Accuracy:
    return msgspec.structs.replace(accuracy, problem=f"{accuracy.problem}; {hint}") if hint else accuracy


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


def _alike(got: Sequence[object], want: Sequence[object]) -> bool:
    """Equal, floats within 1e-5."""
    return len(got) == len(want) and all(
        math.isclose(a, b, rel_tol=1e-5) if isinstance(a, float) and isinstance(b, float) else a == b
        for a, b in zip(got, want, strict=True)
    )
