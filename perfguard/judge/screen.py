"""Times that need no process pair: the device runs the same code, or the record excludes a change (docs/judging.md).

A record comes from one board on one day. It can pass a time on the same board if the run's controls (unchanged cases
that are timed nevertheless) show that the machine has not changed since. It never fails a time.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from msgspec.structs import replace

from perfguard.judge.exact import describe_difference
from perfguard.judge.lane import Lane, timer_class
from perfguard.judge.record import same_board
from perfguard.judge.statistics import COARSE, Prior, history_of, least_effect, moderate
from perfguard.model.limits import KERNEL_TIME, KERNEL_TIME_LIMITS, kernel_time, timed_kernel
from perfguard.model.records import (
    NO_BASE,
    Case,
    CaseId,
    CaseResult,
    Entry,
    Reading,
    ReadingId,
    TimedEntry,
    Verdict,
    Word,
)
from perfguard.model.records.baseline import MIN_SESSIONS, UNSTABLE
from perfguard.model.records.code import CODE, same_code, same_parts
from perfguard.model.units import Unit, counted


def covering(result: CaseResult, lane: Lane) -> dict[str, str]:
    """Stored time that need not be judged -> the exact metric that covers it, whose reading equals the stored one.

    Inputs, power limit and toolchain have to be those of the baseline as well.
    """
    suite, key = result.id
    covered_by: dict[str, str] = {}
    if not lane.comparable(result):
        return covered_by
    for reading in result.readings:
        stored = lane.record(result, reading).entry if reading.covers and not reading.timed else None
        if stored is not None and _is_equal(reading, stored):
            for metric in reading.covers:
                if (suite, key, metric) in lane.timed:
                    covered_by.setdefault(metric, reading.metric)
    return covered_by


def covered_beside(base: CaseResult, work: CaseResult) -> frozenset[str]:
    """The timed metrics that cannot differ from the base's, because the device runs the same code on both sides."""
    return frozenset(
        metric
        for reading in work.readings
        for metric in reading.covers
        if (other := base.reading(reading.metric)) is not None and _is_equal(reading, other.value)
    )


def has_other_code(result: CaseResult, lane: Lane) -> bool:
    """Whether the kernels of a case may differ from those of its record. They do not if the device runs the recorded
    code."""
    reading = result.reading(CODE)
    if reading is None or result.ranks > 1:
        return False
    stored = lane.record(result, reading).entry
    known = {} if reading.value == {} and stored is None else stored
    return (known is None or not _is_equal(reading, known)) and not covering(result, lane)


def _is_equal(reading: Reading, other: Entry) -> bool:
    """Whether an exact reading equals another value of its metric. One equal half is enough for fingerprints."""
    if isinstance(other, TimedEntry):
        return False
    if reading.metric == CODE and isinstance(other, dict) and isinstance(reading.value, dict):
        return same_parts(other, reading.value)
    return not describe_difference(reading, other)


# -- the record --------------------------------------------------------------------------------------------------------

LEAST_CONTROLS = 15  # Fewer unchanged cases are not enough to estimate the shift of board and day.
MOST_REJECTED = 3  # A session with this many rejected blocks is not compared.
_MISSED = 0.02  # The share of cases slower by 2θ that the record may pass.
_OUTSIDE, _FEW = "outside its record", "are needed"  # How reasons end.
MOST_ASKED = 8  # The host times of a run, of unchanged device code, that a base is asked about.


@dataclass(frozen=True)
class Controls:
    """The deviation of one timer class's unchanged cases from their records in this run.

    Attributes:
        shift: the median of ln(now / record).
        scale: the spread around `shift`, relative to the noise of the records, at least 1.
    """

    cases: int = 0
    shift: float = 0.0
    scale: float = 1.0


NO_CONTROLS: Mapping[str, Controls] = {}


def learn_controls(results: Sequence[CaseResult], lane: Lane) -> dict[str, Controls]:
    """Timer class -> the deviation of its unchanged cases that were timed on the board of their records."""
    deviations: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for result in results:
        for name, deviation, error in _deviations(result, lane):
            deviations[name].append((deviation, error))
    controls = {}
    for name, cases in deviations.items():
        shift = median(deviation for deviation, _ in cases)
        scale = 1.4826 * median(abs(deviation - shift) / error for deviation, error in cases)
        controls[name] = Controls(len(cases), shift, max(1.0, scale))
    return controls


