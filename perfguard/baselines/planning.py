"""From judged results to the changes that an update could make. Nothing here writes."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from msgspec.structs import replace

from perfguard.baselines.changes import Change, category_of, level, relevant, show
from perfguard.baselines.store import Store
from perfguard.baselines.writing import as_stored
from perfguard.config import Category
from perfguard.records import (
    Baseline,
    Better,
    CaseBaseline,
    CaseResult,
    Entry,
    Hardware,
    Provenance,
    Reading,
    TimedEntry,
    Toolchain,
    Verdict,
    Word,
)
from perfguard.units import format_percent, format_time, significant

MOST_SESSIONS = 20  # stored of one timed metric: the last ones
NEAR, FAR, AGREEING = 0.03, 0.10, 4  # a session FAR off goes if AGREEING ones lie NEAR the median
UNSTABLE = 1.5  # slowest over fastest session from which a time is not recorded

# Values recorded under these words may not stand beside older ones of the same case.
_OTHER_CONDITIONS = (Word.METHOD_CHANGED, Word.DRIFT, Word.OTHER_HARDWARE)


def plan(
    store: Store,
    hardware: Hardware,
    results: Sequence[CaseResult],
    fresh: Mapping[tuple[str, str], Sequence[CaseResult]],
    stale: Sequence[Verdict],
    provenance: Provenance,
    sessions: int,
) -> list[Change]:
    """What an update could write, in the order of the files.

    A case that is WRONG or BROKEN, here or in a fresh process, is left out. Portable readings go to the target's
    folder if the hardware has one, all others to the slug's.

    Args:
        results: the run's judged results.
        fresh: (suite, case key) -> its results in fresh processes, oldest first. Timed entries are written from
            these, or from the one value of this run where there are none.
        stale: verdicts that name a remembered case which is gone (`suite` and `case`).
        provenance: of what would be written.
        sessions: fresh processes that a recorded time should rest on.

    Raises:
        BaselineError: a file that cannot be read.
    """
    changes: list[Change] = []
    for result in results:
        others = fresh.get((result.case.suite, result.case.key), ())
        if not any(_is_wrong(each) for each in (result, *others)):
            alike = [other for other in others if other.inputs == result.inputs]
            changes += _Planner(store, hardware, result, alike, provenance, sessions).changes()
    changes += [change for verdict in stale for change in _removals(store, hardware, verdict)]
    return sorted(changes, key=lambda change: (change.folder, change.suite, change.key, change.metric))


def _is_wrong(result: CaseResult) -> bool:
    words = {verdict.word for verdict in result.verdicts}
    return bool(words & {Word.WRONG, Word.BROKEN}) or any(accuracy.problem for accuracy in result.accuracy)


def _removals(store: Store, hardware: Hardware, verdict: Verdict) -> list[Change]:
    folders = list(dict.fromkeys([hardware.slug, *store.targets()]))
    baselines = [(folder, store.load(folder, verdict.suite)) for folder in folders]
    return [
        Change(category="stale", folder=folder, suite=verdict.suite, key=verdict.case, note=verdict.reason)
        for folder, baseline in baselines
        if baseline is not None and verdict.case in baseline.cases
    ]


@dataclass(frozen=True)
class _Planner:
    """The changes of one case."""

    store: Store
    hardware: Hardware
    result: CaseResult
    fresh: Sequence[CaseResult]
    provenance: Provenance
    sessions: int

    def changes(self) -> list[Change]:
        moved = {reading.metric: change for reading in self.result.readings if (change := self.change(reading))}
        # What is not gated explains the rest (kernel names …): it goes along, or would explain something older.
        leaders = {change.folder: change for change in moved.values()}
        for reading in self.result.readings:
            leader = leaders.get(self.folder(reading))
            if not reading.gated and reading.metric not in moved and leader is not None:
                change = self.written(reading, leader.category, None)
                if change.before != change.after and not change.refused:
                    moved[reading.metric] = replace(change, needs_reason=leader.needs_reason)
        for reading in self.result.readings:
            if reading.covers and reading.metric in moved:
                self.add_covered(reading, moved)
        return list(moved.values())

    def add_covered(self, covering: Reading, moved: dict[str, Change]) -> None:
        """Remember anew the times that `covering` stands for: the old ones were read from other code."""
        change = moved[covering.metric]
        covered = [each for metric in covering.covers if (each := self.result.reading(metric)) is not None]
        for reading in covered:
            if reading.metric not in moved:
                again = self.written(reading, change.category, None)
                before, after = again.before, again.after
                is_worse = before is not None and after is not None and _is_worse(reading, before, after)
                moved[reading.metric] = replace(again, needs_reason=is_worse)
        moved[covering.metric] = replace(change, only_with=tuple(reading.metric for reading in covered))

    def change(self, reading: Reading) -> Change | None:
        """What the reading's verdict leads to."""
        verdict = self.verdict(reading)
        if verdict is None:
            return None
        category = category_of(verdict, reading)
        if verdict.word is Word.UNRESOLVED:
            category = "new" if self.is_short(reading) else None
        if category is None or category == "stale":
            return None
        change = self.written(reading, category, verdict.word)
        return change if change.before != change.after or change.together else None

    def verdict(self, reading: Reading) -> Verdict | None:
        """The reading's own, else the one on the whole case."""
        verdicts = self.result.verdicts
        own = next((verdict for verdict in verdicts if verdict.metric == reading.metric), None)
        return own or next((verdict for verdict in verdicts if not verdict.metric), None)

    def is_short(self, reading: Reading) -> bool:
        """Whether sessions are missing, and fresh ones are here to be added."""
        entry = self.before(reading)
        return isinstance(entry, TimedEntry) and len(entry.sessions) < self.sessions and bool(self.fresh)

    def written(self, reading: Reading, category: Category, word: Word | None) -> Change:
        before = self.before(reading)
        after, note, refused = self.after(reading, adding=word is Word.UNRESOLVED)
        is_worse = before is not None and _is_worse(reading, before, after)
        judged_here = word in (Word.METHOD_CHANGED, Word.DRIFT, Word.UNRESOLVED)  # by nobody so far
        return Change(
            category=category,
            folder=self.folder(reading),
            suite=self.result.case.suite,
            key=self.result.case.key,
            metric=reading.metric,
            before=before,
            after=after,
            unit=reading.unit,
            needs_reason=word in (Word.SLOWER, Word.CHANGED) or (judged_here and is_worse),
            note=note,
            refused=refused,
            together=word in _OTHER_CONDITIONS and before is not None,
            inputs=self.result.inputs,
        )

    # -- what is stored ------------------------------------------------------------------------------------------

    def folder(self, reading: Reading) -> str:
        if reading.target:
            return f"targets/{reading.target}"
        portable = reading.portable and self.hardware.target is not None
        return f"targets/{self.hardware.target}" if portable else self.hardware.slug

    def file(self, reading: Reading) -> Baseline | None:
        return self.store.load(self.folder(reading), self.result.case.suite)

    def stored(self, reading: Reading) -> CaseBaseline | None:
        baseline = self.file(reading)
        return baseline.cases.get(self.result.case.key) if baseline else None

    def before(self, reading: Reading) -> Entry | None:
        stored = self.stored(reading)
        return stored.entries.get(reading.metric) if stored else None

    # -- what would be stored: the entry, a note, and why it is refused -------------------------------------------

    def after(self, reading: Reading, adding: bool) -> tuple[Entry, str, str]:
        alike = [other.reading(reading.metric) for other in self.fresh]
        again = [read.value for read in alike if read is not None and read.timer == reading.timer]
        if reading.timer is None:
            return as_stored(reading.value), "", _no_fact(reading, again)
        values = [float(value) for value in again or [reading.value] if isinstance(value, int | float)]
        if any(not 0 < value < 1e12 for value in values) or not values:
            return TimedEntry(sessions=[], timer=reading.timer), "", "a session read no time; measure again"
        before = self.before(reading)
        if adding and isinstance(before, TimedEntry) and self.continues(reading, before, values):
            values = [*before.sessions, *values]
        return self.timed(reading.timer, values)

    def continues(self, reading: Reading, before: TimedEntry, values: list[float]) -> bool:
        """Whether new sessions may stand beside the stored: same method and versions, and no other time.

        The commit may differ: committing the file that holds the first sessions already makes another one.
        """
        baseline, stored = self.file(reading), self.stored(reading)
        if baseline is None or stored is None or before.timer != reading.timer:
            return False
        names = (*Toolchain.__struct_fields__, "power_limit_watts")
        then = baseline.provenance_of(self.result.case.key)
        now = relevant(self.folder(reading), self.provenance)
        same_code = all(
            self.before(other) == other.value for other in self.result.readings if reading.metric in other.covers
        )
        return (
            same_code
            and stored.inputs in ("", self.result.inputs)
            and all(getattr(then, name) == getattr(now, name) for name in names)
            and abs(median(values) / median(before.sessions) - 1) <= reading.promise
        )

    def timed(self, timer: str, values: list[float]) -> tuple[TimedEntry, str, str]:
        kept, wild = _without_wild(values)
        notes = [f"a wild session of {format_time(value)} left out" for value in wild]
        refused = ""
        if max(kept) > UNSTABLE * min(kept):
            unstable = (
                f"unstable: sessions from {format_time(min(kept))} to {format_time(max(kept))} lie more than "
                f"{format_percent(UNSTABLE - 1, 0)} apart; free the machine and record again"
            )
            # A CPU shares its cores with everybody: its noise is stored, and the judge says what it can tell.
            if self.hardware.target is None:
                refused = unstable
            else:
                notes.append(unstable)
        missing = self.sessions - len(kept)
        if missing > 0:
            nodeid = [self.result.case.nodeid] if self.result.case.nodeid else []
            command = shlex.join(["pytest", "--perfguard", "--perfguard-update=new", *nodeid])
            notes.append(f"{len(kept)} of {self.sessions} sessions; add the missing {missing} with: {command}")
        stored = [significant(value) for value in kept[-MOST_SESSIONS:]]
        return TimedEntry(sessions=stored, timer=timer), "; ".join(notes), refused


