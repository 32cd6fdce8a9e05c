"""Whether a call's candidate is right: against the reference and the oracle, and against itself.

Against itself means: under poisoned memory, in a second call, with its inputs unmodified, and with incoming
gradients of other layouts. docs/numerics.md is the rule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch

from perfguard.call import Call
from perfguard.errors import MeasurementError
from perfguard.numerics.rule import bits, first_true
from perfguard.numerics.trial import (
    Inputs,
    Trial,
    expanded,
    run_trial,
    transposed,
    upstream_gradients,
)
from perfguard.numerics.truth import Gradients, Reference, Truth, rmse
from perfguard.poison import VALUES, Value, poisoned, recycle
from perfguard.records import Accuracy

FILLED: dict[Value, str] = {"nan": "NaN", "large": "a large finite value", "zero": "zeros"}


@dataclass(frozen=True)
class Checked:
    """What `check` found.

    Attributes:
        forward: one Accuracy for each output tensor, then for each argument of `mutates`.
        backward: one for each gradient; None where there are none.
        problems: what no single comparison shows, each a sentence that begins with its subject.
        inputs: dtypes, shapes, strides and values of the inputs, the same in every process.
        notes: what a reader should know although nothing is wrong.
    """

    forward: list[Accuracy]
    backward: list[Accuracy] | None
    problems: list[str]
    inputs: str
    notes: list[str] = field(default_factory=list)

    @property
    def wrong(self) -> list[str]:
        """Every problem, those of the comparisons first; empty when the call is right."""
        accuracies = [*self.forward, *(self.backward or [])]
        return [accuracy.problem for accuracy in accuracies if accuracy.problem] + self.problems


def check(call: Call, *, full: bool = True) -> Checked:
    """Run the candidate and judge everything that it returns, writes and differentiates.

    Args:
        call: what to check. Inputs that require grad are differentiated where the reference's outputs
            require grad. If `call.fn` is a torch.nn.Module, its parameters are inputs too; the reference is
            then a Module with as many of them, or any function of the same module object.
        full: False leaves out the second call, the poisons beside NaN, and the layouts of incoming gradients.

    Raises:
        MeasurementError: the reference cannot be the oracle.
        Exception: what the candidate or the reference raises, with a note on the run that raised it.
    """
    inputs = Inputs(call)
    device = next((tensor.device for tensor in inputs.tensors), torch.device("cpu"))
    other = [] if device.type == "cpu" else [device]
    kind = {"device_type": device.type} if other else {}
    # The same random numbers in every run, and the user's generators left as they were.
    with torch.random.fork_rng(other, **kind):
        return _Check(call, inputs, device).run(full)


class _Check:
    """One call's way through the checks; `problems` grows on the way."""

    def __init__(self, call: Call, inputs: Inputs, device: torch.device) -> None:
        self.call = call
        self.inputs = inputs
        self.device = device
        self.reference = Reference(call, inputs)
        self.problems: list[str] = []
        self.depends: set[int] = set()  # positions told to depend on old memory
        self.names: list[str] | None = None

    def run(self, full: bool) -> Checked:
        eager, upstream = self._eager()
        base = self._candidate(upstream, "its first call")
        forward: list[Accuracy] = []
        backward: list[Accuracy] | None = [] if upstream else None
        if self._same_structure(base, eager):
            truth = self.reference.truth(eager, upstream)
            accuracies = [truth.judge(position, tensor) for position, tensor in enumerate(base.tensors())]
            forward = accuracies[: truth.first_gradient]
            backward = accuracies[truth.first_gradient :] if upstream else None
            wrong = {position for position, accuracy in enumerate(accuracies) if accuracy.problem}

            unsteady = self._further_calls(base, truth, upstream) if full else set()
            for value in VALUES if full else VALUES[:1]:
                wrong |= self._poison(value, base, truth, upstream, unsteady, wrong)
            if upstream and full:
                self._layouts(base, truth, upstream, wrong)
        return Checked(
            forward,
            backward,
            list(dict.fromkeys(self.problems)),
            self.inputs.describe(),
            self.reference.notes,
        )

    def _eager(self) -> tuple[Trial, Gradients]:
        """The reference as it is, and the incoming gradients if there is a backward pass."""
        eager = self.reference.run([])
        if not self.inputs.leaf_names or not any(eager.differentiable):
            return eager, []
        upstream = upstream_gradients(eager, self.call.seed)
        return self.reference.run(upstream), upstream

    def _candidate(self, upstream: Gradients, when: str, around: AbstractContextManager[None] | None = None) -> Trial:
        try:
            with around or nullcontext():
                trial = run_trial(self.call.fn, self.inputs, upstream, seed=self.call.seed)
        except Exception as error:
            error.add_note(f"perfguard: the candidate raised this in {when}")
            raise
        if self.names not in (None, trial.names):
            raise MeasurementError(
                f"outputs: {len(trial.names)} tensors in {when}, {len(self.names or [])} before; "
                "let every call return the same"
            )
        self.names = trial.names
        self.problems += trial.modified
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

    def _further_calls(self, base: Trial, truth: Truth, upstream: Gradients) -> set[int]:
        """Positions that differ from call to call; a problem where by more than eager's own error."""
        second = self._candidate(upstream, "its second call")
        unsteady = set(_unequal(base, second))
        if not unsteady:
            return unsteady
        third = self._candidate(upstream, "its third call")
        settled = unsteady - set(_unequal(second, third))
        for position in sorted(unsteady):
            old, new = base.tensors()[position], second.tensors()[position]
            what = "the first call differs from later ones" if position in settled else "differs from run to run"
            subject = f"{truth.names[position]}: {what}"
            if old is None or new is None or old.shape != new.shape or old.dtype != new.dtype:
                self.problems.append(f"{subject} in presence, shape or dtype")
                continue
            spread, allowed = rmse(new, old), truth.eager_error(position)
            if spread > allowed or bool((old.isfinite() != new.isfinite()).any()):
                self.problems.append(
                    f"{subject} by RMSE {spread:.3g}, eager's own error is {allowed:.3g}; {_change(old, new)}"
                )
        return unsteady

    def _poison(
        self,
        value: Value,
        base: Trial,
        truth: Truth,
        upstream: Gradients,
        unsteady: set[int],
        known: set[int],
    ) -> set[int]:
        """Positions that old memory makes wrong; those that are known already are not told again."""
        kept = [tensor for tensor in base.tensors() if tensor is not None] + self.inputs.tensors
        recycle({tensor.numel() * tensor.element_size() for tensor in kept}, self.device, value)
        when = f"with fresh memory filled with {FILLED[value]}"
        trial = self._candidate(upstream, f"a call {when}", poisoned(value))
        found = set()
        for position in _unequal(base, trial):
            name, old, new = truth.names[position], base.tensors()[position], trial.tensors()[position]
            if position in unsteady:
                again = truth.judge(position, new).problem
                if again and position not in known:
                    self.problems.append(f"{again}; this {when}")
                    found.add(position)
                continue
            if position in self.depends:
                continue
            self.depends.add(position)
            found.add(position)
            if old is None or new is None or old.shape != new.shape or old.dtype != new.dtype:
                self.problems.append(f"{name}: depends on old memory: presence, shape or dtype change {when}")
            else:
                self.problems.append(f"{name}: depends on old memory: {_change(old, new)} {when}")
        return found

    def _layouts(self, base: Trial, truth: Truth, upstream: Gradients, known: set[int]) -> None:
        """Incoming gradients of other strides; those by stride 0 have other values, so another truth."""
        swapped = [None if gradient is None else transposed(gradient) for gradient in upstream]
        spread = [None if gradient is None else expanded(gradient) for gradient in upstream]
        for layout, incoming in (
            ("transposed, at an odd storage offset", swapped),
            ("expanded (stride 0)", spread),
        ):
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
            elif not _unequal(base, trial):
                continue
            for position in range(truth.first_gradient, len(truth.names)):
                problem = truth.judge(position, trial.tensors()[position]).problem
                if problem and position not in known:
                    self.problems.append(f"{problem}; this with incoming gradients {layout}")


