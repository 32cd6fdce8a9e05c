"""An update as a list of change records: planned from judged results, shown, then some of them applied."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from statistics import median

from msgspec import Struct
from msgspec.structs import replace

from perfguard.baselines.store import Store
from perfguard.baselines.writing import stored_number
from perfguard.config import Category
from perfguard.records import (
    Better,
    Case,
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
from perfguard.units import Unit, format_change, format_percent, format_time, format_value, significant

MOST_SESSIONS = 20  # stored of one timed metric, the last ones
NEAR, FAR, AGREEING = 0.03, 0.10, 4  # a session FAR off goes if AGREEING others lie NEAR their median
UNSTABLE = 1.5  # slowest over fastest session from which a time is not recorded

_CATEGORIES: dict[Word, Category] = {
    Word.NEW: "new",
    Word.OTHER_HARDWARE: "new",
    Word.RENAMED: "new",
    Word.FASTER: "faster",
    Word.SLOWER: "slower",
    Word.CHANGED: "changed",
    Word.METHOD_CHANGED: "changed",
    Word.DRIFT: "changed",
    Word.STALE: "stale",
}
_FEW = "FEW"  # how the judge begins the reason of UNRESOLVED when sessions are missing (measuring.md 4.7)
# Under these words old and new values of a case may not stand side by side.
_OTHER_CONDITIONS = (Word.METHOD_CHANGED, Word.DRIFT, Word.OTHER_HARDWARE)


class Change(Struct, frozen=True, kw_only=True):
    """One entry that an update would write or remove.

    Attributes:
        folder: a slug, or `targets/<target>`.
        metric: empty for the whole case (removal).
        before, after: the stored and the new entry; None where there is none.
        needs_reason: it got slower, heavier or different.
        note: what a reader should know, such as missing sessions.
        refused: why it may not be written at all.
        together: recorded under other conditions than what is stored: all changes of the case, or none.
        inputs: the specification that the new entry was measured with.
    """

    category: Category
    folder: str
    suite: str
    key: str
    metric: str = ""
    before: Entry | None = None
    after: Entry | None = None
    unit: Unit = Unit.TEXT
    needs_reason: bool = False
    note: str = ""
    refused: str = ""
    together: bool = False
    inputs: str = ""

    @property
    def name(self) -> str:
        """The case, and the metric if it is about one."""
        return f"{self.key} {self.metric}".rstrip()

    def describe(self) -> str:
        """One line: category, where, what, before -> after."""
        before, after = _shown(self.before, self.unit), _shown(self.after, self.unit)
        if self.after is None:
            what = "removed"
        elif self.before is None:
            what = after
        else:
            what = f"{before} -> {after}"
            old, new = _level(self.before), _level(self.after)
            if old is not None and new is not None and old > 0 and new != old:
                what += f" ({format_change(new / old)})"
        note = f"; {self.note}" if self.note else ""
        return f"{self.category}: {self.folder} {self.suite} {self.name}: {what}{note}"


def category_of(verdict: Verdict) -> Category | None:
    """The category of the change that the verdict leads to; None where an update leaves the entry alone."""
    if verdict.word is Word.UNRESOLVED and verdict.reason.startswith(_FEW):
        return "new"
    return _CATEGORIES.get(verdict.word)


def plan(
    store: Store,
    hardware: Hardware,
    results: Sequence[CaseResult],
    fresh: Mapping[tuple[str, str], Sequence[CaseResult]],
    stale: Sequence[Verdict],
    provenance: Provenance,
    sessions: int,
) -> list[Change]:
    """What an update could write; nothing is written.

    A case that is WRONG or BROKEN, here or in a fresh process, is left out. Portable readings go to the target's
    folder if the hardware has one, all others to the slug's.

    Args:
        results: the run's judged results.
        fresh: (suite, case key) -> its results in fresh processes, oldest first; timed entries are written from
            these, or from the one value of this run where there are none.
        stale: verdicts that name a remembered case which is gone (`suite` and `case`).
        provenance: of what would be written.
        sessions: fresh processes that a recorded time should rest on.

    Raises:
        BaselineError: a file that cannot be read.
    """
    changes: list[Change] = []
    for result in results:
        others = [other for other in fresh.get((result.case.suite, result.case.key), ())]
        if not any(_is_wrong(each) for each in (result, *others)):
            alike = [other for other in others if other.inputs == result.inputs]
            changes += _Planner(store, hardware, result, alike, provenance, sessions).changes()
    changes += [change for verdict in stale for change in _removals(store, hardware, verdict)]
    return sorted(changes, key=lambda change: (change.folder, change.suite, change.key, change.metric))


def select(
    changes: Sequence[Change], categories: Collection[Category], reason: str
) -> tuple[list[Change], list[tuple[Change, str]]]:
    """Part the changes into those to apply and those left, each with why it is left."""
    why = {id(change): _why_left(change, categories, reason) for change in changes}
    groups: dict[tuple[str, str, str], list[Change]] = {}
    for change in changes:
        groups.setdefault((change.folder, change.suite, change.key), []).append(change)
    for group in groups.values():
        held = [change for change in group if why[id(change)]]
        if held and any(change.together for change in group):
            for change in group:
                why[id(change)] = why[id(change)] or (
                    f"recorded under other conditions than the rest of the case: goes only with {held[0].metric}, "
                    f"which is left: {why[id(held[0])]}"
                )
    chosen = [change for change in changes if not why[id(change)]]
    return chosen, [(change, why[id(change)]) for change in changes if why[id(change)]]


def _why_left(change: Change, categories: Collection[Category], reason: str) -> str:
    if change.refused:
        return change.refused
    if change.category not in categories:
        return f"not asked for; add it with --perfguard-update={change.category}"
    if change.needs_reason and not reason.strip():
        return "slower, heavier or different; say why with --perfguard-reason"
    return ""


def relevant(folder: str, provenance: Provenance) -> Provenance:
    """What a folder's facts depend on: those of a target hold whatever the driver, toolkit and power limit."""
    if folder.startswith("targets/"):
        return replace(provenance, driver=None, toolkit=None, power_limit_watts=None)
    return provenance


