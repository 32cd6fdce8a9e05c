"""Runs what is checked beside a given call within the budget: derived inputs and other configurations, by turns.

The first derived input that fails is reduced.
"""

from __future__ import annotations

import contextlib
import functools
import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace

import torch
from msgspec.structs import replace as replaced

from perfguard._compat.triton_internals import silent_interpreter, tuning_frozen
from perfguard.check.all_configs import DoesNotFit, Other, check_given
from perfguard.check.hard_inputs.called import judged_called
from perfguard.check.hard_inputs.code import Code, code_of
from perfguard.check.hard_inputs.comparison import Outcome
from perfguard.check.hard_inputs.derivation import (
    CALLED,
    STRICT,
    Derivation,
    FirstAccepted,
    Part,
    derived_call,
    leaves_of,
)
from perfguard.check.hard_inputs.patterns import TOLD, pattern_of, witnesses_of
from perfguard.check.hard_inputs.plan import ORDERED, Item, planned
from perfguard.check.hard_inputs.sizes import Kept, kept_by, sizes_of
from perfguard.check.hard_inputs.state import State
from perfguard.check.hard_inputs.strict_runs import judged_strictly
from perfguard.check.hard_inputs.verdict import is_told, judged, usual_scales
from perfguard.check.numerics.trial import Inputs
from perfguard.check.turns import Budget, Reached, Tried, Turns, hash_of
from perfguard.model.call import CONFIGURATIONS, Call, Hard
from perfguard.model.errors import UsageError, is_out_of_memory
from perfguard.model.records import Doubt, HardCounts

MOST_SHRINKS = 24  # runs to reduce a failing input

_GIVEN = Derivation(())


@dataclass
class HardResult:
    """What was found beside the given call.

    Attributes:
        ran: by kind, number of inputs compared, and of configurations checked.
        left_out: number of inputs not compared, by reason.
        waiting: by kind, number of those that did not fit into the budget.
        untried: kinds of which nothing has fitted into the budget of any run.
        doubts: the faults of configurations, and the smallest failing inputs: the first that failed, and before it
            those that failed in the last run already.
        notes: on configurations that do not fit the device.
        reached: where the next run begins; None: at the beginning.
    """

    ran: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    waiting: dict[str, int] = field(default_factory=dict)
    untried: list[str] = field(default_factory=list)
    doubts: list[Doubt] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    reached: Reached | None = None

    @property
    def problem(self) -> str:
        """The first fault in words that needs no base; '' if there is none."""
        return next((doubt.problem for doubt in self.doubts if not doubt.unmentioned), "")

    @property
    def counts(self) -> HardCounts:
        return HardCounts(dict(self.ran), dict(self.left_out), self.waiting, self.untried)


def run_hard(
    call: Call,
    seconds: float,
    rotation: int = 0,
    kept: Kept | None = None,
    *,
    others: Sequence[Other] = (),
    check_seconds: float = 0.0,
    reached: Reached | None = None,
    tried: Callable[[str], Set[str]] | None = None,
) -> HardResult:
    """Judge derived inputs and other configurations by turns, for about `seconds` of processor time; 0: none.

    All configurations are judged besides if `call.every` is set.

    Args:
        rotation: each number gives another order. Runs leave it at 0: what they find depends on `reached` alone.
        kept: by the call's functions before they were called; by default, what they keep now.
        others: configurations, of `check_given`.
        check_seconds: processor time of the given call's own check. Within the budget, first turns have more.
        reached: what the last run left of this case.
        tried: given a hash of code, the kinds that have had a turn with it, in this case or another; None: none.

    Raises:
        Exception: the device is lost, or what a configuration raises.
    """
    with _aside(call) as devices:
        hard = _Hard(call, devices)
        cheap = not call.on_any_rank(check_seconds > seconds)
        known = tried(hard.code_name()) if tried and seconds > 0 else frozenset()
        budget = Budget(seconds, cheap, known, agreed=call.on_any_rank)
        return hard.run(budget, rotation, kept, others, reached)


def wrong_of(call: Call, seconds: float) -> list[str]:
    """The problems of a call where nothing is measured, and no base is asked: as it is given, or else beside that.

    Args:
        seconds: processor time for what is beside it.

    Raises:
        Exception: whatever the candidate or the reference raises.
    """
    given = check_given(call)
    if call.on_any_rank(bool(given.checked.wrong)):
        return given.checked.wrong
    found = run_hard(call, seconds, kept=given.kept, others=given.others, check_seconds=given.seconds)
    return [doubt.problem for doubt in found.doubts if not doubt.unmentioned]


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


