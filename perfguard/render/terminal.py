"""The summary at the end of `pytest --perfguard` and of `perfguard report`: worst case first, each with its next step.

Cases that need action take one line and at most four more, together if they have one cause. Other cases share one line
per verdict, with a count and a command. A run in which no case needs action takes at most fifteen lines. `-v` names
every case.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from perfguard.model.records import NOT_AT_BASE, Case, CaseId, CaseResult, Report, Verdict, Word
from perfguard.model.units import counted, format_value
from perfguard.render.causes import rows_of
from perfguard.render.escaping import clean
from perfguard.render.findings import INCONCLUSIVE, Cause, Finding
from perfguard.render.overview import LaneView, Overview
from perfguard.render.tables import case_table, first_time, is_unread_time
from perfguard.render.words import (
    MOST_OF_A_VALUE,
    NOT_TIMED,
    OLD_FAULT,
    accept_command,
    checked_beside,
    command_prefix,
    compare_command,
    describe_verdict,
    environment,
    folded,
    listed,
    more_lines,
    most_common,
    one_line,
    reproduce_command,
    tally,
)

#: Word -> the text of its line, and whether the line ends with the most common cause.
COUNTED = {
    Word.DRIFT: ("recorded with another toolchain", True),
    Word.METHOD_CHANGED: ("recorded otherwise", True),
    Word.OTHER_HARDWARE: ("stored for other hardware only", True),
    Word.STALE: ("stored, and the test is gone", False),
    Word.NEW: ("no baseline here, not guarded", False),
    Word.OLD_FAULT: (OLD_FAULT, True),
    Word.UNSUPPORTED: ("declared unsupported here", True),
}
MOST_QUIET = 15  # Lines of a run in which no case needs action, including the line that names the report.
MOST_MORE = 4  # Lines of a case after its first.
MOST_CAUSES = 20  # Causes of one failing word; more are counted.
MOST_FASTER = 5
MOST_ROWS = 8  # Rows of the table of times.
MOST_WRITTEN = 8  # Files written by an update.
MOST_NAMED = 3  # Named cases of one kind that need no action.
MOST_CHARACTERS = 200  # Characters of a line, except commands.

Accepted = Callable[[Verdict], bool]


@dataclass(frozen=True)
class Line:
    """One line of text and its colour, if any."""

    text: str
    color: str = ""


@dataclass
class Summary:
    """The text to print. The title goes into a horizontal rule."""

    title: str
    lines: list[Line] = field(default_factory=list)


def render_summary(
    report: Report,
    *,
    written: Sequence[str] = (),
    left: Sequence[str] = (),
    accepted: Accepted = lambda _: False,
    typed: Callable[[str], str] = str,
    verbose: bool = False,
) -> Summary:
    """The whole summary of one run.

    Args:
        written: the files that an update changed; `left`: the entries that it left alone, with the reason.
        accepted: tells whether an update has written a verdict's reading, so that no command is needed.
        typed: returns a node id as a user types it.
        verbose: whether every case is named and every time is shown.
    """
    view = LaneView(report.lane, report)
    writer = _Writer(report, view, Overview([view]).causes, accepted, typed, verbose)
    failing = [line for word in Word if word.fails for line in writer.failing(word)]
    top = [Line(environment(report)), *writer.warnings(), Line(writer.measured())]
    undecided = writer.undecided()
    if writer.view.is_inconclusive:
        top, undecided = [*undecided, *top], []
    bottom = [*undecided, *writer.uncommitted(), *writer.unread()]
    bottom += [line for word in COUNTED for line in writer.of_word(word)]
    room = MOST_QUIET - 1 - len(top) - len(bottom)
    improved = writer.improved(len(report.results) if verbose else max(1, min(MOST_FASTER, room - 1)))
    table = [Line(line) for line in case_table(report, verbose)]
    fits = len(table) <= MOST_ROWS + 1 and (failing or len(table) + len(improved) <= room)
    lines = [*top, *(table if verbose or fits else []), *failing, *bottom, *improved]
    lines += [Line(f"written: {path}") for path in _written(written, verbose)]
    lines += [Line(f"left alone: {text}", "yellow") for text in left]
    return Summary(clean(writer.title(), None), [Line(clean(line.text, None), line.color) for line in lines])


def _written(paths: Sequence[str], verbose: bool) -> Sequence[str]:
    if verbose or len(paths) <= MOST_WRITTEN:
        return paths
    return [f"{len(paths)} files below {os.path.commonpath(paths)}; their names: -v"]


@dataclass(frozen=True)
class _Writer:
    """The parts of the summary of one report. `accepted`, `typed` and `verbose` are those of `render_summary`."""

    report: Report
    view: LaneView
    causes: Sequence[Cause]
    accepted: Accepted
    typed: Callable[[str], str]
    verbose: bool

    def title(self) -> str:
        report = self.report
        title = f"{report.lane}, {self.view.guarded} guarded"
        if report.remembered:
            title += f", baselines hold {report.remembered}"
        if report.exact_only:
            title += f", {NOT_TIMED}"
        if self.view.is_inconclusive:
            title += ", inconclusive"
        return title if report.complete else f"{title} (run was cut short)"

    def warnings(self) -> list[Line]:
        warnings = self.report.hardware.warnings
        shown = warnings if self.verbose else warnings[:1]
        more = f" (and {len(warnings) - 1} more: -v)" if len(shown) < len(warnings) else ""
        return [Line(f"warning: {warning}{more}", "yellow") for warning in shown]

    def measured(self) -> str:
        """The number of cases by verdict, remarks, bases, the slowest case, seconds, hard inputs."""
        report = self.report
        parts = [tally(self.view.counts) or "no case"]
        if unread := sum(map(is_unread_time, report.results)):
            parts.append(f"{unread} not timed, whose code on the device is as recorded")
        if work := [] if report.exact_only else [each for each in report.results if each.reading("kernel_work")]:
            parts.append(f"{len(work)} not timed, whose kernels Triton's interpreter runs")
        remarks = [each for each in self.view.remarks if not each[0].endswith(OLD_FAULT)]  # Old faults have own lines.
        parts += [clean(f"{remark}: {listed(names)}", MOST_CHARACTERS) for remark, names in remarks]
        if strides := self._other_strides():
            more = f" and {len(strides) - 1} more" if len(strides) > 1 else ""
            parts.append(f"other strides, which no reference declares: {strides[0]}{more}")
        trees = [report.base] if report.base is not None else [*report.bases.values()]
        if trees and all(base.equal for base in trees):
            commits = listed(sorted({base.commit[:12] for base in trees if base.commit}))
            parts.append(f"the working tree is that of {commits}")
        for base in dict.fromkeys(pairing.base for pairing in report.pairings):
            beside = [pairing for pairing in report.pairings if pairing.base == base]  # There is one for each device.
            answered = sum(case.base is not None or bool(case.times) for each in beside for case in each.cases)
            pairs = sum(each.pairs for each in beside)
            asked = f"{counted(answered, 'case')} asked of {base[:12]}"
            if answered:
                parts.append(asked + (f", {counted(pairs, 'process pair')}" if pairs else ""))
        times = [
            (reading.value, reading.unit, result)
            for result in report.results
            if (reading := first_time(result)) is not None and isinstance(reading.value, int | float)
        ]
        if times:
            value, unit, slowest = max(times, key=lambda time: time[0])
            parts.append(f"slowest {slowest.case.key} {format_value(value, unit)}")
        if seconds := sum(result.seconds for result in report.results):
            parts.append(f"{seconds:.1f} s")
        return "; ".join([*parts, *checked_beside(report.results)])

    def _other_strides(self) -> list[str]:
        """`double[64]/backward contract strides (1,48) -> (48,1)` for each case that passes with other strides."""
        return [
            clean(f"{result.case.key} {verdict.reason.rpartition(': ')[2]}")
            for result in self.report.results
            for verdict in result.verdicts
            if verdict.word is Word.PASS and verdict.reason
            if (reading := result.reading(verdict.metric)) is not None and reading.binding_strides is not None
        ]

    def failing(self, word: Word) -> list[Line]:
        """The cases of a failing word by cause, worst first; cases beyond the maximum are counted by cause."""
        findings = self._worst_findings(word)
        if self.verbose:
            return [line for finding in findings for line in self._details(finding)]
        rows = rows_of(findings, self.causes)
        lines = [line for row in rows[:MOST_CAUSES] for line in self._of_cause(row)]
        if rest := rows[MOST_CAUSES:]:
            count, names = sum(len(row.findings) for row in rest), [f"{row.name} {len(row.findings)}" for row in rest]
            lines.append(Line(f"… and {count} more {word}: {listed(names)}; all: -v or the report", "red"))
        return lines

    def _of_cause(self, row: Cause) -> list[Line]:
        """The lines of one cause; those of its case if there is only one."""
        first, *others = row.findings
        if not others and not first.cause:
            return self._details(first)
        cases = f"{first.verdict.word}  {row.title}, in {counted(len(row.findings), 'case')}: {row.change}"
        also = f"; also {listed([finding.result.case.key for finding in others])}" if others else ""
        worst = clean(f"worst:     {row.worst_text}{also}", MOST_CHARACTERS)
        nodeids = [self.typed(nodeid) for nodeid in row.nodeids]
        lines = [worst, *self._commands(first.result, nodeids, [each.result for each in row.findings])]
        return [Line(clean(cases.removesuffix(": "), MOST_CHARACTERS), "red"), *(Line(f"    {line}") for line in lines)]

    def _worst_findings(self, word: Word) -> list[Finding]:
        """One finding for every case whose worst verdict is `word`, and for each cause in a test, worst first."""
        cases = {result.case for result, worst in self.view.cases if worst is word}
        of_case: dict[tuple[Case, str], list[Finding]] = {}
        for finding in self.view.findings:
            if finding.verdict.word is word and (finding.cause or finding.result.case in cases):
                of_case.setdefault((finding.result.case, finding.cause), []).append(finding)
        return [min(findings, key=lambda each: each.result.sort_key(each.verdict)) for findings in of_case.values()]

    def _details(self, finding: Finding, *alike: Finding) -> list[Line]:
        """The lines of a case, and the names of those with the same cause."""
        result, first = finding.result, finding.verdict
        by_urgency = sorted(result.verdicts, key=result.sort_key)
        quiet = [Word.PASS, Word.UNCHANGED, Word.OLD_FAULT]  # Old faults have lines of their own.
        quiet += [] if self.verbose else [Word.UNRESOLVED, Word.NEW]
        rest = [each for each in by_urgency if each is not first and each.word not in quiet]
        first, *others = folded([first, *rest])
        cause = f"{finding.cause}: " if finding.cause else ""
        head = f"{first.word}  {result.case.key}  {cause}{one_line(first, None if self.verbose else MOST_OF_A_VALUE)}"
        commands = self._commands(result, [self.typed(result.case.nodeid)], [result])
        more = self._explanation(result, first, others)
        if not self.verbose:
            head, more = clean(head, MOST_CHARACTERS), _at_most(more, MOST_MORE - len(commands))
        return [Line(head, "red"), *(Line(f"    {line}") for line in (*more, *commands))]

    def _explanation(self, result: CaseResult, first: Verdict, others: Sequence[Verdict]) -> list[str]:
        """The cause, the case's other findings, and notes, without repetitions."""
        more = [_because(line) for line in more_lines(first)]
        shown = "\n".join([one_line(first), *more])
        for verdict in others:
            text = f"{verdict.word} {one_line(verdict)}"
            more.append(f"{verdict.word} {verdict.metric}" if verdict.reason and verdict.reason in shown else text)
            more += [_because(line) for line in more_lines(verdict)]
        shown = "\n".join([one_line(first), *more])
        return [*more, *(f"note: {note}" for note in result.all_notes if note not in shown)]

    def _commands(self, result: CaseResult, selected: Sequence[str], results: Sequence[CaseResult]) -> list[str]:
        """The commands that reproduce and compare `result`, and that accept `results`, whose tests are `selected`."""
        nodeid, by = self.typed(result.case.nodeid), command_prefix(self.report)
        commands = [f"reproduce: {reproduce_command(nodeid, by)}"]
        timed = {reading.metric for reading in result.readings if reading.timed and not reading.rival}
        if any(verdict.word is Word.SLOWER and verdict.metric in timed for verdict in result.verdicts):
            commands.append(f"compare:   {compare_command(nodeid, by)}")
        verdicts = [verdict for each in results for verdict in each.verdicts]
        open_ = {verdict.word for verdict in verdicts if verdict.storable and not self.accepted(verdict)}
        accept = accept_command(open_, selected, by)
        if accept and result.word not in (Word.WRONG, Word.BROKEN):
            commands.append(f"accept:    {accept}")
        return commands

    def undecided(self) -> list[Line]:
        """The number of times that could not be judged, the most common cause, and the next step."""
        open_ = self.view.undecided
        if not open_.findings:
            return []
        nodeids = dict.fromkeys(self.typed(finding.result.case.nodeid) for finding in open_.findings)
        why, rest = open_.cause(list(nodeids), command_prefix(self.report))
        start = "inconclusive: " if self.view.is_inconclusive else "UNRESOLVED  "
        text = f"{start}{open_}: {clean(why, MOST_CHARACTERS)}{rest}"
        return [Line(text, "yellow"), *self._names(_by_case(open_.findings))]

    def uncommitted(self) -> list[Line]:
        """The number of cases whose times are only shown, because no commit has their test yet, and the next step."""
        findings = self.view.uncommitted
        if not findings:
            return []
        why = most_common([finding.verdict.reason for finding in findings])[0].rpartition(": ")[2]
        cases = self._cases(finding.result.id for finding in findings)
        worst = max(findings, key=lambda finding: finding.verdict.ratio or 0.0)
        promise = worst.reading.promise if worst.reading is not None else 0.0
        slower = (
            f"{worst.result.case.key} {one_line(worst.verdict)}" if (worst.verdict.ratio or 0) > 1 + promise else ""
        )
        text = "; ".join(filter(None, (f"times of {cases} are shown, not judged: {why}", slower)))
        return [Line(clean(text, 2 * MOST_CHARACTERS), "yellow")]

    def unread(self) -> list[Line]:
        """Cases with other undecided verdicts: not measured, or not read."""
        times = {id(finding.verdict) for finding in self.view.undecided.findings}
        rest = [
            each for each in self.view.findings if each.verdict.word in INCONCLUSIVE and id(each.verdict) not in times
        ]
        if not rest:
            return []
        why, share = most_common([finding.verdict.reason for finding in rest])
        some = f" ({share} of {counted(len(rest), 'verdict')})" if share < len(rest) else ""
        cases = self._cases(each.result.id for each in rest)
        remove = accept_command({Word.STALE}, by=command_prefix(self.report))  # It is not cut, to be pasted.
        why = clean(why, MOST_CHARACTERS).replace("--perfguard-update=stale", remove)
        text = f"UNRESOLVED  {cases}: {why}{some}"
        return [Line(text, "yellow"), *self._names(_by_case(rest))]

    def of_word(self, word: Word) -> list[Line]:
        """The number of cases whose worst verdict is `word`, the cause, and one command for all."""
        text, with_cause = COUNTED[word]
        gone, old = word is Word.STALE, word is Word.OLD_FAULT
        about = {
            result.id: [each for each in result.verdicts if each.word is word]
            for result, worst in self.view.cases
            if worst is word or (old and any(each.word is word for each in result.verdicts))
        }
        about |= {(each.suite, each.case): [each] for each in self.report.stale if gone}
        open_ = {name: found for name, found in about.items() if not found or not all(map(self.accepted, found))}
        lines = []
        if done := len(about) - len(open_):
            what = "removed from the baselines" if gone else "recorded now, judged from the next run on"
            lines.append(Line(f"{word}  {counted(done, 'case')}: {what}", "green"))
        is_new = word is Word.NEW
        nameless = {name: found for name, found in open_.items() if is_new and not all(each.storable for each in found)}
        for group in ({name: found for name, found in open_.items() if name not in nameless}, nameless):
            reasons = [verdict.reason for verdicts in group.values() for verdict in verdicts if verdict.reason]
            why = f" ({clean(most_common(reasons)[0], MOST_CHARACTERS)})" if reasons and with_cause else ""
            accept = accept_command({word}, by=command_prefix(self.report))
            command = f"; {'remove' if gone else 'record'}: {accept}" if accept else ""
            if group is nameless:
                reason = next(iter(reasons), "")
                text, command = (NOT_AT_BASE, "") if reason == NOT_AT_BASE else (text, f", nor recorded: {reason}")
            if group:
                lines.append(Line(f"{word}  {self._cases(group)}: {text}{why}{command}", "" if old else "yellow"))
                lines += self._names([(key, each) for (_, key), found in group.items() for each in folded(found)])
        return lines

    def improved(self, most: int) -> list[Line]:
        """The most improved cases, one per line (times, then exact metrics in grey), and one command for all. Observed
        tests with one cause share a line."""
        findings = [*self._worst_findings(Word.FASTER), *self._worst_findings(Word.BETTER)]
        alike: dict[object, list[Finding]] = {}
        for each in findings:
            alike.setdefault((each.verdict.word, each.cause) if each.cause else id(each), []).append(each)
        cases = [*alike.values()]
        lines = [self._improved(*each) for each in cases[:most]]
        hidden = len(cases) - len(lines)
        open_ = {each.verdict.word for each in findings if each.verdict.storable and not self.accepted(each.verdict)}
        last_line = [f"… and {hidden} more"] if hidden else []
        last_line += [f"accept: {accept_command(open_, by=command_prefix(self.report))}"] if open_ else []
        return [*lines, Line(f"    {'; '.join(last_line)}")] if last_line else lines

    def _improved(self, first: Finding, *others: Finding) -> Line:
        name = f"{first.result.case.key}  "
        if first.cause:
            name = f"{first.cause}, in {counted(1 + len(others), 'case')} such as {name}"
        text = f"{first.verdict.word}  {name}{one_line(first.verdict)}"
        return Line(clean(text, MOST_CHARACTERS), "green" if first.verdict.word is Word.FASTER else "")

    def _cases(self, ids: Iterable[CaseId]) -> str:
        """`2 cases (a/forward, b/forward)`: few cases are named, many only counted. Under -v each has its own line.
        The suite is added if cases in several suites have the same name."""
        cases = list(dict.fromkeys(ids))
        keys = [key for _, key in cases]
        names = [key if keys.count(key) == 1 else f"{suite} {key}" for suite, key in cases[: MOST_NAMED + 1]]
        few = "" if self.verbose or len(names) > MOST_NAMED else clean(", ".join(names), MOST_CHARACTERS)
        return counted(len(cases), "case") + (f" ({few})" if few else "")

    def _names(self, verdicts: Sequence[tuple[str, Verdict]]) -> list[Line]:
        """Each case with its verdict under -v, otherwise nothing."""
        if not self.verbose:
            return []
        lines = [(name, map(str.strip, describe_verdict(verdict))) for name, verdict in verdicts]
        return [Line(f"    {name}: {'; '.join(reasons)}") for name, reasons in lines]


def _by_case(findings: Sequence[Finding]) -> list[tuple[str, Verdict]]:
    return [(finding.result.case.key, finding.verdict) for finding in findings]


def _because(line: str) -> str:
    """The line with its cause first: `because:   launches 1 -> 2; in 3 process pairs`."""
    before, because, cause_ = line.partition("because: ")
    return "; ".join(filter(None, (f"because:   {cause_}", before.strip("; ")))) if because else line


def _at_most(lines: list[str], most: int) -> list[str]:
    """At most `most` lines; the last one joins the rest."""
    kept = [*lines[: most - 1], "; ".join(lines[most - 1 :])]
    return [clean(line, MOST_CHARACTERS) for line in kept if line]