class _Planner:
    """The changes of one case."""

    def __init__(
        self,
        store: Store,
        hardware: Hardware,
        result: CaseResult,
        fresh: Sequence[CaseResult],
        provenance: Provenance,
        sessions: int,
    ) -> None:
        self.store, self.hardware, self.result, self.fresh = store, hardware, result, fresh
        self.provenance, self.sessions = provenance, sessions
        self.case: Case = result.case

    def changes(self) -> list[Change]:
        moved: dict[str, Change] = {}
        for reading in self.result.readings:
            change = self.change(reading)
            if change is not None:
                moved[reading.metric] = change
        # What is not gated explains the rest (kernel names …): it goes along, or it would explain the wrong thing.
        company = {change.folder: change.category for change in moved.values()}
        for reading in self.result.readings:
            folder = self.folder(reading)
            if not reading.gated and reading.metric not in moved and folder in company:
                change = self.written(reading, company[folder], None)
                if change.before != change.after:
                    moved[reading.metric] = change
        return list(moved.values())

    def change(self, reading: Reading) -> Change | None:
        verdict = self.verdict(reading)
        stored = self.stored(reading)
        before = stored.entries.get(reading.metric) if stored else None
        few = (
            verdict is not None
            and verdict.word is Word.UNRESOLVED
            and isinstance(before, TimedEntry)
            and len(before.sessions) < self.sessions
        )
        category = "new" if few else _CATEGORIES.get(verdict.word) if verdict is not None else None
        if category is None or category == "stale":
            return None
        change = self.written(reading, category, verdict.word if verdict else None)
        return None if change.before == change.after and not change.together else change

    def written(self, reading: Reading, category: Category, word: Word | None) -> Change:
        stored = self.stored(reading)
        before = stored.entries.get(reading.metric) if stored else None
        after, note, refused = self.entry(reading, before if word is Word.UNRESOLVED else None)
        worse = before is not None and _is_worse(reading, before, after)
        return Change(
            category=category,
            folder=self.folder(reading),
            suite=self.case.suite,
            key=self.case.key,
            metric=reading.metric,
            before=before,
            after=after,
            unit=reading.unit,
            needs_reason=word in (Word.SLOWER, Word.CHANGED)
            or (worse and word in (Word.METHOD_CHANGED, Word.DRIFT, Word.UNRESOLVED)),
            note=note,
            refused=refused,
            together=word in _OTHER_CONDITIONS and before is not None,
            inputs=self.result.inputs,
        )

    def folder(self, reading: Reading) -> str:
        portable = reading.portable and self.hardware.target is not None
        return f"targets/{self.hardware.target}" if portable else self.hardware.slug

    def stored(self, reading: Reading) -> CaseBaseline | None:
        baseline = self.store.load(self.folder(reading), self.case.suite)
        return baseline.cases.get(self.case.key) if baseline else None

    def verdict(self, reading: Reading) -> Verdict | None:
        """The reading's own, else the one on the whole case."""
        verdicts = self.result.verdicts
        own = next((verdict for verdict in verdicts if verdict.metric == reading.metric), None)
        return own or next((verdict for verdict in verdicts if not verdict.metric), None)

    def entry(self, reading: Reading, before: Entry | None) -> tuple[Entry, str, str]:
        """The new entry, a note, and why it is refused; `before` is what sessions are added to."""
        read = [other.reading(reading.metric) for other in self.fresh]
        again = [each.value for each in read if each is not None and each.timer == reading.timer]
        if reading.timer is None:
            differing = [value for value in again if _differs(reading, reading.value, value)]
            refused = ""
            if differing and reading.gated:
                shown = f"{_shown(reading.value, reading.unit)} here, {_shown(differing[0], reading.unit)}"
                refused = f"{shown} in a fresh process: no fact to record; make the call deterministic"
            return _exact(reading), "", refused
        values = [float(value) for value in again if isinstance(value, int | float)]
        if not values and isinstance(reading.value, int | float):
            values = [float(reading.value)]
        return self.timed(reading, reading.timer, values, before)

    def timed(
        self, reading: Reading, timer: str, values: list[float], before: Entry | None
    ) -> tuple[TimedEntry, str, str]:
        added = isinstance(before, TimedEntry) and self.continues(reading, before, timer, values)
        old = before.sessions if isinstance(before, TimedEntry) and added else []
        kept, wild = _without_wild([*old, *map(significant, values)])
        entry = TimedEntry(sessions=kept[-MOST_SESSIONS:], timer=timer)
        refused = ""
        if not all(0 < value < 1e12 for value in kept) or not kept:
            refused = "a session read no time above 0; measure again"
        elif max(kept) > UNSTABLE * min(kept):
            refused = (
                f"unstable: sessions from {format_time(min(kept))} to {format_time(max(kept))} are more than "
                f"{format_percent(UNSTABLE - 1, 0)} apart; free the machine and record again"
            )
        notes = [f"{format_time(value)} in one session left out as wild" for value in wild]
        missing = self.sessions - len(kept)
        if missing > 0:
            command = shlex.join(filter(None, ["pytest", "--perfguard", "--perfguard-update=new", self.case.nodeid]))
            notes.append(f"{len(kept)} of {self.sessions} sessions, {missing} missing: add them with: {command}")
        return entry, "; ".join(notes), refused

    def continues(self, reading: Reading, before: TimedEntry, timer: str, values: list[float]) -> bool:
        """Whether new sessions may stand beside the stored: same method and versions, and no other time.

        The commit may differ: committing the file that holds the first sessions already makes another one.
        """
        folder = self.folder(reading)
        baseline = self.store.load(folder, self.case.suite)
        stored = self.stored(reading)
        if baseline is None or stored is None or not values or before.timer != timer:
            return False
        names = (*Toolchain.__struct_fields__, "power_limit_watts")
        then, now = baseline.provenance_of(self.case.key), relevant(folder, self.provenance)
        return (
            stored.inputs in ("", self.result.inputs)
            and all(getattr(then, name) == getattr(now, name) for name in names)
            and abs(median(values) / median(before.sessions) - 1) <= reading.promise
        )


