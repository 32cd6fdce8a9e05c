"""Summarizes a change of the baselines in few lines, to be read before it is merged."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from msgspec import Struct

from perfguard.model.records import Baseline, CaseId, Entry, Recorded, TimedEntry, Toolchain, Value
from perfguard.model.units import Unit, counted, format_apart, format_percent, format_value
from perfguard.render.escaping import clean

MOST_LINES = 36  # With a title and the marks of a Markdown block there are at most forty.
_MOST_PAIRS = 3  # The most (before, after) pairs of one metric that each get a line.
_SHORT = 20  # Longer texts are not shown.

Files = Mapping[str, Mapping[str, Baseline]]  # Folder -> suite -> baseline.


@dataclass
class _Changes:
    """The changes of one folder.

    Attributes:
        promises: timed metric -> the relative change that its gate promises to catch.
        anew: the number of cases that were recorded before and after, and differ.
        counts: description -> the number of cases that it applies to.
        moves: metric -> (before, after) for each case in which its number or short text differs.
        times: metric -> the ratio of new to old level for each case that was timed again.
    """

    promises: Mapping[str, float]
    anew: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    moves: dict[str, list[tuple[float | str, float | str]]] = field(default_factory=lambda: defaultdict(list))
    times: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def compare(self, before: Mapping[CaseId, Recorded], after: Mapping[CaseId, Recorded]) -> None:
        for word, cases in (("new", after.keys() - before.keys()), ("gone", before.keys() - after.keys())):
            if cases:
                self.counts[word] += len(cases)
        for case in sorted(before.keys() & after.keys()):
            if before[case] != after[case]:
                self._case(before[case], after[case])

    def _case(self, before: Recorded, after: Recorded) -> None:
        self.anew += 1
        if before.entries == after.entries and before.inputs == after.inputs:
            self.counts["recorded anew, in which nothing moved"] += 1
        if before.inputs != after.inputs:
            self.counts["with other inputs"] += 1
        then, now = before.provenance, after.provenance
        for name in (*Toolchain.__struct_fields__, "power_limit_watts"):
            if getattr(then, name) != getattr(now, name):
                self.counts[f"under {name} {getattr(then, name)} -> {getattr(now, name)}"] += 1
        if now.reason and now.reason != then.reason:
            self.counts[f"for the reason: {now.reason}"] += 1
        for metric in {**before.entries, **after.entries}:
            self._entry(metric, before.entries.get(metric), after.entries.get(metric))

    def _entry(self, metric: str, before: Entry | None, after: Entry | None) -> None:
        if before == after:
            return
        if before is None or after is None:
            self.counts[f"with {metric} {'new' if before is None else 'gone'}"] += 1
        elif isinstance(before, TimedEntry) and isinstance(after, TimedEntry) and before.timer == after.timer:
            self.times[metric].append(median(after.sessions) / median(before.sessions))
        elif _is_shown(before) and _is_shown(after):
            self.moves[metric].append((before, after))  # type: ignore[arg-type]
        else:
            self.counts[f"with another {metric}"] += 1

    def all_lines(self) -> list[str]:
        """The lines, those with the most cases first."""
        lines = [(count, f"{counted(count, 'case')} {words}") for words, count in self.counts.items()]
        for metric, ratios in self.times.items():
            lines += _of_time(metric, ratios, self.promises.get(metric, 0.0))
        for metric, moves in self.moves.items():
            lines += _of_metric(metric, moves)
        return [line for _, line in sorted(lines, key=lambda each: (-each[0], each[1]))]


def summarize(before: Files, after: Files, promises: Mapping[str, float], base: str) -> list[str]:
    """At most `MOST_LINES` lines: a title, then the changes by hardware with their numbers of cases, largest first.

    Args:
        promises: timed metric -> the relative change that its gate promises to catch.
        base: the name of the commit of `before`.
    """
    by_folder: dict[str, _Changes] = {}
    for folder in sorted({*before, *after}):
        changes = _Changes(promises)
        changes.compare(_records(before.get(folder, {})), _records(after.get(folder, {})))
        if changes.anew or changes.counts:
            by_folder[folder] = changes
    if not by_folder:
        return [f"Records: as at {base}"]
    anew = sum(each.anew for each in by_folder.values())
    new, gone = (sum(each.counts[word] for each in by_folder.values()) for word in ("new", "gone"))
    lines = [f"Records beside {base}: {counted(anew, 'case')} recorded anew, {new} new, {gone} gone"]
    most = max(1, (MOST_LINES - 1) // len(by_folder) - 1)
    for folder, changes in by_folder.items():
        lines += [f"{clean(folder)}:", *(f"  {clean(line)}" for line in _at_most(changes.all_lines(), most))]
    return lines if len(lines) <= MOST_LINES else [*lines[: MOST_LINES - 1], "…"]


def _at_most(lines: Sequence[str], most: int) -> list[str]:
    return [*lines] if len(lines) <= most else [*lines[: most - 1], f"… and {len(lines) - most + 1} more lines"]


def _records(files: Mapping[str, Baseline]) -> dict[CaseId, Recorded]:
    return {(suite, key): file.recorded(key) for suite, file in files.items() for key in file.cases}


def _is_shown(entry: Entry) -> bool:
    return isinstance(entry, int | float) or (isinstance(entry, str) and len(entry) <= _SHORT)


def _of_time(metric: str, ratios: Sequence[float], promise: float) -> list[tuple[int, str]]:
    """`31 cases faster by 3 to 17 % (device_time_us)`."""
    faster = [1 - ratio for ratio in ratios if ratio < 1 / (1 + promise)]
    slower = [ratio - 1 for ratio in ratios if ratio > 1 + promise]
    same = len(ratios) - len(faster) - len(slower)
    lines = [
        (len(shares), f"{counted(len(shares), 'case')} {word} by {_span(shares)} ({metric})")
        for word, shares in (("faster", faster), ("slower", slower))
        if shares
    ]
    within = f"within {format_percent(promise, 0)}"
    return [*lines, *([(same, f"{counted(same, 'case')} read anew, {within} ({metric})")] if same else [])]


def _of_metric(metric: str, moves: Sequence[tuple[float | str, float | str]]) -> list[tuple[int, str]]:
    """`launches 2 -> 1 in 4 cases`, or for many pairs `peak_memory_bytes lower by 3 to 12 % in 9 cases`."""
    pairs = Counter(moves)
    if len(pairs) <= _MOST_PAIRS:
        return [
            (count, f"{metric} {before} -> {after} in {counted(count, 'case')}")
            for (before, after), count in pairs.items()
        ]
    lines = []
    numbers = [(b, a) for b, a in moves if isinstance(b, int | float) and isinstance(a, int | float)]
    for direction, moved in (
        ("lower", [(b, a) for b, a in numbers if a < b]),
        ("higher", [(b, a) for b, a in numbers if a > b]),
    ):
        if moved:
            shares = [abs(a / b - 1) for b, a in moved if b > 0]
            by = f" by {_span(shares)}" if len(shares) == len(moved) else ""
            lines.append((len(moved), f"{metric} {direction}{by} in {counted(len(moved), 'case')}"))
    texts = len(moves) - len(numbers)
    return [*lines, *([(texts, f"{metric} otherwise in {counted(texts, 'case')}")] if texts else [])]


def _span(shares: Collection[float]) -> str:
    """`3 to 17 %`."""
    low, high = (f"{100 * share:.{0 if share >= 0.01 else 1}f}" for share in (min(shares), max(shares)))
    return f"{high} %" if low == high else f"{low} to {high} %"


class BaselineEdit(Struct, frozen=True):
    """One entry of the baselines, or one setting, that the change edits.

    Attributes:
        folder: the folder of the entry, such as `nvidia-h200` or `cpu`, or the file of the setting.
        before, after: the entry's value, or the centre of its sessions for a time; None if it is added or removed.
        loosens: what lets a worse reading pass than before the edit (or removal), in words; empty if nothing does.
        measured: the reading in this change's own report, if any.
    """

    folder: str
    suite: str
    case: str
    metric: str
    unit: Unit
    before: Value | None
    after: Value | None
    reason: str = ""
    loosens: str = ""
    measured: Value | None = None

    def values(self, most: int) -> tuple[str, str, str]:
        """The entry before and after, and the measured value, as texts of at most `most` characters each."""
        measured = "not measured" if self.measured is None else format_value(self.measured, self.unit)
        if self.before is None or self.after is None:
            before = "none" if self.before is None else format_value(self.before, self.unit)
            return before, "removed" if self.after is None else format_value(self.after, self.unit), measured
        return *format_apart(self.before, self.after, self.unit, most), measured