def _choices(call: Call) -> list[str]:
    """What the inputs choose in the code, apart from sizes: dtypes, and plain values other than numbers."""
    leaves = (leaf.dtype if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves_of(call))
    return [repr(leaf) for leaf in leaves if leaf is None or type(leaf) in (bool, str, torch.dtype)]


class _Hard:
    def __init__(self, call: Call, devices: Sequence[torch.device]) -> None:
        self.call = self.base = replace(call, walk=(), rival=None)  # as given, and as it is derived from
        self.devices = devices  # without the CPU
        self.code = functools.cache(lambda: Code() if call.hard is None else code_of(call.fn, Inputs(call).device))
        self.code_name = functools.cache(lambda: hash_of(self.code().name, *_choices(call)))
        self.cut: Part | None = None  # from the call as given to the base
        self.usual = functools.cache(lambda: usual_scales(self.base))
        self.state = functools.cache(lambda: State(self.base))
        self.found = HardResult()
        self.tried: list[Derivation] = []

    def run(
        self, budget: Budget, rotation: int, kept: Kept | None, others: Sequence[Other], reached: Reached | None
    ) -> HardResult:
        for other in others if self.call.every else ():
            self._try(CONFIGURATIONS, other)
        if budget.seconds > 0:
            self._take_turns(budget, rotation, kept, others, reached)
        ran = sum(number for kind, number in self.found.ran.items() if kind != CONFIGURATIONS)
        # Caches may now hold wrong values.
        if ran and not any(doubt.tried for doubt in self.found.doubts if not doubt.unmentioned):
            outcome = self._judged(_GIVEN)
            if outcome.problem:
                words = f"the given inputs, once more after {ran} hard ones: {outcome.problem}"
                self._doubt(
                    "the given inputs, once more after hard ones", words, outcome, [_GIVEN, *self.tried, _GIVEN]
                )
                self.found.reached = reached  # the same inputs find it again
        return self.found

    def _take_turns(
        self, budget: Budget, rotation: int, kept: Kept | None, others: Sequence[Other], reached: Reached | None
    ) -> None:
        began = budget.clock()
        if self.call.hard is not None:
            kept = kept_by(self.call) if kept is None else kept
            self._make_small(self.call.hard, kept)
        plan, name = self._plan(rotation, kept, others)
        if reached is None or reached.plan != name:
            reached = Reached(name, code=self.code_name())
        if self.call.every:
            plan.pop(CONFIGURATIONS)
        left = replace(budget, seconds=budget.seconds - (budget.clock() - began))
        turns = Turns(plan, self._of_this_code(reached), left)
        turns.take(self._try)
        self.found.waiting, self.found.untried, self.found.reached = turns.waiting, turns.untried, turns.reached

    def _of_this_code(self, reached: Reached) -> Reached:
        """How far the kinds have come with this code. With another one, what tells most is tried again."""
        if reached.code == self.code_name():
            return reached
        done = {kind: number for kind, number in reached.done.items() if kind not in ORDERED}
        return replaced(reached, code=self.code_name(), done=done)

    def _make_small(self, hard: Hard, kept: Kept) -> None:
        part = None if "sizes" in hard.without else sizes_of(self.call, kept).small()
        if part is not None:
            outcome = self._judged(Derivation((part,)))
            if not outcome.left_out and not outcome.problem:
                self._cut(part)

    def _plan(
        self, rotation: int, kept: Kept | None, others: Sequence[Other]
    ) -> tuple[dict[str, Sequence[Item | Other]], str]:
        """What takes turns, by kind, in an order of the case and the rotation, and a hash of it."""
        seed = self.call.seed + rotation
        found: dict[str, Sequence[Item | Other]] = {CONFIGURATIONS: random.Random(seed).sample(others, len(others))}
        if kept is not None and self.call.hard is not None:
            found |= planned(self.base, seed, kept, self.code())
        # What only some calls and codes ask for comes first: it is rarely there, and then tells most.
        drawn = random.Random(seed).sample([*found], len(found))
        plan = {kind: found[kind] for kind in dict.fromkeys([*(each for each in ORDERED if each in found), *drawn])}
        return plan, hash_of(Inputs(self.base).describe(), *((kind, *map(_named, plan[kind])) for kind in plan))

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
        self.state = functools.cache(lambda: State(self.base))

    def _try(self, kind: str, item: Item | Other) -> Tried[Item | Other]:
        if isinstance(item, Other):
            return self._configuration(item)
        derivation, outcome = self._first_accepted(item)
        if outcome.problem:
            self._report(derivation, outcome)
        elif outcome.left_out and len(derivation.parts) > 1 and not derivation.text(CALLED):
            middle = len(derivation.parts) // 2
            halves = [Derivation(derivation.parts[:middle]), Derivation(derivation.parts[middle:])]
            return Tried(instead=[(half.parts[0].kind, half) for half in halves])
        elif outcome.left_out:
            self.found.left_out[outcome.left_out] += 1
        else:
            self.found.ran[kind] += 1
        return Tried(failed=bool(outcome.problem) and not derivation.unmentioned)

    def _first_accepted(self, item: Item) -> tuple[Derivation, Outcome]:
        choices, joint = (item.items, item.joint) if isinstance(item, FirstAccepted) else ((item,), None)
        for derivation in choices:
            self.tried.append(derivation)
            outcome = self._judged(derivation)
            if outcome.problem and not is_told(self.base, derivation, joint):
                outcome = Outcome(left_out="the reference does not use what changed")
            if outcome.problem and (reason := self._without_witness(derivation)):
                outcome = Outcome(left_out=reason)
            if not outcome.left_out:
                break
        return derivation, outcome

    def _without_witness(self, derivation: Derivation) -> str:
        """The reason why a fault does not count; '' if it does."""
        for reason, others in witnesses_of(derivation, self.base, self.code().thresholds).items():
            if not any(self._is_witness(each, derivation) for each in others):
                return reason
        return ""

    def _is_witness(self, other: Derivation, derivation: Derivation) -> bool:
        outcome = self._judged(other)
        if outcome.problem or outcome.left_out:
            return False
        unmarked = any(part.kind == "unmarked integers" for part in derivation.parts)
        return not unmarked or (is_told(self.base, derivation, other) and is_told(self.base, other, derivation))

    def _configuration(self, other: Other) -> Tried[Item | Other]:
        try:
            doubts = other.doubts()
        except DoesNotFit as error:
            self.found.notes.append(str(error))
            return Tried()
        inputs = Inputs(self.call).describe()
        self.found.ran[CONFIGURATIONS] += 1
        self.found.doubts += [replaced(doubt, inputs=inputs) for doubt in doubts]
        return Tried(failed=bool(doubts))

    def _judged(self, derivation: Derivation, call: Call | None = None) -> Outcome:
        try:
            with tuning_frozen():
                derived = derived_call(self.base if call is None else call, derivation)

                def judge() -> Outcome:
                    if derivation.is_called:
                        return judged_called(self.base, derived, derivation, self.usual, self.state)
                    plain = judged(derived, derivation, self.usual)
                    if not plain.problem or self.base.ranks.in_step or not self.state().names:
                        return plain
                    return judged_called(self.base, derived, derivation, self.usual, self.state)

                outcome = judged_strictly(derivation, judge) if derivation.text(STRICT) else judge()
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
            for place, (name, leaf) in enumerate(zip(names, leaves_of(self.base), strict=True))
            if derivation.text(place) and isinstance(leaf, torch.Tensor)
        ]
        again = f"; made again by {', '.join(snippets)}".replace("argument ", "x") if snippets else ""
        kinds = ", ".join(f'"{kind}"' for kind in dict.fromkeys(part.kind for part in derivation.parts))
        again += f"; if such inputs are outside of the contract: hard=Hard(without=[{kinds}], reason=…)"
        unusual = "".join(f", {TOLD[kind]}" for kind in dict.fromkeys(p.kind for p in derivation.parts) if kind in TOLD)
        name = f"hard input{shapes}{unusual}{':' if unusual else ','} {derivation.words(names)}"
        pattern = pattern_of(self.base, derivation, lambda call, other: self._judged(other, call))
        self._doubt(name, f"{name}: {outcome.problem}{pattern}{again}", outcome, [derivation])

    def _doubt(self, name: str, problem: str, outcome: Outcome, tried: Sequence[Derivation]) -> None:
        doubt = Doubt(
            name,
            problem,
            backward=outcome.backward,
            inputs=Inputs(self.call).describe(),
            cut=dict(self.cut.steps) if self.cut else {},
            tried=[[(part.kind, dict(part.steps)) for part in each.parts] for each in tried],
            unmentioned=bool(tried) and tried[-1].unmentioned,
        )
        self.found.doubts.append(doubt)

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


def _named(item: Item | Other) -> str:
    """The same in every process and commit."""
    return item.name if isinstance(item, Other) else repr(item)
