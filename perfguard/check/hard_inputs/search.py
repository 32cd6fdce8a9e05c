"""Runs the derived inputs of one call in order within the budget, and reduces the first one that fails."""

from __future__ import annotations

import contextlib
import functools
import time
import warnings
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import torch

from perfguard._compat.triton_internals import silent_interpreter
from perfguard.check.hard_inputs.comparison import Outcome
from perfguard.check.hard_inputs.derivation import Derivation, Part, derived_call, leaves_of
from perfguard.check.hard_inputs.plan import planned
from perfguard.check.hard_inputs.sizes import Kept, kept_by, sizes_of
from perfguard.check.hard_inputs.verdict import judged, usual_scales
from perfguard.check.numerics.trial import Inputs
from perfguard.model.call import Call
from perfguard.model.errors import UsageError, is_out_of_memory
from perfguard.model.records import Doubt, HardCounts

LEAST_SECONDS = 0.2  # cheap for tiny calls, whose cost is mostly overhead
MOST_SHRINKS = 24  # runs to reduce a failing input

_GIVEN = Derivation(())


@dataclass
class HardResult:
    """The results of derived inputs.

    Attributes:
        ran: number of inputs compared.
        left_out: number of inputs not compared, by reason.
        waiting: number of inputs that did not fit into the budget.
        doubt: the smallest failing input and its error; None if none fails.
    """

    ran: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    waiting: int = 0
    doubt: Doubt | None = None

    @property
    def problem(self) -> str:
        """The failing input and its error in words; '' if none fails."""
        return "" if self.doubt is None else self.doubt.problem

    @property
    def counts(self) -> HardCounts:
        return HardCounts(self.ran, dict(self.left_out), self.waiting)


def run_hard(call: Call, seconds: float, rotation: int = 0, kept: Kept | None = None) -> HardResult:
    """Judge derived inputs for `seconds` of CPU time, and at least 0.2 s.

    Args:
        rotation: each number gives another order, and so another selection of inputs that fit into the budget.
        kept: by the call's functions before they were called; by default, what they keep now.

    Raises:
        Exception: the device is lost.
    """
    with _aside(call) as devices:
        return _Hard(call, devices).run(max(seconds, LEAST_SECONDS), rotation, kept or kept_by(call))


def judge_again(call: Call, doubt: Doubt) -> Outcome:
    """Run exactly the derived inputs of a doubt from another process on this call, and judge the last one.

    Raises:
        Exception: the device is lost.
    """
    with _aside(call) as devices:
        return _Hard(call, devices).again(doubt)


@contextlib.contextmanager
def _aside(call: Call) -> Iterator[list[torch.device]]:
    """Leave the user's generators as they are, and silence warnings of overflows and the like, which are due to the
    derived inputs: under `-W error` they would be refusals. Triton's interpreter is silenced separately, as threads may
    enter `catch_warnings`. Yields the call's devices without the CPU."""
    tensors = [leaf for leaf in leaves_of(call) if isinstance(leaf, torch.Tensor)]
    devices = sorted({tensor.device for tensor in tensors if tensor.device.type != "cpu"}, key=str)
    kind = {"device_type": devices[0].type} if devices else {}
    with torch.random.fork_rng(devices, **kind), warnings.catch_warnings(), silent_interpreter():
        warnings.simplefilter("ignore")
        yield devices


