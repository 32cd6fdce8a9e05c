"""Plans the changes that an update could make from judged results. Nothing here writes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from perfguard.judge.case_verdicts import not_read
from perfguard.judge.exact import word_by
from perfguard.judge.lane import Lane, folder_of, is_own, unstable_id
from perfguard.judge.record import NOTHING, Growth, anchor_of, grow
from perfguard.judge.statistics import without_wild
from perfguard.model.config import Category
from perfguard.model.limits import KERNEL_TIME
from perfguard.model.records import (
    BY_TOOLCHAIN,
    OTHER_CONDITIONS,
    CaseId,
    CaseResult,
    Entry,
    Provenance,
    Reading,
    TimedEntry,
    Value,
    Verdict,
    Word,
)
from perfguard.model.records.baseline import EVERY_CPU, MIN_SESSIONS, MOST_SESSIONS, UNSTABLE, as_stored
from perfguard.model.records.change import Change, category_of, show_apart
from perfguard.model.records.code import CODE
from perfguard.model.units import format_change, format_percent, format_time, significant

#: Verdict on the time of a kernel in an observed test -> the category of its change.
_SPEEDS: dict[Word, Category] = {Word.CHANGED: "slower", Word.BETTER: "faster"}
_WIDEST_SESSIONS = 1.5  # Above this ratio of slowest to fastest session, without wild ones, no GPU time is recorded.
_HOST_PROMISE = 0.5  # Times of the host have at least this promise.


def plan(
    lane: Lane,
    results: Sequence[CaseResult],
    fresh: Mapping[CaseId, Sequence[CaseResult]],
    stale: Sequence[Verdict],
    provenance: Provenance,
    paired: Mapping[str, Sequence[float]] | None = None,
    unedited: Collection[CaseId] = (),
) -> list[Change]:
    """The changes that an update could write, in the order of the files.

    A case that is WRONG or BROKEN, here or in a fresh process, is left out. Portable readings go to the target's folder
    if the hardware has one, all others to the slug's. Changes of exact metrics follow from their verdicts. Changes of
    times follow from the stored sessions and the run's own reading, whatever the comparison with the base.

    Args:
        lane: the hardware with its records.
        results: the run's judged results.
        fresh: (suite, case key) -> its results in fresh processes, oldest first. Exact metrics that differ in them are
            not recorded.
        stale: verdicts that name a recorded case that is gone (`suite` and `case`).
        provenance: the provenance of the new entries.
        paired: for an accepted report, metric -> the stored times, multiplied by the ratio of process pairs; its other
            times join no record. None for a recording.
        unedited: cases whose record is of the measured tree, apart from documents.
    """
    changes: list[Change] = []
    for result in results:
        others = fresh.get(result.id, ())
        if not any(_is_wrong(each) for each in (result, *others)):
            alike = [other for other in others if other.inputs == result.inputs]
            planned = _Planner(lane, result, alike, provenance, paired, result.id in unedited).changes()
            changes += [replace(each, refused=unstable_id(each.key) or each.refused) for each in planned]
            changes += _metrics_gone(lane, result)
    changes += [
        Change(category="stale", folder=file.hardware, suite=verdict.suite, key=verdict.case, note=verdict.reason)
        for verdict in stale
        for file in lane.files_of(verdict.suite, verdict.case)
        if file.hardware == EVERY_CPU or is_own(lane.hardware.slug, file.hardware)
    ]
    return sorted(changes, key=lambda change: (change.folder, change.suite, change.key, change.metric))


def _metrics_gone(lane: Lane, result: CaseResult) -> list[Change]:
    """The removals of a case's recorded metrics that the run did not read."""
    suite, key = result.id
    gone = {
        verdict.metric
        for verdict in result.verdicts
        if verdict.word is Word.UNRESOLVED and verdict.reason == not_read(verdict.metric)
    }
    return [
        Change(category="stale", folder=file.hardware, suite=suite, key=key, metric=metric, before=entry)
        for file in lane.files_of(suite, key)
        if lane.judges_by(file)
        for metric, entry in file.cases[key].entries.items()
        if metric in gone
    ]


