"""Derived inputs of one call, one after the other while the budget lasts; the first wrong one, made small."""

from __future__ import annotations

import contextlib
import functools
import sys
import time
import warnings
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import torch

from perfguard.call import Call
from perfguard.errors import UsageError
from perfguard.hard.derivation import Derivation, derived_call, leaves_of
from perfguard.hard.judging import Outcome, judged, usual_scales
from perfguard.hard.plan import planned
from perfguard.hard.sizes import holds_tensors, small
from perfguard.numerics.trial import Inputs
from perfguard.records import HardCounts

LEAST_SECONDS = 0.2  # a tiny call's inputs are cheap, and most of what a call costs is no arithmetic
MOST_SHRINKS = 24  # runs to make a failing input small


@dataclass
class HardResult:
    """What derived inputs showed.

    Attributes:
        ran: how many were compared.
        left_out: how many were not, by reason.
        waiting: how many did not fit into the budget.
        problem: the smallest derived input that fails, and how; '' where none does.
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


def run_hard(call: Call, seconds: float, rotation: int = 0) -> HardResult:
    """Judge derived inputs for as long as `seconds` of processor time, and at least a moment.

    Args:
        rotation: another number takes what did not fit in another order.

    Raises:
        Exception: the device is lost.
    """
    tensors = [leaf for leaf in leaves_of(call) if isinstance(leaf, torch.Tensor)]
    other = sorted({tensor.device for tensor in tensors if tensor.device.type != "cpu"}, key=str)
    kind = {"device_type": other[0].type} if other else {}
    with torch.random.fork_rng(other, **kind), _quiet():
        return _Hard(call, max(seconds, LEAST_SECONDS), other).run(rotation)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No warning of overflows and the like, which nobody's inputs have: under `-W error` they would be refusals. NumPy,
    by which Triton's interpreter computes, is told by itself: whatever thread enters `catch_warnings` meanwhile."""
    numpy = sys.modules.get("numpy")
    with warnings.catch_warnings(), numpy.errstate(all="ignore") if numpy else contextlib.nullcontext():
        warnings.simplefilter("ignore")
        yield


class _Hard:
    def __init__(self, call: Call, seconds: float, devices: Sequence[torch.device]) -> None:
        self.call = replace(call, walk=(), rival=None)
        self.devices = devices  # but the CPU
        self.until = time.thread_time() + seconds
        self.found = HardResult()
        self.usual = functools.cache(lambda: usual_scales(self.call))
        self.took: list[float] = []  # seconds of each derived input

    def run(self, rotation: int) -> HardResult:
        base = self._small()
        self._derived(base, planned(base, self.call.seed + rotation))
        if self.found.ran and not self.found.problem:  # a cache that knows the wrong thing by now
            outcome = self._judged(base, Derivation(()))
            if outcome.problem:
                self.found.backward = outcome.backward
                self.found.problem = f"the given inputs, once more after {self.found.ran} hard ones: {outcome.problem}"
        return self.found

    def _derived(self, base: Call, plan: Iterator[Derivation]) -> None:
        queue = deque(islice(plan, 1))
        while queue:
            # Room for this one, and for the given inputs in the end.
            if time.thread_time() + 2 * sum(self.took) / max(1, len(self.took)) > self.until:
                self.found.waiting += len(queue) + sum(1 for _ in plan)
                break
            derivation = queue.popleft()
            began = time.thread_time()
            outcome = self._judged(base, derivation)
            self.took.append(time.thread_time() - began)
            if outcome.problem:
                self._tell(base, derivation, outcome)
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
        """The call with its large dimensions cut, where that is a call and still right; else as it is."""
        leaves = leaves_of(self.call)
        part = None if holds_tensors(self.call.fn) or holds_tensors(self.call.reference) else small(leaves)
        if part is None or (self.call.hard and "sizes" in self.call.hard.without):
            return self.call
        derivation = Derivation((part,))
        outcome = self._judged(self.call, derivation)
        return self.call if outcome.left_out or outcome.problem else derived_call(self.call, derivation)

    def _judged(self, base: Call, derivation: Derivation) -> Outcome:
        try:
            outcome = judged(derived_call(base, derivation), derivation, self.usual)
            if derivation.far_apart:  # gigabytes, which other processes may want
                for device in self.devices:
                    torch.get_device_module(device).empty_cache()
            return outcome
        except UsageError:  # a row that a smaller input no longer has
            return Outcome(left_out="no such input")
        except torch.OutOfMemoryError:
            return Outcome(left_out="memory is short")

    def _tell(self, base: Call, derivation: Derivation, outcome: Outcome) -> None:
        derivation, outcome = self._smallest(base, derivation, outcome)
        names = Inputs(base).names
        shapes = "" if base is self.call else f" of the call cut to {Inputs(base).describe()}"
        snippets = [
            f'perfguard.derived({name}, "{derivation.text(place)}")'
            for place, name in enumerate(names)
            if derivation.text(place)
        ]
        again = f"; made again by {', '.join(snippets)}".replace("argument ", "x") if snippets else ""
        self.found.backward = outcome.backward
        self.found.problem = f"hard input{shapes}, {derivation.words(names)}: {outcome.problem}{again}"

    def _smallest(self, base: Call, derivation: Derivation, outcome: Outcome) -> tuple[Derivation, Outcome]:
        """Parts left out one by one while what remains still fails."""
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