def _deviations(result: CaseResult, lane: Lane) -> Iterator[tuple[str, float, float]]:
    """(timer class, ln(now / record), its standard error) for every unchanged time."""
    suite, key = result.id
    for metric in covering(result, lane):
        reading = result.reading(metric)
        entry = lane.timed[ReadingId(suite, key, metric)]
        if (
            reading is None
            or not _comparable(reading, entry)
            or not same_board(lane.baselines[suite].provenance_of(key), result)
        ):
            continue
        history, name = history_of(entry.sessions), timer_class(entry.timer)
        noise = moderate(history, lane.prior(name))
        yield name, math.log(_value(reading)) - history.centre, noise.against_record


def within_record(reading: Reading, entry: TimedEntry, prior: Prior, controls: Controls, *, on_its_board: bool) -> str:
    """Why the record cannot pass the time, so that a process pair has to decide; empty if it passes.

    The record passes a time if it excludes a change of 2θ in either direction at 2 %, with the machine's shift added.
    """
    if not _comparable(reading, entry):
        few = f"{counted(len(entry.sessions), 'session')} stored, {MIN_SESSIONS} {_FEW}"
        return few if len(entry.sessions) < MIN_SESSIONS else "its reading was disturbed"
    history = history_of(entry.sessions)
    theta = least_effect(reading.promise, reading.floor, math.exp(history.centre))
    effect = math.log(_value(reading)) - history.centre
    noise = moderate(history, prior)
    error = noise.against_record
    if theta < COARSE:
        if not on_its_board:
            return "measured on a different or unknown board"
        if controls.cases < LEAST_CONTROLS:
            return f"{controls.cases} unchanged cases timed beside it, {LEAST_CONTROLS} {_FEW}"
        if abs(controls.shift) > theta / 2:
            return "the machine is not as it was when it was recorded"
        effect, error = abs(effect) + abs(controls.shift), error * controls.scale
    return "" if abs(effect) + noise.quantile(_MISSED) * error < 2 * theta else _OUTSIDE


def slowest_asked(
    results: Sequence[CaseResult], verdicts: Mapping[CaseId, Sequence[Verdict]], lane: Lane
) -> dict[CaseId, list[Verdict]]:
    """The verdicts, of which MOST_ASKED host times of cases whose device code is as recorded stay in question: the
    slowest beside their records. Another host moves them in all cases, and a new record passes none, so all would be
    paired. What a change of the code slows down besides moves more than the others: if those that moved most are the
    host's doing, all are.
    """
    moved = [
        (-(verdict.ratio or 1.0), result.id, verdict.metric)
        for result in results
        if (own := covering(result, lane)) and (asked := [v for v in verdicts[result.id] if v.word is Word.SUSPECT])
        if all(each.metric not in own and each.reason.endswith((_OUTSIDE, _FEW)) for each in asked)
        if all((time := result.reading(each.metric)) and time.promise >= COARSE for each in asked)
        for verdict in asked
    ]
    others = {(case, metric) for _, case, metric in sorted(moved)[MOST_ASKED:]}
    why = f"not asked: {MOST_ASKED} host times of unchanged device code moved more beside their records"
    return {
        case: [replace(each, word=Word.PASS, reason=why) if (case, each.metric) in others else each for each in given]
        for case, given in verdicts.items()
    }


def _comparable(reading: Reading, entry: TimedEntry) -> bool:
    read = reading.timer == entry.timer and reading.rejected_blocks < MOST_REJECTED and 0 < _value(reading) < math.inf
    return read and len(entry.sessions) >= MIN_SESSIONS


def _value(reading: Reading) -> float:
    return float(reading.value) if isinstance(reading.value, int | float) else 0.0


# -- which unchanged cases are timed -----------------------------------------------------------------------------------

CONTROLS = 20  # For each timer class; the simulation in docs/judging.md assumes this number.


