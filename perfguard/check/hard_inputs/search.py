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
from perfguard.check.hard_inputs.derivation import Derivation, derived_call, leaves_of
from perfguard.check.hard_inputs.plan import planned
from perfguard.check.hard_inputs.sizes import Kept, kept_by, sizes_of
from perfguard.check.hard_inputs.verdict import judged, usual_scales
from perfguard.check.numerics.trial import Inputs
from perfguard.model.call import Call
from perfguard.model.errors import UsageError, is_out_of_memory
from perfguard.model.records import HardCounts

LEAST_SECONDS = 0.2  # cheap for tiny calls, whose cost is mostly overhead
MOST_SHRINKS = 24  # runs to reduce a failing input


@dataclass
class HardResult:
    """The results of derived inputs.

    Attributes:
        ran: number of inputs compared.
        left_out: number of inputs not compared, by reason.
        waiting: number of inputs that did not fit into the budget.
        problem: the smallest failing input and its error; '' if none fails.
        backward: whether a gradient fails.
    """

    ran: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    waiting: int = 0
    problem: str = ""
    backward: bool = False

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
    tensors = [leaf for leaf in leaves_of(call) if isinstance(leaf, torch.Tensor)]
    other = sorted({tensor.device for tensor in tensors if tensor.device.type != "cpu"}, key=str)
    kind = {"device_type": other[0].type} if other else {}
    with torch.random.fork_rng(other, **kind), _quiet():
        return _Hard(call, max(seconds, LEAST_SECONDS), other, kept or kept_by(call)).run(rotation)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence warnings of overflows and the like, which are due to the derived inputs: under `-W error` they would be
    refusals. Triton's interpreter is silenced separately, as threads may enter `catch_warnings`."""
    with warnings.catch_warnings(), silent_interpreter():
        warnings.simplefilter("ignore")
        yield


class _Hard:
    def __init__(self, call: Call, seconds: float, devices: Sequence[torch.device], kept: Kept) -> None:
        self.call = replace(call, walk=(), rival=None)
        self.kept = kept
        self.devices = devices  # without the CPU
        self.until = time.thread_time() + seconds
        self.found = HardResult()
        self.usual = functools.cache(lambda: usual_scales(self.call))
        self.took: list[float] = []  # seconds of each derived input

    def run(self, rotation: int) -> HardResult:
        base = self._small()
        self.usual = functools.cache(lambda: usual_scales(base))
        self._derived(base, planned(base, self.call.seed + rotation, self.kept))
        if self.found.ran and not self.found.problem:  # finds caches that now hold wrong values
            outcome = self._judged(base, Derivation(()))
            if outcome.problem:
                self.found.backward = outcome.backward
                self.found.problem = f"the given inputs, once more after {self.found.ran} hard ones: {outcome.problem}"
        return self.found

    def _derived(self, base: Call, plan: Iterator[Derivation]) -> None:
        queue = deque(islice(plan, 1))
        while queue:
            # Leave time for this input, and for the given inputs at the end.
            if time.thread_time() + 2 * sum(self.took) / max(1, len(self.took)) > self.until:
                self.found.waiting += len(queue) + sum(1 for _ in plan)
                break
            derivation = queue.popleft()
            began = time.thread_time()
            outcome = self._judged(base, derivation)
            self.took.append(time.thread_time() - began)
            if outcome.problem:
                self._report(base, derivation, outcome)
                break
            if outcome.left_out and len(derivation.parts) > 1:
                middle = len(derivation.parts) // 2
                queue.extendleft((Derivation(derivation.parts[middle:]), Derivation(derivation.parts[:middle])))
            elif outcome.left_out:
                self.found.left_out[outcome.left_out] += 1
            else:
                self.found.ran += 1
            queue.extend(islice(plan, 1 if not queue else 0))

    def _small(self) -> Call:
        """The call with its large dimensions cut, if that is valid and right; otherwise the call itself."""
        part = sizes_of(self.call, self.kept).small()
        if part is None or (self.call.hard and "sizes" in self.call.hard.without):
            return self.call
        derivation = Derivation((part,))
        outcome = self._judged(self.call, derivation)
        return self.call if outcome.left_out or outcome.problem else derived_call(self.call, derivation)

    def _judged(self, base: Call, derivation: Derivation) -> Outcome:
        try:
            outcome = judged(derived_call(base, derivation), derivation, self.usual)
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

    def _report(self, base: Call, derivation: Derivation, outcome: Outcome) -> None:
        derivation, outcome = self._smallest(base, derivation, outcome)
        names = Inputs(base).names
        shapes = "" if base is self.call else f" of the call cut to {Inputs(base).describe()}"
        snippets = [
            f'perfguard.derived({name}, "{derivation.text(place)}")'
            for place, name in enumerate(names)
            if derivation.text(place)
        ]
        again = f"; made again by {', '.join(snippets)}".replace("argument ", "x") if snippets else ""
        kinds = ", ".join(f'"{kind}"' for kind in dict.fromkeys(part.kind for part in derivation.parts))
        again += f"; if such inputs are outside of the contract: hard=Hard(without=[{kinds}], reason=…)"
        self.found.backward = outcome.backward
        self.found.problem = f"hard input{shapes}, {derivation.words(names)}: {outcome.problem}{again}"

    def _smallest(self, base: Call, derivation: Derivation, outcome: Outcome) -> tuple[Derivation, Outcome]:
        """Remove parts one by one while the rest still fails."""
        runs = 0
        for part in derivation.parts:
            rest = tuple(other for other in derivation.parts if other is not part)
            if not rest or runs >= MOST_SHRINKS:
                continue
            runs += 1
            smaller = self._judged(base, Derivation(rest))
            if smaller.problem:
                derivation, outcome = Derivation(rest), smaller
        return derivation, outcome