def _without_wild(sessions: list[float]) -> tuple[list[float], list[float]]:
    """Sessions to keep, and wild ones. Where few agree, nobody can say which one is wild: all stay."""
    middle = median(sessions)
    if sum(abs(value - middle) <= NEAR * middle for value in sessions) < AGREEING:
        return sessions, []
    wild = [value for value in sessions if abs(value - middle) > FAR * middle]
    return [value for value in sessions if value not in wild], wild


def _no_fact(reading: Reading, again: Sequence[Entry]) -> str:
    """Why an exact reading may not be recorded; empty where it may."""
    if isinstance(reading.value, float) and not math.isfinite(reading.value):
        return f"read {reading.value}, which is no number; measure again"
    other = next((value for value in again if reading.gated and _differs(reading, reading.value, value)), None)
    if other is None:
        return ""
    values = f"{show(reading.value, reading.unit)} here, {show(other, reading.unit)} in a fresh process"
    return f"{values}: no fact to remember; make the call deterministic and record again"


def _differs(reading: Reading, before: Entry, after: Entry) -> bool:
    """Beyond what the reading allows: its promise for a time, else its tolerance, and its floor."""
    old, new = level(before), level(after)
    if old is None or new is None:
        return before != after
    allowed = reading.promise if reading.timed else reading.tolerance
    return abs(new - old) > allowed * abs(old) and abs(new - old) > reading.floor


def _is_worse(reading: Reading, before: Entry, after: Entry) -> bool:
    if not _differs(reading, before, after):
        return False
    old, new = level(before), level(after)
    if old is None or new is None or reading.better is Better.SAME:
        return True
    return new < old if reading.better is Better.HIGHER else new > old