def _category(result: CaseResult, reading: Reading, entry: Entry | None) -> Category | None:
    """The category of an exact metric's change, by its verdict or by that on the whole case.

    Args:
        entry: the record. If the base judged instead, the record is missing or of another toolchain.
    """
    verdict = verdict_on(result, reading) if not reading.timed else None
    if verdict is None:
        return None
    if verdict.word in (Word.PASS, Word.UNCHANGED) and verdict.storable and verdict.metric:
        if entry is None and verdict.before is not None:
            return None if is_implied(result, reading) else "new"
        if verdict.before not in (None, entry) or BY_TOOLCHAIN in verdict.reason:
            return "changed"
    category = category_of(verdict, reading)
    return None if category == "stale" else category


def is_implied(result: CaseResult, reading: Reading) -> bool:
    """Whether a record without the metric implies the reading's value."""
    if result.case.direction == "test" and reading.value == NOTHING.get(type(reading.value)):
        return True
    values = reading.value.values() if isinstance(reading.value, dict) else [reading.value]
    if reading.is_empty:
        return True
    return reading.unrecorded is not None and all(value == reading.unrecorded for value in values)


def _is_wrong(result: CaseResult) -> bool:
    words = {verdict.word for verdict in result.verdicts}
    return bool(words & {Word.WRONG, Word.BROKEN}) or any(accuracy.problem for accuracy in result.accuracy)


