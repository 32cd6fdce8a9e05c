"""An update as a list of changes, which are all shown before the requested ones are applied."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from statistics import median

from msgspec import Struct

from perfguard.model.config import Category
from perfguard.model.records import Entry, Provenance, Reading, TimedEntry, Verdict, Word
from perfguard.model.units import Unit, format_apart, format_change, format_list_change, format_value

#: Word -> the category with which an update writes the change.
CATEGORY_OF: dict[Word, Category] = {
    Word.NEW: "new",
    Word.OTHER_HARDWARE: "new",
    Word.FASTER: "faster",
    Word.BETTER: "faster",
    Word.SLOWER: "slower",
    Word.CHANGED: "changed",
    Word.METHOD_CHANGED: "changed",
    Word.DRIFT: "changed",
    Word.STALE: "stale",
}
_WIDEST = 60  # The most characters of a value in a line.


class Change(Struct, frozen=True, kw_only=True):
    """One entry that an update would write or remove.

    Attributes:
        folder: a slug, or `cpu`.
        metric: the metric; empty for the whole case (removal).
        before, after: the stored and the new entry; None if there is none.
        unit: the unit of both.
        needs_reason: whether the entry got slower, heavier or different.
        grown: the growth of a time beyond its promise over the anchor: amount, anchor and date.
        note: a remark for the reader, for example on sessions that differ much.
        refused: the reason why the change may not be written at all.
        together: whether the conditions differ from those of the stored entry, so that the changes of the case are
            either all written or all left.
        inputs: the specification of the inputs of the new entry.
        only_with: metrics of the same case. If one of their changes is left, this one is left as well.
        provenance: the provenance of the new entry, if it is not the update's own.
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
    grown: str = ""
    note: str = ""
    refused: str = ""
    together: bool = False
    inputs: str = ""
    only_with: tuple[str, ...] = ()
    provenance: Provenance | None = None

    @property
    def adds_session(self) -> bool:
        """Whether the change adds a session to a stored time that did not change."""
        return self.category == "new" and isinstance(self.before, TimedEntry)

    @property
    def demand(self) -> str:
        """The message if a needed reason is missing."""
        return f"{self.grown or 'slower, heavier or different'}; say why with --perfguard-reason"

    @property
    def name(self) -> str:
        """The case, and the metric if there is one."""
        return f"{self.key} {self.metric}".rstrip()

    def describe(self, *, left: bool = False) -> str:
        """One line: category, place, name, before -> after. `left`: whether the change is not written."""
        if self.after is None:
            what = "kept" if left else "removed"
        elif self.before is None:
            what = show(self.after, self.unit)
        elif isinstance(self.before, list) and isinstance(self.after, list):
            what = format_list_change(self.before, self.after, 2 * _WIDEST)
        else:
            what = " -> ".join(show_apart(self.before, self.after, self.unit))
            old, new = level(self.before), level(self.after)
            if old is not None and new is not None and old > 0 and new != old:
                what += f" ({format_change(new / old)})"
        note = f"; {self.note}" if self.note else ""
        return f"{self.category}: {self.folder} {self.suite} {self.name}: {what}{note}"


def category_of(verdict: Verdict, reading: Reading | None = None) -> Category | None:
    """The category of the change that follows from the verdict on an exact metric or a whole case; None if an update
    leaves the entry alone. A time's category does not depend on a verdict (`perfguard.judge.record`).

    `reading`: the judged reading. If it covers times, or is an ungated text, another value means other code. Its times
    are then recorded anew even if they are equal, since the stored ones belong to other code.
    """
    if not verdict.storable:
        return None
    of_code = reading is not None and (bool(reading.covers) or (reading.stored and reading.unit is Unit.TEXT))
    if of_code and verdict.word in (Word.PASS, Word.UNCHANGED, Word.UNRESOLVED) and verdict.before != verdict.after:
        return "changed"
    return CATEGORY_OF.get(verdict.word)


def select(
    changes: Sequence[Change], categories: Collection[Category], reason: str
) -> tuple[list[Change], list[tuple[Change, str]]]:
    """Split the changes into those to apply, and those that are left with the reason."""
    why = [_why_left(change, categories, reason) for change in changes]
    groups: dict[tuple[str, str, str], list[int]] = {}
    for index, change in enumerate(changes):
        groups.setdefault((change.folder, change.suite, change.key), []).append(index)
    for group in groups.values():
        held = next((index for index in group if why[index]), None)
        if held is not None and any(changes[index].together for index in group):
            blocking = f"goes only with {changes[held].metric} of the same case, which is left: {why[held]}"
            for index in group:
                why[index] = why[index] or blocking
        left = {changes[index].metric: why[index] for index in group if why[index]}
        for index in group:
            held_by = next((metric for metric in changes[index].only_with if metric in left), None)
            if held_by is not None:
                why[index] = why[index] or f"goes only with {held_by} of the same case, which is left: {left[held_by]}"
    chosen = [change for change, left in zip(changes, why, strict=True) if not left]
    return chosen, [(change, left) for change, left in zip(changes, why, strict=True) if left]


def _why_left(change: Change, categories: Collection[Category], reason: str) -> str:
    if change.refused:
        return change.refused
    if change.category not in categories:
        return f"not asked for; add it with --perfguard-update={change.category}"
    if change.needs_reason and not reason.strip():
        return change.demand
    return ""


def level(entry: Entry | None) -> float | None:
    """An entry as one number, which is the median session of a timed entry; None for other entries."""
    if isinstance(entry, TimedEntry):
        return median(entry.sessions) if entry.sessions else None
    return float(entry) if isinstance(entry, int | float) else None


def show(entry: Entry, unit: Unit) -> str:
    """An entry in its unit, on one line of limited width."""
    if isinstance(entry, TimedEntry):
        middle = level(entry)
        return "nothing" if middle is None else format_value(middle, unit)
    text = " ".join(format_value(entry, unit).split())
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"


def show_apart(one: Entry, other: Entry, unit: Unit) -> tuple[str, str]:
    """The differing parts of two different entries."""
    if isinstance(one, TimedEntry) or isinstance(other, TimedEntry):
        return show(one, unit), show(other, unit)
    return format_apart(one, other, unit, _WIDEST)