class ControlDraw:
    """Draws controls while the cases run, before it is known which cases are unchanged.

    This is selection sampling (Knuth, TAOCP 2, 3.4.2, algorithm S): each of the n remaining cases of a class is drawn
    with probability (controls wanted) / n. A changed case is replaced by later ones, so that every draw is equally
    likely in any order of the tests.
    """

    def __init__(self, lane: Lane, selected: Sequence[Case], seed: str) -> None:
        """Expect the cases in the lane's records.

        Args:
            selected: the forward cases of the selected tests, so that no others are expected; empty if unknown.
            seed: makes the draw repeatable.
        """
        self._random = random.Random(seed)
        self._lane = lane
        names = {(case.suite, case.name) for case in selected}
        self._expected: dict[str, set[CaseId]] = defaultdict(set)
        for (suite, key, _), entry in lane.timed.items():
            if not names or any((suite, test) in names for test in tests_of(key.rpartition("/")[0])):
                self._expected[timer_class(entry.timer)].add((suite, key))
        self._wanted = dict.fromkeys(self._expected, CONTROLS)

    def draw(self, result: CaseResult, unchanged: Collection[str]) -> bool:
        """Whether the case is timed although its times in `unchanged` need no reading.

        The caller has to call this once for each case, including cases with nothing unchanged.
        """
        suite, key = result.id
        known = [self._lane.timed.get(ReadingId(suite, key, metric)) for metric in unchanged]
        drawn = [self._draw(name) for name in sorted({timer_class(each.timer) for each in known if each is not None})]
        for expected in self._expected.values():
            expected.discard((suite, key))
        return any(drawn)

    def _draw(self, name: str) -> bool:
        wanted, expected = self._wanted.get(name, 0), len(self._expected[name])
        drawn = self._random.random() * max(1, expected) < wanted
        self._wanted[name] = wanted - drawn
        return drawn


def tests_of(name: str) -> list[str]:
    """The tests that may guard a case of this name, the most likely first: `test:label` -> `test:label`, `test`."""
    return [name, *(name[:at] for at in reversed(range(len(name))) if name[at] == ":")]


# -- kernels of observed tests -----------------------------------------------------------------------------------------

# A test runs once, so that the run itself reads no time. If the binary, the number of launches or the grids of a kernel
# differ from the record, its device time may differ from the base's, and process pairs decide (docs/observe.md).


def judge_kernel_times(result: CaseResult, lane: Lane) -> list[Verdict]:
    """SUSPECT for the time of each kernel in question, UNRESOLVED without a base; and one verdict that shows the times
    that are stored."""
    verdicts = []
    entry = lane.stored(*result.id).get(KERNEL_TIME)
    stored = entry if isinstance(entry, dict) else {}
    if stored and result.reading(KERNEL_TIME) is None:
        reason = "not gated: as it was recorded; a run reads no times of tests"
        verdicts.append(Verdict(Word.PASS, KERNEL_TIME, reason, stored, unit=Unit.MICROSECONDS))
    base = lane.base_of(*result.id)
    if base == NO_BASE or base.equal:
        return verdicts
    for kernel, moved in moved_kernels(result, lane).items():
        reason, before = f"to be paired: {moved} moved", stored.get(kernel)
        verdict = Verdict(Word.SUSPECT, kernel_time(kernel), reason, before, unit=Unit.MICROSECONDS)
        if base.commit is None:
            verdict = replace(verdict, word=Word.UNRESOLVED, reason=f"UNPAIRED: {base.problem}")
        verdicts.append(verdict)
    return verdicts


def moved_kernels(result: CaseResult, lane: Lane) -> dict[str, str]:
    """Kernel -> the first exact metric by which its launches or its binary differ from the record. Kernels that are as
    recorded or no longer launched are left out, as are readings that differed between processes when recorded."""
    moved: dict[str, str] = {}
    for reading in result.readings:
        record = lane.record(result, reading)
        before = record.implied
        if KERNEL_TIME not in reading.covers or record.case is None or before in (None, UNSTABLE):
            continue
        if record.case.inputs not in ("", result.inputs):
            continue  # The test was edited.
        then = before if isinstance(before, dict) else {}
        for part, value in reading.value.items() if isinstance(reading.value, dict) else ():
            if not _is_equal_part(reading.metric, then.get(part), value):
                moved.setdefault(part.partition("/")[0], reading.metric)  # `rows/2` is the second specialisation.
    return moved


def _is_equal_part(metric: str, before: object, now: object) -> bool:
    return same_code(str(before), str(now)) if metric == CODE else before == now


def reading_of(result: CaseResult, metric: str) -> Reading | None:
    """The reading that a verdict judges. For a kernel of an observed test, which has none, it only holds the limits."""
    if timed_kernel(metric):
        limits = KERNEL_TIME_LIMITS
        return Reading(metric, Unit.MICROSECONDS, {}, promise=limits.promise, floor=limits.floor)
    return result.reading(metric)