def _is_wrong(result: CaseResult) -> bool:
    words = {verdict.word for verdict in result.verdicts}
    return bool(words & {Word.WRONG, Word.BROKEN}) or any(accuracy.problem for accuracy in result.accuracy)


def _removals(store: Store, hardware: Hardware, verdict: Verdict) -> list[Change]:
    folders = [hardware.slug, *([f"targets/{hardware.target}"] if hardware.target else [])]
    baselines = [(folder, store.load(folder, verdict.suite)) for folder in folders]
    return [
        Change(category="stale", folder=folder, suite=verdict.suite, key=verdict.case, note=verdict.reason)
        for folder, baseline in baselines
        if baseline is not None and verdict.case in baseline.cases
    ]


def _without_wild(sessions: list[float]) -> tuple[list[float], list[float]]:
    """Sessions to keep, and wild ones. With few that agree, nobody can say which one is wild: all stay."""
    middle = median(sessions) if sessions else 0.0
    near = [value for value in sessions if abs(value - middle) <= NEAR * middle]
    if len(near) < AGREEING:
        return sessions, []
    wild = [value for value in sessions if abs(value - middle) > FAR * middle]
    return [value for value in sessions if value not in wild], wild


def _exact(reading: Reading) -> Entry:
    return stored_number(reading.value) if isinstance(reading.value, int | float) else reading.value


def _level(entry: Entry | None) -> float | None:
    if isinstance(entry, TimedEntry):
        return median(entry.sessions)
    return float(entry) if isinstance(entry, int | float) else None


def _differs(reading: Reading, before: Entry, after: Entry) -> bool:
    """Beyond what the reading allows: its promise for a time, else its tolerance and floor."""
    old, new = _level(before), _level(after)
    if old is None or new is None:
        return before != after
    allowed = reading.promise if reading.timed else reading.tolerance
    return abs(new - old) > allowed * abs(old) and abs(new - old) > reading.floor


def _is_worse(reading: Reading, before: Entry, after: Entry) -> bool:
    old, new = _level(before), _level(after)
    if not _differs(reading, before, after):
        return False
    if old is None or new is None or reading.better is Better.SAME:
        return True
    return new < old if reading.better is Better.HIGHER else new > old


def _shown(entry: Entry | None, unit: Unit) -> str:
    if entry is None:
        return "nothing"
    text = format_value(median(entry.sessions) if isinstance(entry, TimedEntry) else entry, unit)
    text = " ".join(text.split())
    return text if len(text) <= 60 else f"{text[:59]}…"
