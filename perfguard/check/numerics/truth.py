"""The truth about one call: the reference unchanged, in the oracle's dtype, and without its 8-bit casts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial

import msgspec
import torch

from perfguard.check.memory import free_bytes
from perfguard.check.numerics.fp8_codes import compare_codes, compare_scales, powers_of_two
from perfguard.check.numerics.fp8_values import MULTIPLE, Sides
from perfguard.check.numerics.hints import Jagged, jagged, looks_like
from perfguard.check.numerics.modules import modules_of, widened_state, with_state
from perfguard.check.numerics.oracle import (
    MEMORY_SHARE,
    OrderOfEqual,
    Result,
    before_integers,
    close_inputs,
    fits_in_float64,
    in_float32,
    run_wide,
    unrounded_codes,
)
from perfguard.check.numerics.rule import ALLOWANCES, LOOSER, compare, judge_missing
from perfguard.check.numerics.sums import FP8_DTYPES, ROUNDING, rmse
from perfguard.check.numerics.trial import Gradients, Inputs, Trial, run_trial, upstream_gradients
from perfguard.model.call import Call, Tolerance
from perfguard.model.errors import MeasurementError, UsageError, is_out_of_memory
from perfguard.model.records import Accuracy

#: The least SQNR, dB, of a wrong tensor that may be right except on the other side of some edges.
NEARLY_RIGHT = 30.0
#: Runs on close inputs. One in 2^DRAWS elements at an edge, such as the 0 of a ReLU, is on one side in all of them.
DRAWS = 8
#: A gradient of at most this many of the oracle's roundings of the largest gradient vanishes.
_ZERO = 64
#: The hint for codes and scales that are neither the reference's nor the oracle's.
WAYS_OUT = (
    "if the reference rounds before its cast, give one that keeps float32 up to it; if the contract allows more, "
    "Tolerance(k=…, fp8_step_fraction=…, reason=…)"
)


@dataclass(frozen=True)
class Truth:
    """The tensors that a candidate's are compared with, in the order of `Trial.tensors`."""

    names: list[str]
    eager: list[torch.Tensor | None]
    oracle: list[torch.Tensor | None]  # for 8-bit floats the unrounded values, if available
    first_gradient: int  # position of the first gradient
    first_parameter: int  # position of the first gradient of a module's parameter
    tolerance: Tolerance | None
    groups: Jagged | None = None
    ordered: Callable[[], list[list[torch.Tensor | None]]] | None = None  # `eager` with ties broken both ways
    close: Callable[[], list[list[torch.Tensor | None]]] | None = None  # `oracle` on inputs that are slightly off
    #: The values before casts to 8-bit floats, in float32 throughout, with scales; and those before casts to integers.
    unrounded: Callable[[], list[torch.Tensor | None]] | None = None
    uncast: Callable[[], list[torch.Tensor | None]] | None = None

    def judge(
        self,
        position: int,
        candidate: torch.Tensor | None,
        exact_scales: bool = False,
        tensors: Sequence[torch.Tensor | None] = (),
    ) -> Accuracy:
        """Judge one tensor of the candidate.

        Args:
            exact_scales: for codes (`compare_codes`).
            tensors: all of the candidate's, since codes belong to scales.
        """
        accuracy = self._judge(position, candidate, exact_scales)
        if accuracy.problem and self._is_quantised(position):
            if tensors and self._is_right_by_value(position, tensors):
                return msgspec.structs.replace(accuracy, problem="", got="", want="", worst_index=[], limit=None)
            accuracy = with_hint(accuracy, WAYS_OUT)
        if not accuracy.problem or not accuracy.worst_index or candidate is None or self.groups is None:
            return accuracy
        mask = torch.zeros(candidate.shape, dtype=torch.bool)
        mask[tuple(accuracy.worst_index[: candidate.ndim])] = True
        return with_hint(accuracy, self.groups.where(mask))

    def _judge(self, position: int, candidate: torch.Tensor | None, exact_scales: bool) -> Accuracy:
        name, eager, oracle = self.names[position], self.eager[position], self.oracle[position]
        if eager is None or candidate is None:
            return judge_missing(name, oracle if eager is None else eager, candidate)
        if eager.dtype in FP8_DTYPES:
            return compare_codes(
                candidate, eager, oracle, name=name, tolerance=self.tolerance, exact_scales=exact_scales
            )
        if self.is_scale(position):
            return compare_scales(candidate, eager, name=name)
        gradient = position >= self.first_gradient
        if not gradient and not self.needs_oracle(position):
            return self._judge_integers(position, candidate, eager)
        truth = eager if oracle is None else oracle
        judge = partial(
            compare,
            candidate,
            eager,
            truth,
            name=name,
            tolerance=self.tolerance,
            gradient_of=("argument" if position < self.first_parameter else "parameter") if gradient else None,
        )
        accuracy = judge()
        if accuracy.problem and (left := self.left_over(position)):
            accuracy = judge(least=left)
        if accuracy.problem and self.close is not None and (accuracy.sqnr_db or 0) >= NEARLY_RIGHT:
            others = [tensors[position] for tensors in self.close()]
            accuracy = judge(close=[each for each in others if each is not None and each.shape == truth.shape])
        if gradient and accuracy.problem and not bool(candidate.any()):
            problem = f"{name}: is zero everywhere, the oracle's RMS is {rmse(truth):.3g}"
            return msgspec.structs.replace(accuracy, problem=problem)
        if accuracy.problem and accuracy.limit is not None and not candidate.is_complex():
            pattern = looks_like(candidate, truth, accuracy.limit)
            problem = accuracy.problem.partition(LOOSER)[0] if pattern else accuracy.problem
            return with_hint(msgspec.structs.replace(accuracy, problem=problem), pattern)
        return accuracy

    def left_over(self, position: int, usual: float = 0.0) -> float:
        """Eager's least error in a gradient that vanishes, a residue of terms that cancel, as in the weights of scores
        if attention sees one key; 0 for any other tensor.

        Args:
            usual: RMS of the largest gradient elsewhere.
        """
        eager, oracle = self.eager[position], self.oracle[position]
        if position < self.first_gradient or eager is None or oracle is None or eager.dtype not in ALLOWANCES:
            return 0.0
        gradients = (each for each in self.oracle[self.first_gradient :] if each is not None)
        largest = max(usual, *map(rmse, gradients))
        if rmse(oracle) > _ZERO * torch.finfo(oracle.dtype).eps * largest:
            return 0.0
        return ALLOWANCES[eager.dtype].vanishing * ROUNDING[eager.dtype] * largest

    def _is_right_by_value(self, position: int, tensors: Sequence[torch.Tensor | None]) -> bool:
        """Whether codes, or the codes that scales belong to, are right although they are not the reference's."""
        if self.unrounded is None:
            return False
        limit = self.tolerance.k if self.tolerance and self.tolerance.k is not None else MULTIPLE
        forward = slice(0, self.first_gradient)
        scales = {at for at in range(self.first_gradient) if self.is_scale(at)}
        sides = Sides(tensors[forward], self.eager[forward], self.oracle[forward], self.unrounded(), scales)
        return sides.are_right(position, limit)

    def _is_quantised(self, position: int) -> bool:
        """Whether the tensor holds codes, or their scales."""
        eager = self.eager[position]
        return eager is not None and (eager.dtype in FP8_DTYPES or self.is_scale(position))

    def _judge_integers(self, position: int, candidate: torch.Tensor, eager: torch.Tensor) -> Accuracy:
        """Judge integers. If the reference's depend on which of equal elements it chooses, others are right, too."""
        name = self.names[position]
        accuracy = compare(candidate, eager, eager, name=name)
        alike = candidate.shape == eager.shape and candidate.dtype == eager.dtype
        if not accuracy.problem or self.ordered is None or not alike:
            return accuracy
        undefined = torch.zeros_like(eager, dtype=torch.bool)
        uncast = self.uncast()[position] if self.uncast is not None and position < self.first_gradient else None
        if uncast is not None:  # No language defines casts of NaN, or of values out of the integer's range.
            limits = torch.iinfo(eager.dtype)
            undefined |= ~((uncast > limits.min - 1) & (uncast < limits.max + 1))
        for tensors in self.ordered():
            other = tensors[position]
            if other is None or other.shape != eager.shape:
                return accuracy
            undefined |= other != eager
        return compare(torch.where(undefined, eager, candidate), eager, eager, name=name)

    def exact_scales(self, tensors: Sequence[torch.Tensor | None]) -> bool:
        """Whether there are scales, all of them powers of two and equal to the reference's."""
        positions = [position for position in range(self.first_gradient) if self.is_scale(position)]
        pairs = [(tensors[position], self.eager[position]) for position in positions]
        return bool(pairs) and all(
            got is not None and want is not None and torch.equal(got, want) and powers_of_two(want)
            for got, want in pairs
        )

    def is_scale(self, position: int) -> bool:
        """Whether the rule for scales applies: float32 beside codes, unless the tolerance sets k or phi."""
        eager = self.eager[position]
        if eager is None or eager.dtype is not torch.float32 or position >= self.first_gradient:
            return False
        if self.tolerance is not None and (self.tolerance.k is not None or self.tolerance.phi is not None):
            return False
        return any(t is not None and t.dtype in FP8_DTYPES for t in self.eager)

    def needs_oracle(self, position: int) -> bool:
        """Whether the rule applies, which needs an oracle."""
        eager = self.eager[position]
        if eager is None or eager.dtype in FP8_DTYPES or self.is_scale(position):
            return False
        return eager.is_floating_point() or eager.is_complex()

    def eager_error(self, position: int) -> float:
        """RMSE of eager against the oracle, or 0 without an oracle."""
        eager, oracle = self.eager[position], self.oracle[position]
        return 0.0 if eager is None or oracle is None else rmse(eager, oracle)