@dataclass(frozen=True)
class _Planner:
    """The changes of one case."""

    lane: Lane
    result: CaseResult
    fresh: Sequence[CaseResult]
    provenance: Provenance
    paired: Mapping[str, Sequence[float]] | None
    same_tree: bool

    def changes(self) -> list[Change]:
        readings = [
            each
            for each in self.result.readings
            if each.is_recorded
            if self.before(each) is not None or not is_implied(self.result, each) or self.is_unstable(each)
        ]
        moved = {each.metric: change for each in readings if not each.timed and (change := self.fact(each))}
        is_other = any(change.before is not None for change in moved.values())
        moved |= {each.metric: change for each in readings if each.timed and (change := self.time(each, is_other))}
        # Ungated metrics of the code are written with the others, so that they do not describe older code.
        leaders = {change.folder: change for change in moved.values() if not change.adds_session}
        for reading in readings:
            leader = leaders.get(folder_of(self.lane.hardware, reading, self.result.ranks))
            along = not reading.gated or self.before(reading) is None
            if along and not reading.timed and reading.metric not in moved and leader is not None:
                category, before = leader.category, self.before(reading)
                if reading.metric == KERNEL_TIME and before is not None:
                    category = _SPEEDS.get(_word(reading, before, reading.value), category)
                change = self.exact(reading, category)
                if change.before != change.after and not change.refused:
                    asks = leader.needs_reason or category == "slower"
                    moved[reading.metric] = replace(change, needs_reason=asks)
        for reading in self.result.readings:
            if reading.covers and reading.metric in moved:
                _bind(reading, moved)
        return [*self._brought_along(moved), *moved.values()]

    def _brought_along(self, changes: dict[str, Change]) -> list[Change]:
        """The remaining entries of a record that was found under another key, to be written under the case's own;
        `changes` then replace the entries of that key."""
        brought = []
        for reading in self.result.readings:
            record = self.lane.record(self.result, reading)
            own = None if record.baseline is None else record.baseline.cases.get(self.result.case.key)
            if record.key == self.result.case.key or record.entry is None:
                continue
            before = None if own is None else own.entries.get(reading.metric)
            if reading.metric in changes:
                changes[reading.metric] = replace(changes[reading.metric], before=before)
            elif before != record.entry:
                moved_here = replace(self.entry(reading, "new", record.entry), before=before)
                brought.append(replace(moved_here, note=f"was recorded as {record.key}"))
        return brought

    def fact(self, reading: Reading) -> Change | None:
        """The change of an exact metric that follows from its verdict."""
        category = _category(self.result, reading, self.before(reading))
        if category is None:
            return None
        change = self.exact(reading, category, verdict_on(self.result, reading))
        return change if change.before != change.after or change.together else None

    def entry(self, reading: Reading, category: Category, after: Entry) -> Change:
        """The change of the reading's entry to `after`."""
        return Change(
            category=category,
            folder=folder_of(self.lane.hardware, reading, self.result.ranks),
            suite=self.result.case.suite,
            key=self.result.case.key,
            metric=reading.metric,
            before=self.before(reading),
            after=after,
            unit=reading.unit,
            inputs=self.result.inputs,
        )

    def exact(self, reading: Reading, category: Category, verdict: Verdict | None = None) -> Change:
        """The change of an exact metric. `verdict`: the verdict that causes it, if any."""
        again = self.read_again(reading)
        value = UNSTABLE if self.is_unstable(reading) else reading.value
        change = self.entry(reading, category, as_stored(value))
        before, word = change.before, verdict.word if verdict else None
        drifted = word in (Word.METHOD_CHANGED, Word.DRIFT)
        worse = drifted and is_worse(reading, before, as_stored(reading.value))
        return replace(
            change,
            needs_reason=worse or word in (Word.SLOWER, Word.CHANGED) or self.accepts_worse_code(reading),
            refused="" if value == UNSTABLE else _no_fact(reading, again),
            together=word in OTHER_CONDITIONS and before is not None,  # Older values of the case do not fit it.
        )

    def accepts_worse_code(self, reading: Reading) -> bool:
        """Whether the reading is the kernels' code, whose record accepts worse compiled code for a target than the
        base's."""
        if reading.metric != CODE:
            return False
        worse = {verdict.metric for verdict in self.result.verdicts if verdict.word is Word.CHANGED}
        return any(each.target and each.metric in worse for each in self.result.readings)

    def time(self, reading: Reading, is_other: bool) -> Change | None:
        """The change of a time. In a recording, the reading joins the stored sessions or replaces them.

        `is_other`: whether an exact metric shows that the case is no longer the recorded one.
        """
        record = dataclasses.replace(self.lane.record(self.result, reading), same_tree=self.same_tree)
        scaled = None if self.paired is None else self.paired.get(reading.metric)
        given: Sequence[object] = scaled or [reading.value]
        values = [float(value) for value in given if isinstance(value, int | float) and 0 < value < 1e12]
        joins, category = False, None
        if values:
            joins = self.paired is None and not is_other and record.takes(values[0])
            category = "new" if joins else record.category(values, paired=scaled is not None)
        elif record.entry is None:
            category = "new"
        if category is None or (self.paired is not None and scaled is None and not record.is_outdated):
            return None
        timer = reading.timer or ""
        change = self.entry(reading, category, TimedEntry(sessions=[], timer=timer))
        change = replace(change, together=record.under_other_conditions)
        if not values:
            return replace(change, refused="read no time; measure again")
        entry = record.comparable
        if joins and entry is not None:
            values = [*entry.sessions, *values][-MOST_SESSIONS:]
        after = TimedEntry(sessions=[significant(value) for value in values], timer=timer)
        note, refused = self.remark(reading, values)
        change = replace(change, after=as_stored(after), note=note, refused=refused)
        if entry is None:
            return change
        then, now = record.provenance, self.provenance
        if joins and then.board != now.board:
            change = replace(change, provenance=replace(now, board=None))  # The sessions are of several boards.
        if joins and len(entry.sessions) < MIN_SESSIONS:
            return replace(change, after=as_stored(replace(after, anchor=entry.anchor)))
        if joins and record.same_code:  # Unchanged code does not grow.
            return replace(change, after=as_stored(replace(after, anchor=anchor_of(entry))))
        growth = grow(entry, after, reading, one_board=then.board is not None and then.board == now.board)
        return self.grown(change, growth, entry, then)

    def grown(self, change: Change, growth: Growth, entry: TimedEntry, then: Provenance) -> Change:
        """The change of a time that has an anchor. `entry`, `then`: the stored time and its provenance."""
        change = replace(change, after=as_stored(growth.entry), needs_reason=growth.needs_reason)
        if not growth.needs_reason and not growth.is_open:
            return change
        since = " at ".join(filter(None, (then.recorded, then.commit)))
        last = f", last recorded {since}" if since else ""
        over = f"{format_change(math.exp(growth.over))} over its anchor of {format_time(anchor_of(entry))}{last}"
        if growth.needs_reason:  # Sessions that joined count as well.
            return replace(change, grown=over, category="slower" if change.category == "new" else change.category)
        more = f"{over}, in one recording on another board: the next one that reads so needs a reason"
        return replace(change, grown=over, note="; ".join(filter(None, (change.note, more))))

    def before(self, reading: Reading) -> Entry | None:
        return self.lane.record(self.result, reading).entry

    def read_again(self, reading: Reading) -> list[Value]:
        """The values that fresh processes read by the same method, oldest first."""
        alike = [other.reading(reading.metric) for other in self.fresh]
        return [read.value for read in alike if read is not None and read.timer == reading.timer]

    def is_unstable(self, reading: Reading) -> bool:
        """Whether the reading of an observed test differs in a fresh process. For example, an earlier test of this
        process did the work that the test does alone."""
        observed = self.result.case.direction == "test" and (reading.gated or bool(reading.covers))
        return observed and any(_differs(reading, reading.value, other) for other in self.read_again(reading))

    def remark(self, reading: Reading, values: Sequence[float]) -> tuple[str, str]:
        """A note on the sessions of a time, and the reason why they may not be stored; both empty if they agree.

        `reading`: the reading of the time. `values`: the values of the sessions.
        """
        alike = without_wild(values)  # A wild session is stored, but the judge does not count it.
        if max(alike) <= _WIDEST_SESSIONS * min(alike):
            return "", ""
        unstable = (
            f"unstable: sessions from {format_time(min(alike))} to {format_time(max(alike))} lie more than "
            f"{format_percent(_WIDEST_SESSIONS - 1, 0)} apart; free the machine and record again"
        )
        # A CPU, including a GPU's host, is shared with other processes. The judge takes its stored noise into account:
        # a wide record passes few times, and process pairs decide the others.
        refused = self.lane.hardware.target is None and reading.promise < _HOST_PROMISE
        return ("", unstable) if refused else (unstable, "")


