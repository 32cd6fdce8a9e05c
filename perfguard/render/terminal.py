"""The summary at the end of `pytest --perfguard` and of `perfguard report`: worst first, each with what to do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from perfguard.records import CaseResult, Report, Verdict, Word
from perfguard.render.words import (
    MOST_NAMED,
    NOT_TIMED,
    accept_command,
    compare_command,
    describe_verdict,
    environment,
    folded,
    lane_of,
    reproduce_command,
)
from perfguard.units import format_bandwidth, format_flops, format_percent, format_value

COLORS = {
    Word.WRONG: "red", Word.BROKEN: "red", Word.SLOWER: "red", Word.CHANGED: "red", Word.SUSPECT: "yellow",
    Word.FASTER: "green", Word.UNCHANGED: "green", Word.PASS: "green",
}  # fmt: skip

# Shown case by case, with the commands that act on them; the other words are counted in one line each.
DETAILED = (Word.WRONG, Word.BROKEN, Word.SLOWER, Word.CHANGED, Word.UNRESOLVED, Word.DRIFT,
            Word.METHOD_CHANGED, Word.RENAMED, Word.SUSPECT, Word.FASTER)  # fmt: skip
COUNTED = {
    Word.OTHER_HARDWARE: "are stored for other hardware only",
    Word.STALE: "are stored but their tests are gone",
    Word.NEW: "have no baseline here and are not guarded (named metrics: only those are new)",
    Word.UNSUPPORTED: "are declared unsupported here",
}
MOST_PLACES = 2  # notes on what another board does, of device and of host times
MOST_DETAILED = 20
MOST_ROWS = 60


@dataclass(frozen=True)
class Line:
    """One line of text and its colour, if any."""

    text: str
    color: str = ""


@dataclass
class Summary:
    """What to print: the title belongs into a rule."""

    title: str
    lines: list[Line] = field(default_factory=list)


def render_summary(
    report: Report,
    *,
    written: Sequence[str] = (),
    left: Sequence[str] = (),
    accepted: Callable[[Verdict], bool] = lambda _: False,
    verbose: bool = False,
) -> Summary:
    """The whole summary of one run.

    Args:
        written: files that an update changed; `left`: what it left alone, and why.
        accepted: whether an update wrote what a verdict reports, so that no command has to.
    """
    summary = Summary(_title(report))
    summary.lines.append(Line(environment(report)))
    summary.lines += [Line(f"warning: {warning}", "yellow") for warning in report.hardware.warnings]
    summary.lines += _table(report, verbose)
    by_word: dict[Word, list[CaseResult]] = defaultdict(list)
    for result in report.results:
        by_word[result.word].append(result)
    for word in DETAILED:
        noisy = [result for result in by_word[word] if _is_only_noisy(result)]
        rest = [result for result in by_word[word] if not _is_only_noisy(result)]
        shown = rest if verbose else rest[:MOST_DETAILED]
        for result in _worst_first(shown):
            summary.lines += _details(result, accepted, lane_of(report))
        hidden = len(rest) - len(shown)
        if hidden:
            summary.lines.append(Line(f"… and {hidden} more {word}: see the report, or -v", COLORS.get(word, "")))
        summary.lines += _noisy(noisy, verbose)
    summary.lines += _counted(report, by_word, accepted, verbose)
    summary.lines += [Line(f"written: {path}") for path in written]
    summary.lines += [Line(f"left alone: {text}", "yellow") for text in left]
    return summary


def _title(report: Report) -> str:
    total = len(report.results)
    title = f"{report.lane}, {report.guarded} of {total} case{'s' * (total != 1)} guarded"
    measured = sum(1 for result in report.results if result.readings)
    if report.remembered:
        title += f", baselines hold {report.remembered}"
    if measured != total:
        title += f", {total - measured} not measured"
    if report.exact_only:
        title += f", {NOT_TIMED}"
    return title if report.complete else f"{title} (run was cut short)"


def _table(report: Report, verbose: bool) -> list[Line]:
    """Case, time, throughput, share of a rival's time and verdict of whatever was timed, but for cases whose first time
    was left unread."""
    rows = [("case", "time", "throughput", "% of copy", "of rival", "verdict")]
    timed = [
        result for result in report.results if any(reading.timed for reading in result.readings) and not _unread(result)
    ]
    shown = timed if verbose else timed[:MOST_ROWS]
    for result in shown:
        primary = next(reading for reading in result.readings if reading.timed)
        through = result.throughput
        rates = []
        if through and through.bytes_per_second:
            rates.append(format_bandwidth(through.bytes_per_second))
        if through and through.flop_per_second:
            rates.append(format_flops(through.flop_per_second))
        share = format_percent(through.copy_fraction, 0) if through and through.copy_fraction else ""
        time = format_value(primary.value, primary.unit)
        rows.append((result.case.key, time, ", ".join(rates), share, _beside_rival(result), str(result.word)))
    if len(rows) == 1:
        return []
    columns = [column for column in zip(*rows, strict=True) if column[0] != "of rival" or any(column[1:])]
    padded = [[cell.ljust(max(map(len, column))) for cell in column] for column in columns]
    lines = [Line("  ".join(row).rstrip()) for row in zip(*padded, strict=True)]
    if len(shown) < len(timed):
        lines.append(Line(f"… and {len(timed) - len(shown)} more: see the report, or -v"))
    return lines


def _beside_rival(result: CaseResult) -> str:
    """`0.58x`, the share of its rival's time that a case takes; empty where it has none."""
    shares = [r.value / r.rival for r in result.readings if r.rival and isinstance(r.value, int | float)]
    return f"{shares[0]:.2f}x" if shares else ""


