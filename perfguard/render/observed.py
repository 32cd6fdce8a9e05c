"""Splits the findings of an observed test by cause: a kernel, or a line of Python, which other tests share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as with_fields

from msgspec.structs import replace

from perfguard.model.limits import KERNEL_TIME, timed_kernel
from perfguard.model.records import Better, CaseResult, Verdict, Word
from perfguard.model.units import Unit, format_change, format_value
from perfguard.render.causes import LINE, NAMED, Move, added, moved_parts, short_name, whole
from perfguard.render.words import listed

_WORK = "kernel_work"  # Its parts are sums over kernels, which are named if they are few.


@dataclass
class _Changes:
    """The changes of one test by one cause, either for the worse or for the better.

    Attributes:
        moves: metric -> its changes, one for each part and target.
        targets: metric -> the targets on which it changed.
    """

    moves: dict[str, list[Move]] = field(default_factory=dict)
    targets: dict[str, list[str]] = field(default_factory=dict)

    def add(self, target: str, move: Move) -> None:
        self.moves.setdefault(move.metric, []).append(move)
        if target and target not in self.targets.setdefault(move.metric, []):
            self.targets[move.metric].append(target)

    def verdict(self, result: CaseResult, word: Word, cause: str) -> Verdict:
        """One verdict on all of them: the values of the most informative metric, with a line for each in its reason."""
        metrics = sorted(self.moves, key=lambda metric: _rank(result, metric))
        lines = [line for metric in metrics for line in self._lines(metric, cause)]
        recorded = _recorded(result, cause)
        if recorded is not None and KERNEL_TIME not in self.moves:
            lines.append(f"{KERNEL_TIME} {format_value(recorded, Unit.MICROSECONDS)} when it was recorded")
        main, move = metrics[0], self.moves[metrics[0]][0]
        if move.pairs is not None:  # This verdict has an interval.
            return replace(move.pairs, metric=main, reason="\n".join(lines))
        ratio = move.ratio if move.better is not Better.HIGHER or move.ratio is None else 1 / move.ratio
        return Verdict(word, self._label(main), "\n".join(lines), move.before, move.after, move.unit, ratio=ratio)

    def _label(self, metric: str) -> str:
        """`spills on sm_80, sm_90`."""
        targets = self.targets.get(metric)
        return f"{metric} on {', '.join(targets)}" if targets else metric

    def _lines(self, metric: str, cause: str) -> Iterator[str]:
        moves, first = self.moves[metric], self.moves[metric][0]
        if first.pairs is not None:
            pairs, _, why = first.pairs.reason.partition("; because: ")
            yield from (f"{metric} {first}", pairs, *([f"because: {why}"] if why else []))
            return
        texts = dict.fromkeys(map(str, moves))
        change = f" ({format_change(first.ratio)})" if first.ratio and len(texts) == 1 else ""
        yield f"{self._label(metric)} {', '.join(texts)}{change}"
        parts = list(dict.fromkeys(part for move in moves for part in move.parts))
        if parts and metric == cause:  # No line is known as the cause.
            yield f"more of {listed(parts)}"


def by_cause(result: CaseResult, verdicts: Sequence[Verdict]) -> list[tuple[CaseResult, Verdict, str]]:
    """The findings of an observed test, merged if they have a common cause: (result, verdict, cause).

    A metric that names no cause (the number of operators, the peak) is reported with a cause of the same test if there
    is one, otherwise under its own name.
    """
    found: dict[tuple[Word, str], _Changes] = {}
    unnamed: list[tuple[Word, str, Move]] = []
    for verdict in verdicts:
        causes = list(_causes(result, verdict))
        for target, cause, move in causes or [("", verdict.metric, whole(verdict, verdict.metric))]:
            if cause in (move.metric, verdict.metric):
                unnamed.append((verdict.word, target, move))
                continue
            changes = found.setdefault((verdict.word, cause), _Changes())
            changes.add(target, move)
            for extra in _of_the_same_part(result, verdict, cause):
                changes.add(target, extra)
    named = dict(reversed(found))  # Word -> its first cause.
    for word, target, move in unnamed:
        found.setdefault((word, named.get(word, move.metric)), _Changes()).add(target, move)
    return [
        (_shown(result, changes, verdict), verdict, cause)
        for (word, cause), changes in found.items()
        for verdict in [changes.verdict(result, word, cause)]
    ]


def _shown(result: CaseResult, changes: _Changes, verdict: Verdict) -> CaseResult:
    """The result with one finding. Notes list all places in the test: only those of changed metrics are kept."""
    readings = [each if short_name(each) in changes.moves else replace(each, note="") for each in result.readings]
    return replace(result, readings=readings, verdicts=[verdict], notes=[])


def _rank(result: CaseResult, metric: str) -> int:
    """The sort key of a metric without its target, the most informative first: the time of a kernel leads."""
    found = (each.rank for each in result.readings if short_name(each) == metric.partition(" ")[0])
    return 0 if metric == KERNEL_TIME else min(found, default=0)


def _causes(result: CaseResult, verdict: Verdict) -> Iterator[tuple[str, str, Move]]:
    """(target, cause, move) for each part of a finding that changed, or for each detail that explains it."""
    if kernel := timed_kernel(verdict.metric):
        yield "", kernel, with_fields(whole(verdict, KERNEL_TIME), pairs=verdict)
        return
    reading = result.reading(verdict.metric)
    target = reading.target if reading is not None else ""
    metric = verdict.metric.removeprefix(f"{target}.") if target else verdict.metric
    before, after = verdict.before, verdict.after
    if isinstance(before, dict) or isinstance(after, dict):
        better = reading.better if reading is not None else Better.SAME
        for part, then, now in moved_parts(before, after, better, for_the_worse=verdict.word is not Word.BETTER):
            if metric == _WORK:
                kernels = "" if reading is None else reading.lines.get(part, "").removesuffix(f" {part}")
                cause = metric if not kernels or "," in kernels else kernels
                yield target, cause, Move(f"{metric} {part}", then, now, verdict.unit, better)
            else:
                yield target, part, Move(metric, then, now, verdict.unit, better)
        return
    all_of_it = whole(verdict, metric)
    causes = [cause for detail in result.readings if detail.details == metric for cause in added(result, detail)]
    lines = [match[0] for cause in causes if (match := LINE.search(cause))]
    if lines or (causes and metric in NAMED):
        for cause in dict.fromkeys(lines or causes):
            yield target, cause, all_of_it
    else:
        yield target, metric, with_fields(all_of_it, parts=tuple(causes))


def _recorded(result: CaseResult, kernel: str) -> float | None:
    """The recorded device time of the kernel in the test, µs; None if unknown."""
    stored = next((each.before for each in result.verdicts if each.metric == KERNEL_TIME), None)
    time = stored.get(kernel) if isinstance(stored, dict) else None
    return time if isinstance(time, int | float) else None


def _of_the_same_part(result: CaseResult, verdict: Verdict, part: str) -> Iterator[Move]:
    """Ungated changes of the same kernel on the same target that explain a finding, for example its registers."""
    target = verdict.metric.rpartition(".")[0]
    if not target:
        return
    for other in result.readings:
        shown = next((each for each in result.verdicts if each.metric == other.metric), None)
        if other.gated or other.target != target or shown is None or not isinstance(shown.before, Mapping):
            continue
        for_the_worse = verdict.word is not Word.BETTER
        for name, then, now in moved_parts(shown.before, shown.after, other.better, for_the_worse=for_the_worse):
            if name == part and other.better is not Better.SAME:
                yield Move(other.metric.removeprefix(f"{target}."), then, now, other.unit, other.better)