class _Hard:
    def __init__(self, call: Call, devices: Sequence[torch.device]) -> None:
        self.call = self.base = replace(call, walk=(), rival=None)  # as given, and as it is derived from
        self.devices = devices  # without the CPU
        self.cut: Part | None = None  # from the call as given to the base
        self.usual = functools.cache(lambda: usual_scales(self.base))
        self.found = HardResult()
        self.tried: list[Derivation] = []
        self.took: list[float] = []  # seconds of each of them

    def run(self, seconds: float, rotation: int, kept: Kept) -> HardResult:
        until = time.thread_time() + seconds
        part = sizes_of(self.call, kept).small()
        if part is not None and not (self.call.hard and "sizes" in self.call.hard.without):
            outcome = self._judged(Derivation((part,)))
            if not outcome.left_out and not outcome.problem:
                self._cut(part)
        self._derived(planned(self.base, self.call.seed + rotation, kept), until)
        if self.found.ran and self.found.doubt is None:  # finds caches that now hold wrong values
            outcome = self._judged(_GIVEN)
            if outcome.problem:
                words = f"the given inputs, once more after {self.found.ran} hard ones: {outcome.problem}"
                self._doubt(
                    "the given inputs, once more after hard ones", words, outcome, [_GIVEN, *self.tried, _GIVEN]
                )
        return self.found

    def again(self, doubt: Doubt) -> Outcome:
        if doubt.cut:
            part = Part("sizes", doubt.cut)
            outcome = self._judged(Derivation((part,)))
            if outcome.left_out:
                return outcome
            self._cut(part)
        outcome = Outcome()
        for parts in doubt.tried:
            outcome = self._judged(Derivation(tuple(Part(kind, steps) for kind, steps in parts)))
        return outcome

    def _cut(self, part: Part) -> None:
        """Derive all further inputs from smaller ones, which are cheap."""
        self.cut, self.base = part, derived_call(self.call, Derivation((part,)))
        self.usual = functools.cache(lambda: usual_scales(self.base))

    def _derived(self, plan: Iterator[Derivation], until: float) -> None:
        queue = deque(islice(plan, 1))
        while queue:
            # Leave time for this input, and for the given inputs at the end.
            if time.thread_time() + 2 * sum(self.took) / max(1, len(self.took)) > until:
                self.found.waiting += len(queue) + sum(1 for _ in plan)
                break
            derivation = queue.popleft()
            began = time.thread_time()
            self.tried.append(derivation)
            outcome = self._judged(derivation)
            self.took.append(time.thread_time() - began)
            if outcome.problem:
                self._report(derivation, outcome)
                break
            if outcome.left_out and len(derivation.parts) > 1:
                middle = len(derivation.parts) // 2
                queue.extendleft((Derivation(derivation.parts[middle:]), Derivation(derivation.parts[:middle])))
            elif outcome.left_out:
                self.found.left_out[outcome.left_out] += 1
            else:
                self.found.ran += 1
            queue.extend(islice(plan, 1 if not queue else 0))

    def _judged(self, derivation: Derivation) -> Outcome:
        try:
            outcome = judged(derived_call(self.base, derivation), derivation, self.usual)
            if derivation.far_apart:  # gigabytes, which other processes may need
                for device in self.devices:
                    torch.get_device_module(device).empty_cache()
            return outcome
        except UsageError:  # the row no longer exists in a smaller input
            return Outcome(left_out="no such input")
        except Exception as error:
            if is_out_of_memory(error):
                return Outcome(left_out="memory is short")
            raise

    def _report(self, derivation: Derivation, outcome: Outcome) -> None:
        derivation, outcome = self._smallest(derivation, outcome)
        names = Inputs(self.base).names
        shapes = "" if self.cut is None else f" of the call cut to {Inputs(self.base).describe()}"
        snippets = [
            f'perfguard.derived({name}, "{derivation.text(place)}")'
            for place, name in enumerate(names)
            if derivation.text(place)
        ]
        again = f"; made again by {', '.join(snippets)}".replace("argument ", "x") if snippets else ""
        kinds = ", ".join(f'"{kind}"' for kind in dict.fromkeys(part.kind for part in derivation.parts))
        again += f"; if such inputs are outside of the contract: hard=Hard(without=[{kinds}], reason=…)"
        name = f"hard input{shapes}, {derivation.words(names)}"
        self._doubt(name, f"{name}: {outcome.problem}{again}", outcome, [derivation])

    def _doubt(self, name: str, problem: str, outcome: Outcome, tried: Sequence[Derivation]) -> None:
        self.found.doubt = Doubt(
            name,
            problem,
            backward=outcome.backward,
            inputs=Inputs(self.call).describe(),
            cut=dict(self.cut.steps) if self.cut else {},
            tried=[[(part.kind, dict(part.steps)) for part in each.parts] for each in tried],
        )

    def _smallest(self, derivation: Derivation, outcome: Outcome) -> tuple[Derivation, Outcome]:
        """Remove parts one by one while the rest still fails."""
        runs = 0
        for part in derivation.parts:
            rest = tuple(other for other in derivation.parts if other is not part)
            if not rest or runs >= MOST_SHRINKS:
                continue
            runs += 1
            smaller = self._judged(Derivation(rest))
            if smaller.problem:
                derivation, outcome = Derivation(rest), smaller
        return derivation, outcome