def _unread(result: CaseResult) -> bool:
    """Whether a time was left unread, because the device runs the very same code."""
    return any(verdict.word is Word.UNCHANGED and result.reading(verdict.metric) is None for verdict in result.verdicts)


def _worst_first(results: Sequence[CaseResult]) -> list[CaseResult]:
    return sorted(results, key=lambda result: -max((verdict.ratio or 0.0 for verdict in result.verdicts), default=0.0))


def _details(result: CaseResult, accepted: Callable[[Verdict], bool], lane: str) -> list[Line]:
    word = result.word
    lines = [Line(f"{word}  {result.case.key}", COLORS.get(word, "yellow"))]
    for verdict in folded(_told(result.verdicts)):
        lines += [Line(f"    {line}") for line in describe_verdict(verdict)]
    notes = [*result.notes, *(reading.note for reading in result.readings if reading.note)]
    said = "\n".join(line.text for line in lines)
    lines += [Line(f"    note: {note}") for note in notes if note not in said]
    lines.append(Line(f"    reproduce: {reproduce_command(result.case.nodeid, lane)}"))
    timed = {reading.metric for reading in result.readings if reading.timed and not reading.rival}
    if any(verdict.word in (Word.SLOWER, Word.UNRESOLVED) and verdict.metric in timed for verdict in result.verdicts):
        lines.append(Line(f"    compare:   {compare_command(result.case.nodeid)}"))
    open_ = {verdict.word for verdict in result.verdicts if verdict.storable and not accepted(verdict)}
    accept = accept_command(open_, result.case.nodeid, lane)
    if accept and word is not Word.WRONG:
        lines.append(Line(f"    accept:    {accept}"))
    return lines


def _told(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts worth a line, worst first; what passed or did not change is silent."""
    order = list(Word)
    told = [verdict for verdict in verdicts if verdict.word not in (Word.PASS, Word.UNCHANGED)]
    return sorted(told, key=lambda verdict: order.index(verdict.word))


def _is_only_noisy(result: CaseResult) -> bool:
    told = _told(result.verdicts)
    return bool(told) and all(v.word is Word.UNRESOLVED and v.reason.startswith("NOISY") for v in told)


def _noisy(results: Sequence[CaseResult], verbose: bool) -> list[Line]:
    """Times that the noise between sessions keeps from being judged: one line a case, the blindest first."""
    if not results:
        return []
    found = [
        (verdict.smallest or 0.0, f"    {result.case.key}: {verdict.metric} {format_percent(verdict.smallest or 0.0)}")
        for result in results
        for verdict in _told(result.verdicts)
    ]
    found.sort(key=lambda pair: -pair[0])
    count = f"{len(results)} case{'s' * (len(results) != 1)}"
    lines = [
        Line(f"UNRESOLVED  {count}: too noisy to judge; the smallest slowdown that would have been seen:", "yellow")
    ]
    lines += [Line(text) for _, text in (found if verbose else found[:MOST_DETAILED])]
    hidden = len(found) - MOST_DETAILED
    if hidden > 0 and not verbose:
        lines.append(Line(f"    … and {hidden} more: see the report, or -v"))
    told = [verdict for result in results for verdict in _told(result.verdicts)]
    more = dict.fromkeys(line for verdict in told for line in verdict.reason.splitlines()[1:])
    return lines + [Line(f"    {line}") for line in list(more)[:MOST_PLACES]]


def _named(result: CaseResult) -> str:
    """The case, and which metrics the word is about where others of it were judged."""
    own = [verdict.metric for verdict in result.verdicts if verdict.word is result.word and verdict.metric]
    partly = len(own) < len(result.verdicts)
    more = f" … and {len(own) - MOST_NAMED} more" if len(own) > MOST_NAMED else ""
    return f"{result.case.key}: {', '.join(own[:MOST_NAMED])}{more}" if own and partly else result.case.key


def _unchanged(report: Report) -> list[Line]:
    """How many cases run the very same code on the device, and what became of them."""
    same = [result for result in report.results if any(v.word is Word.UNCHANGED for v in result.verdicts)]
    if not same:
        return []
    controls = sum(1 for result in same if not _unread(result))
    count = f"{len(same)} case{'s' * (len(same) != 1)}"
    text = f"the device runs the same code as when they were recorded; {controls} timed as controls"
    return [Line(f"UNCHANGED  {count}: {text}", COLORS[Word.UNCHANGED])]


def _counted(
    report: Report, by_word: dict[Word, list[CaseResult]], accepted: Callable[[Verdict], bool], verbose: bool
) -> list[Line]:
    lines = []
    for word, text in COUNTED.items():
        about = {
            _named(result): [verdict for verdict in result.verdicts if verdict.word is word] for result in by_word[word]
        }
        if word is Word.STALE:
            about = {verdict.case: [verdict] for verdict in report.stale}
        done = sum(1 for verdicts in about.values() if verdicts and all(map(accepted, verdicts)))
        names = [name for name, verdicts in about.items() if not verdicts or not all(map(accepted, verdicts))]
        if done:
            what = "removed from the baselines" if word is Word.STALE else "recorded now, judged from the next run on"
            lines.append(Line(f"{word}  {done} case{'s' * (done != 1)}: {what}", "green"))
        if not names:
            continue
        count = f"{len(names)} case{'s' * (len(names) != 1)}"
        lines.append(Line(f"{word}  {count}: {text}", "yellow"))
        lines += [Line(f"    {name}") for name in (names if verbose else names[:MOST_DETAILED])]
        accept = accept_command({word}, lane=lane_of(report))
        if accept:
            lines.append(Line(f"    {'remove' if word is Word.STALE else 'record'}: {accept}"))
    lines += _unchanged(report)
    passed = len(by_word[Word.PASS])
    if passed:
        lines.append(Line(f"PASS  {passed} case{'s' * (passed != 1)}", "green"))
    return lines