@dataclass
class Reference:
    """A call's reference, run as often as the truth requires.

    Attributes:
        notes: remarks on the oracle for the reader.
        widens: whether modules that the reference keeps are widened, too; some take their own dtype alone.
    """

    call: Call
    inputs: Inputs
    notes: list[str] = field(default_factory=list)
    widens: bool = True

    def run(self, upstream: Gradients, wide: torch.dtype | None = None, *, restore: bool = True) -> Trial:
        """Run the reference once, on the inputs unchanged or in `wide`, with a module's parameters likewise."""
        reference, module = self.call.reference, self.inputs.module
        run = partial(run_trial, reference, self.inputs, upstream, seed=self.call.seed, wide=wide, restore=restore)
        owner = None if module is None else self._owner(module)
        if wide is not None:
            parts = [] if owner is None else [*owner.modules()]
            for kept in modules_of(reference) if self.widens else ():
                if all(kept is not part for part in parts):
                    run = partial(with_state, kept, run, widened_state(kept, wide))
        if owner is None:
            return run()
        parameters: dict[str, torch.Tensor] = dict(owner.named_parameters())
        trained = [name for name, value in parameters.items() if value.requires_grad]
        if len(trained) != len(self.inputs.parameters):
            raise UsageError(
                f"reference: has {len(trained)} parameters that require grad, the candidate has "
                f"{len(self.inputs.parameters)}; give the reference the same parameters in the same order"
            )
        state: dict[str, torch.Tensor] = {}
        if wide is not None and (self.widens or self.call.kept is None):
            state = widened_state(owner, wide)
            parameters = {name: state[name] for name in parameters}
        run = partial(run, parameters=[parameters[name] for name in trained])
        # Both passes: a backward pass may call modules again (activation checkpointing).
        return with_state(owner, run, state) if state else run()

    def _owner(self, module: torch.nn.Module) -> torch.nn.Module:
        """The module whose parameters are those of the candidate's `module`: the reference, the one that it keeps, or
        `module` itself."""
        reference, kept = self.call.reference, modules_of(self.call.reference)
        if isinstance(reference, torch.nn.Module):
            return reference
        alike = [sum(each.requires_grad for each in one.parameters()) == len(self.inputs.parameters) for one in kept]
        return kept[0] if alike == [True] else module

    def eager(
        self, incoming: Callable[[torch.Tensor], torch.Tensor] | None = None, only: int | None = None
    ) -> tuple[Trial, Gradients]:
        """The reference as it is, and incoming gradients if there is a backward pass.

        Args:
            incoming: changes the random incoming gradients.
            only: the output that alone has one; by default, all that are differentiable have.
        """
        eager = self.run([])
        if not self.inputs.leaf_names or not any(eager.differentiable):
            return eager, []
        upstream = upstream_gradients(eager, self.call.seed)
        if incoming is not None:
            upstream = [None if gradient is None else incoming(gradient) for gradient in upstream]
        if only is not None:
            upstream = [gradient if at == only else None for at, gradient in enumerate(upstream)]
        return self.run(upstream), upstream

    def ordered(self, upstream: Gradients) -> list[list[torch.Tensor | None]]:
        """The reference's tensors with the first, and with the last, of equal elements chosen."""
        found = []
        for last in (False, True):
            with OrderOfEqual(last=last):
                found.append(self.run(upstream).tensors())
        return found

    def truth(self, eager: Trial, upstream: Gradients) -> Truth:
        """The truth from `eager`, a run with these incoming gradients, and from further runs.

        Raises:
            MeasurementError: the reference raises in the oracle's dtype.
        """
        names, tensors = eager.names + self.inputs.written_names, eager.tensors()
        first, coded = len(names), eager.outputs + eager.written

        def alone(run: Callable[[], Result]) -> Callable[[], Result] | None:
            return None if self.call.ranks.in_step else cache(run)  # ranks would have to agree to run it

        truth = Truth(
            names=names + [f"gradient of {name}" for name in self.inputs.leaf_names if upstream],
            eager=tensors,
            oracle=[None] * len(tensors),
            first_gradient=first,
            first_parameter=len(tensors) - (len(self.inputs.parameters) if upstream else 0),
            tolerance=self.call.tolerance,
            groups=jagged(self.call.groups, self.inputs.tensors),
            ordered=alone(lambda: self.ordered([])),
            close=alone(lambda: self.close(eager, upstream)),
            unrounded=alone(lambda: in_float32(lambda: self._forward(torch.float32), coded)),
            uncast=alone(lambda: before_integers(self._forward, coded)),
        )
        if any(tensor.dtype in FP8_DTYPES for tensor in coded):
            truth.oracle[:first] = unrounded_codes(self._forward, coded)
        needed = [position for position in range(len(tensors)) if truth.needs_oracle(position)]
        if needed:
            oracle = self.oracle(eager, upstream)
            for position in needed:
                truth.oracle[position] = oracle[position]
        return truth

    def _forward(self, wide: torch.dtype | None = None) -> list[torch.Tensor]:
        trial = self.run([], wide)
        return trial.outputs + trial.written

    def oracle(self, eager: Trial, upstream: Gradients) -> list[torch.Tensor | None]:
        """The counterparts of `eager`'s tensors in the oracle's dtype.

        Raises:
            MeasurementError: the reference raises in that dtype.
        """
        wide, why = self._oracle_dtype(eager), "the reference raises in float64"
        try:
            return self._oracle_in(wide, eager, upstream)
        except MeasurementError as error:
            if wide is torch.float32:
                raise
            if error.__cause__ is not None and is_out_of_memory(error.__cause__):
                why = "float64 ran out of memory"
        # Outside the handler, since the frames of `error` hold the tensors of the failed run.
        found = self._oracle_in(torch.float32, eager, upstream)
        self._note(f"oracle: float32, since {why}")
        return found

    def close(self, eager: Trial, upstream: Gradients) -> list[list[torch.Tensor | None]]:
        """The oracle on inputs and parameters that are slightly off, each time another way; as often as there is memory
        for what it returns."""
        size = sum(tensor.numel() * torch.float64.itemsize for tensor in eager.tensors() if tensor is not None)
        found: list[list[torch.Tensor | None]] = []
        for draw in range(int(min(DRAWS, MEMORY_SHARE * free_bytes(self.inputs.device) // max(1, size)))):
            try:
                with close_inputs(draw):
                    found.append(self.oracle(eager, upstream))
            except MeasurementError:  # the reference refuses such inputs
                break
        return found

    def _oracle_in(self, wide: torch.dtype, eager: Trial, upstream: Gradients) -> list[torch.Tensor | None]:
        shapes = _shapes(eager)

        def run() -> list[torch.Tensor | None]:
            trial = self.run(upstream, wide)
            if _shapes(trial) != shapes:
                raise TypeError("its results have other shapes than with the inputs as they are")
            return trial.tensors()

        try:
            return run_wide(run, wide)
        except Exception as error:
            if self.widens and not isinstance(self.call.reference, torch.nn.Module) and modules_of(self.call.reference):
                return replace(self, widens=False)._oracle_in(wide, eager, upstream)
            name = str(wide).removeprefix("torch.")
            what = f"reference: raised with its inputs in {name} ({type(error).__name__}: {error})"
            raise MeasurementError(f"{what}; let the reference accept {name} inputs") from error

    def _oracle_dtype(self, eager: Trial) -> torch.dtype:
        if any(tensor.dtype in FP8_DTYPES for tensor in eager.outputs):
            return torch.float32  # Codes and their scales are defined on float32.
        if fits_in_float64(self.inputs.tensors + [t for t in eager.tensors() if t is not None]):
            return torch.float64
        self._note("oracle: float32, since float64 would take over a quarter of the free memory")
        return torch.float32

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)


def with_hint(accuracy: Accuracy, hint: str) -> Accuracy:
    """The accuracy with a hint after its problem, if there is one."""
    return msgspec.structs.replace(accuracy, problem=f"{accuracy.problem}; {hint}") if hint else accuracy


def _shapes(trial: Trial) -> list[torch.Size | None]:
    return [None if tensor is None else tensor.shape for tensor in trial.tensors()]
