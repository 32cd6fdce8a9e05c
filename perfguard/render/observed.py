"""Groups the findings of observed tests by cause: a kernel, or a line of Python.

A change of a kernel affects every test that launches it. It is reported once, with the number of tests.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as with_fields

from msgspec.structs import replace

from perfguard.model.limits import KERNEL_TIME, timed_kernel
from perfguard.model.records import Better, Case, CaseResult, Verdict, Word
from perfguard.model.units import Unit, counted, format_change, format_value
from perfguard.render.causes import LINE, NAMED, Move, added, moved_parts, short_name, whole
from perfguard.render.words import MOST_LISTED, listed

_WORK = "kernel_work"  # Its parts are sums over kernels, which are named if they are few.


@dataclass
class Group:
    """The changes of all metrics by one cause, either for the worse or for the better.

    Attributes:
        results: the tests, in the order of the findings.
        moves: metric -> its changes in these tests, one for each test and target.
        targets: metric -> the targets on which it changed.
        recorded: the device times of the kernel in these tests when they were recorded, µs.
    """

    cause: str
    word: Word
    results: list[CaseResult] = field(default_factory=list)
    moves: dict[str, list[Move]] = field(default_factory=dict)
    targets: dict[str, list[str]] = field(default_factory=dict)
    recorded: list[float] = field(default_factory=list)

    def add(self, result: CaseResult, target: str, move: Move) -> None:
        """Add a move in a test."""
        if not self.results or self.results[-1] is not result:
            self.results.append(result)
            self.recorded += _recorded(result, self.cause)
        self.moves.setdefault(move.metric, []).append(move)
        if target and target not in self.targets.setdefault(move.metric, []):
            self.targets[move.metric].append(target)

    def as_finding(self) -> tuple[CaseResult, Verdict]:
        """The group as one finding of its first test, named after the cause."""
        times = self.moves.get(KERNEL_TIME, [])
        times.sort(key=lambda move: abs(math.log(move.ratio or 1.0)), reverse=True)
        named = [move.test for move in times]
        first, *rest = sorted(self.results, key=lambda each: named.index(each.case.name) if times else 0)
        tests = counted(len(self.results), "test")
        name = f"{self.cause}, in {first.case.name if not rest else f'{tests} such as {first.case.name}'}"
        metrics = sorted(self.moves, key=lambda metric: _rank(first, metric))
        lines = [line for metric in metrics for line in self._lines(metric)]
        if self.recorded and not times:
            least, most = (format_value(of(self.recorded), Unit.MICROSECONDS) for of in (min, max))
            lines.append(f"{KERNEL_TIME} {least}{f' to {most}' if most != least else ''} when it was recorded")
        if rest and len(times) < len(self.results):
            lines.append(f"tests: {listed([result.case.name for result in self.results])}")
        main, move = metrics[0], self.moves[metrics[0]][0]
        ratio = move.ratio if move.better is not Better.HIGHER or move.ratio is None else 1 / move.ratio
        verdict = Verdict(
            self.word, self._label(main), "\n".join(lines), move.before, move.after, move.unit, ratio=ratio
        )
        if main == KERNEL_TIME and move.pairs is not None:  # This verdict has an interval.
            verdict = replace(move.pairs, metric=main, reason=verdict.reason)
        case = Case(first.case.suite, name, first.case.direction, first.case.nodeid)
        # Notes list all places in the test, but only metrics that changed are shown.
        readings = [each if short_name(each) in self.moves else replace(each, note="") for each in first.readings]
        return replace(first, case=case, readings=readings, verdicts=[verdict], notes=[]), verdict

    def _label(self, metric: str) -> str:
        """`spills on sm_80, sm_90`."""
        targets = self.targets.get(metric)
        return f"{metric} on {', '.join(targets)}" if targets else metric

    def _lines(self, metric: str) -> list[str]:
        if metric != KERNEL_TIME:
            parts = list(dict.fromkeys(part for move in self.moves[metric] for part in move.parts))
            named = parts if metric == self.cause else []  # No line is known as the cause.
            return [self._line(metric), *([f"more of {listed(named)}"] if named else [])]
        times = self.moves[metric]
        paired = [(move, move.pairs.reason.partition("; because: ")) for move in times if move.pairs is not None]
        lines = [f"{move.test}: {move}, {found}" for move, (found, _, _) in paired[:MOST_LISTED]]
        lines += [f"and {counted(len(times) - MOST_LISTED, 'more test')}"] if len(times) > MOST_LISTED else []
        cause = paired[0][1][2]
        return [f"{metric} {times[0]}", *lines, *([f"because: {cause}"] if cause else [])]

    def _line(self, metric: str) -> str:
        moves, label = self.moves[metric], self._label(metric)
        texts = list(dict.fromkeys(map(str, moves)))
        first, ratio = moves[0], moves[0].ratio
        if len(texts) == 1:
            return f"{label} {texts[0]}{f' ({format_change(ratio)})' if ratio else ''}"
        sizes = [
            each.after - each.before
            for each in moves
            if isinstance(each.after, int | float) and isinstance(each.before, int | float)
        ]
        if len(sizes) < len(moves):
            return f"{label} {texts[0]}, otherwise in other tests"
        least, most = (format_value(size, first.unit) for size in (min(sizes), max(sizes)))
        return f"{label} {_signed(least)}{f' to {_signed(most)}' if most != least else ' each'}"


def _rank(result: CaseResult, metric: str) -> int:
    """The sort key of a metric without its target, the most informative first: the time of a kernel leads."""
    found = (each.rank for each in result.readings if short_name(each) == metric.partition(" ")[0])
    return 0 if metric == KERNEL_TIME else min(found, default=0)


def _signed(size: str) -> str:
    return size if size.startswith("-") else f"+{size}"


def groups_of(findings: Sequence[tuple[CaseResult, Verdict]]) -> list[Group]:
    """The findings of observed tests, merged if they have a common cause; those with the most tests come first.

    A metric that names no cause (the number of operators, the peak) is reported with a cause of the same test if there
    is one, otherwise under its own name.
    """
    groups: dict[tuple[Word, str], Group] = {}

    def add(word: Word, cause: str, result: CaseResult, target: str, move: Move) -> None:
        groups.setdefault((word, cause), Group(cause, word)).add(result, target, move)

    tests: dict[int, tuple[CaseResult, list[Verdict]]] = {}
    for result, verdict in findings:
        tests.setdefault(id(result), (result, []))[1].append(verdict)
    for result, verdicts in tests.values():
        unnamed: list[tuple[Verdict, str, Move]] = []
        named: list[str] = []
        for verdict in verdicts:
            causes = list(_causes(result, verdict))
            for target, cause, move in causes or [("", verdict.metric, whole(verdict, verdict.metric))]:
                if cause in (move.metric, verdict.metric):
                    unnamed.append((verdict, target, move))
                else:
                    named.append(cause)
                    add(verdict.word, cause, result, target, move)
                    for extra in _of_the_same_part(result, verdict, cause):
                        add(verdict.word, cause, result, target, extra)
        for verdict, target, move in unnamed:
            placed = next((cause for cause in named if (verdict.word, cause) in groups), move.metric)
            add(verdict.word, placed, result, target, move)
    return sorted(groups.values(), key=lambda group: -len(group.results))


def _causes(result: CaseResult, verdict: Verdict) -> Iterator[tuple[str, str, Move]]:
    """(target, cause, move) for each part of a finding that changed, or for each detail that explains it."""
    if kernel := timed_kernel(verdict.metric):
        move = with_fields(whole(verdict, KERNEL_TIME), test=result.case.name, pairs=verdict)
        yield "", kernel, move
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


def _recorded(result: CaseResult, kernel: str) -> Iterator[float]:
    """The recorded device time of the kernel in the test, µs; none if unknown."""
    for verdict in result.verdicts:
        if verdict.metric == KERNEL_TIME and isinstance(verdict.before, dict):
            time = verdict.before.get(kernel)
            if isinstance(time, int | float):
                yield time


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