def verdict_on(result: CaseResult, reading: Reading) -> Verdict | None:
    """The reading's own verdict, otherwise the one on the whole case."""
    own = next((verdict for verdict in result.verdicts if verdict.metric == reading.metric), None)
    return own or next((verdict for verdict in result.verdicts if not verdict.metric), None)


def _bind(covering: Reading, moved: dict[str, Change]) -> None:
    """Bind the change of the code to those of its times, since the old times were read from other code."""
    times = [metric for metric in covering.covers if metric in moved]
    if not times:
        return
    group = (covering.metric, *times)
    for metric in group:
        moved[metric] = replace(moved[metric], only_with=tuple(other for other in group if other != metric))
    categories = {moved[metric].category for metric in times}
    lead = next((category for category in ("slower", "faster") if category in categories), None)
    if lead is not None and moved[covering.metric].category == "changed":
        moved[covering.metric] = replace(moved[covering.metric], category=lead)


def _no_fact(reading: Reading, again: Sequence[Entry]) -> str:
    """The reason why an exact reading may not be recorded; empty if it may."""
    if isinstance(reading.value, float) and not math.isfinite(reading.value):
        return f"read {reading.value}, which is no number; measure again"
    other = next((value for value in again if reading.gated and _differs(reading, reading.value, value)), None)
    if other is None:
        return ""
    here, there = show_apart(reading.value, other, reading.unit)
    return f"{here} here, {there} in a fresh process: no fact to remember; make the call deterministic and record again"


def _differs(reading: Reading, before: Entry, after: Entry) -> bool:
    """Whether an exact reading that changed so is judged as changed, gated or not."""
    return _word(reading, before, after) is not Word.PASS


def is_worse(reading: Reading, before: Entry | None, after: Entry) -> bool:
    """Whether an exact reading got worse by more than its tolerance and its floor. Without a direction, any change is
    worse."""
    return before is not None and _word(reading, before, after) is Word.CHANGED


def _word(reading: Reading, before: Entry, after: Entry) -> Word:
    if isinstance(before, TimedEntry) or isinstance(after, TimedEntry):  # The metric became or ceased to be a time.
        return Word.PASS if before == after else Word.CHANGED
    return word_by(replace(reading, value=after), before)