def _alike(got: Sequence[object], want: Sequence[object]) -> bool:
    """Equal, floats within 1e-5."""
    return len(got) == len(want) and all(
        math.isclose(a, b, rel_tol=1e-5) if isinstance(a, float) and isinstance(b, float) else a == b
        for a, b in zip(got, want, strict=True)
    )


def _unequal(a: Trial, b: Trial) -> list[int]:
    """Positions whose tensors differ in any bit, or of which one is missing."""
    positions = []
    for position, (x, y) in enumerate(zip(a.tensors(), b.tensors(), strict=True)):
        if x is None or y is None:
            same = x is y
        else:
            same = x.shape == y.shape and x.dtype == y.dtype and torch.equal(bits(x), bits(y))
        if not same:
            positions.append(position)
    return positions


def _change(old: torch.Tensor, new: torch.Tensor) -> str:
    """`3 of 64 elements change, the first at [1, 2] from 0.5 to nan`."""
    unequal = bits(old) != bits(new)
    index = first_true(unequal)
    before, after = (float((torch.view_as_real(t) if t.is_complex() else t)[tuple(index)]) for t in (old, new))
    return (
        f"{int(unequal.sum())} of {unequal.numel()} elements change, the first at {index} "
        f"from {before:.6g} to {after:.6g}"
    )
