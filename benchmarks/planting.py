"""The one way in which regressions are planted: an edit, the copied tree that holds it, and what a run says of it.

An edit names a file, the text before and the text after; `Expect` has the words that a run owes it. `planted_in` makes
edits in a copied tree and undoes them, and `weigh` judges the run between. The regression corpus, the known mutants of
the mutation score, the plants of several ranks and of process pairs, and foreign suites are all made of these.
"""

from __future__ import annotations

import contextlib
import enum
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, Literal

from benchmarks.checkouts import Ran
from perfguard.model.errors import ExitStatus
from perfguard.model.records import URGENCY, CaseResult, Report, Verdict, Word
from perfguard.render.words import describe_verdict

# Triton's interpreter on CPU tensors; torch operators and compiled layers on a CPU; cross-compiled without a GPU; the
# simulated GPU (clocks, sessions and queues that are under control); a GPU.
Place = Literal["I", "C", "X", "S", "G"]

Change = Callable[[Path], None]  # of the project in this folder


class NotApplied(Exception):
    """A mutant whose change found nothing to change, or was never run: an error of the corpus, not a miss."""


@dataclass(frozen=True)
class Edit:
    """Replace text that the file holds exactly once.

    Attributes:
        file: below the project, e.g. `kernels/moe/router.py`, or `test_<suite>.py`.
        behind: text that the file holds once; the first `old` behind it is replaced, where others may be in the file.
    """

    file: str
    old: str
    new: str
    behind: str = ""

    def __call__(self, root: Path) -> None:
        path = root / self.file
        text = path.read_text()
        before, _, rest = text.partition(self.behind) if self.behind else ("", "", text)
        unique, where = (self.behind, text) if self.behind and self.old in rest else (self.old, rest)
        count = where.count(unique)
        if count != 1 or self.old == self.new:
            raise NotApplied(f"{self.file}: holds {unique!r} {count} times; give text that stands there once")
        path.write_text(before + self.behind + rest.replace(self.old, self.new, 1))


@dataclass(frozen=True)
class Append:
    """Add text to the end of a module: a function that wraps another one there, and takes its name."""

    file: str
    text: str

    def __call__(self, root: Path) -> None:
        path = root / self.file
        path.write_text(f"{path.read_text()}\n\n{self.text.strip()}\n")


@dataclass(frozen=True)
class Rewrite:
    """Replace what a regular expression finds in the files of a pattern: in each of them, so many times."""

    files: str
    pattern: str
    new: str | Callable[[re.Match[str]], str]
    times: int | None = 1  # None: at least once

    def __call__(self, root: Path) -> None:
        paths = sorted(root.glob(self.files))
        if not paths:
            raise NotApplied(f"{self.files}: there is no such file")
        for path in paths:
            text, count = re.subn(self.pattern, self.new, path.read_text())
            if not count or self.times not in (None, count):
                raise NotApplied(
                    f"{path.name}: holds {self.pattern!r} {count} times, not {self.times or 'at least once'}"
                )
            path.write_text(text)


@dataclass(frozen=True)
class Listed:
    """An entry `[[mutant]]` of a TOML file: `what` it is, `file`, `before`, `after` and perhaps `behind` of its edit.
    `owed` has all of its keys: further ones say what its run has to find."""

    what: str
    edit: Edit
    owed: Mapping[str, Any]


def listed(path: Path) -> list[Listed]:
    """The entries of a file."""
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]
    return [
        Listed(each["what"], Edit(each["file"], each["before"], each["after"], each.get("behind", "")), each)
        for each in entries
    ]


@contextlib.contextmanager
def planted_in(root: Path, *edits: Edit | Append) -> Iterator[None]:
    """Make the edits, in this order, and put the files back at the end."""
    kept = {each.file: (root / each.file).read_text() for each in edits}
    try:
        for each in edits:
            each(root)
        yield
    finally:
        for file, text in kept.items():
            (root / file).write_text(text)


@dataclass(frozen=True)
class Expect:
    """What a run has to say of a mutant: all four of word, metric, cases and text, and that no other case fails.

    Attributes:
        word: the verdict, e.g. "CHANGED". One that fails must be the only one that does. Empty for a run that judges
            nothing: then status and text alone count, the text of all that it printed.
        metric: pattern of the metric that names the cause, e.g. "*.spills"; of a wrong result the output's
            name, which is empty where no single comparison shows it.
        cases: patterns of the affected cases, e.g. "dispatch[hot]/*": all that fit are, no other is. Without any, all
            that have the word are, and there has to be one.
        says: text that the cases' verdicts have to hold, as a terminal shows them.
        also: patterns of metrics that the same cause moves as well, in the same cases.
        beside: patterns of cases that the same cause harms in other ways: they may fail, by any metric.
        others: patterns of other cases -> the word that has to be said of each of them besides.
        status: of the run, where the word does not tell.
        effect: the true ratio of times, which the interval that is told has to hold, stretched from 95 % to 99.9 %.
    """

    word: str
    metric: str = "*"
    cases: tuple[str, ...] = ("*",)
    says: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    others: Mapping[str, str] = field(default_factory=dict)
    status: int | None = None
    effect: float | None = None


@dataclass(frozen=True)
class Mutant:
    """One change, and what must be said of it wherever it can be shown.

    Attributes:
        name: unique; the test's id.
        classes: of shared/regressions.md, e.g. ("K05",).
        imitates: the public issue or pull request where it was seen, and what it did there.
        suite: a file of `suites/`: the cases it is judged on.
        apply: what is changed, in this order, before the run: the working tree differs in it from its base.
        shown: for each place what must be said there.
        arguments: of pytest, beside `--perfguard`.
        given: what is changed at the base already, and committed, as what the machine does on that day.
        open: why it is not caught today; the test then asserts that it is not.
    """

    name: str
    classes: tuple[str, ...]
    imitates: str
    suite: str
    apply: tuple[Change, ...]
    shown: Mapping[Place, Expect]
    arguments: tuple[str, ...] = ()
    given: tuple[Change, ...] = ()
    open: Mapping[Place, str] = field(default_factory=dict)


def planted(  # noqa: PLR0913  # the fields of a Mutant and of its Expect
    word: str,
    classes: str,
    name: str,
    imitates: str,
    suite: str,
    place: Place,
    changes: tuple[Change, ...],
    metric: str,
    *says: str,
    cases: tuple[str, ...] = ("*",),
    also: tuple[str, ...] = (),
    beside: tuple[str, ...] = (),
    arguments: tuple[str, ...] = (),
) -> Mutant:
    """One that is shown in one place; `metric`, of what is WRONG the output, and all that follows as in `Expect`."""
    expect = Expect(word, metric, cases=cases, says=says, also=also, beside=beside)
    return Mutant(name, tuple(classes.split()), imitates, suite, changes, {place: expect}, arguments)


wrong, changed = partial(planted, "WRONG"), partial(planted, "CHANGED")


STATUS = {
    Word.WRONG: ExitStatus.WRONG,
    Word.BROKEN: ExitStatus.TESTS_FAILED,
    Word.SLOWER: ExitStatus.REGRESSED,
    Word.CHANGED: ExitStatus.REGRESSED,
}


MOST_LINES = 20  # that are told of a case


class Grade(enum.StrEnum):
    """How well a mutant was caught."""

    CAUGHT = "caught"  # word, metric, cases and text
    HALF = "half"  # the affected cases fail, but the word, the metric or the text does not name the cause
    FALSE = "false alarm"  # a case fails that is not affected
    MISSED = "missed"


@dataclass(frozen=True)
class Weighed:
    """One run's grade.

    Attributes:
        problems: what is missing for CAUGHT, each a sentence.
        told: what the affected cases' verdicts say, for tables and failing tests.
        tests: names of the affected tests.
        figure: the first line that names the cause.
        moved: whether anything that is read of the affected cases differs from what was stored, failing or not: what
            is not caught was at least run.
    """

    grade: Grade
    problems: list[str]
    told: list[str]
    tests: frozenset[str] = frozenset()
    figure: str = ""
    moved: bool = False


def weigh(expect: Expect, ran: Ran) -> Weighed:
    """`ran` against `expect`."""
    if not expect.word:
        problems = [f"output: does not say {text!r}" for text in expect.says if text not in ran.output]
        if ran.status != expect.status:
            problems.append(f"exit status: {ran.status}, not {expect.status}")
        return Weighed(Grade.MISSED if problems else Grade.CAUGHT, problems, ran.output.splitlines()[-15:])
    if ran.report is None:
        return Weighed(Grade.MISSED, [f"the run wrote no report (status {ran.status})"], ran.output.splitlines()[-15:])
    word = Word(expect.word)
    named = {result.case.key for result in ran.report.results if _verdicts(result, word)}
    affected = {result.case.key for result in ran.report.results if _fits(result.case.key, expect.cases)}
    affected = affected if expect.cases else named
    failing = {
        result.case.key
        for result in ran.report.results
        if any(each.word.fails for each in result.verdicts)
        and (result.case.key in affected or not _fits(result.case.key, expect.beside))
        and not (word is Word.WRONG and _on_a_hard_input(result) and result.case.key not in affected)
    }
    told = _told(ran.report, affected | failing, word)
    problems = _problems(expect, ran, word, affected, named, failing)
    if not problems:
        grade = Grade.CAUGHT
    elif failing - affected or (failing and not word.fails):
        grade = Grade.FALSE
    elif affected and affected <= (failing if word.fails else named):
        grade = Grade.HALF
    else:
        grade = Grade.MISSED
    hit = [result for result in ran.report.results if result.case.key in affected]
    verdicts = [each for result in hit for each in _verdicts(result, word) if _fits(each.metric, (expect.metric,))]
    tests = frozenset(result.case.nodeid.partition("::")[2] for result in hit)
    moved = any(each.word is not Word.PASS or each.reason for result in hit for each in result.verdicts)
    return Weighed(grade, problems, told, tests, _figure(_lines(verdicts)), moved)


def _figure(lines: list[str]) -> str:
    """The first line, or the one behind it where that says more than the word."""
    return next((line.strip() for line in lines[:2] if ": " in line), lines[0] if lines else "")


def _problems(
    expect: Expect, ran: Ran, word: Word, affected: set[str], named: set[str], failing: set[str]
) -> list[str]:
    assert ran.report is not None
    problems = []
    if not affected:
        problems.append(f"cases: none is {' or '.join(expect.cases) or word}")
    if word.fails and failing != affected:
        problems += [f"{key}: fails, though nothing was done to it" for key in sorted(failing - affected)]
        problems += [f"{key}: does not fail" for key in sorted(affected - failing)]
    if not word.fails and failing:
        problems += [f"{key}: fails, where it should be {word}" for key in sorted(failing)]
    problems += [f"{key}: is not {word}" for key in sorted(affected - named)]
    for pattern, other in expect.others.items():
        words = [{each.word for each in result.verdicts} for result in ran.report.results if _is(result, pattern)]
        if not words or any(other not in found for found in words):
            problems.append(f"{pattern}: is not {other}")
    said = ""
    for result in ran.report.results:
        if result.case.key not in affected:
            continue
        verdicts = _verdicts(result, word)
        said += "\n".join([result.case.key, *_lines(verdicts), *result.notes]) + "\n"
        problems += [
            f"{result.case.key}: told {verdict.interval}, the truth is {expect.effect}"
            for verdict in verdicts
            if expect.effect and not _holds(verdict.interval, expect.effect)
        ]
        metrics = {verdict.metric for verdict in verdicts}
        if verdicts and not any(_fits(metric, (expect.metric,)) for metric in metrics):
            problems.append(f"{result.case.key}: {word} names {sorted(metrics)}, not {expect.metric!r}")
        others = {
            f"{verdict.word} {verdict.metric}"
            for verdict in result.verdicts
            if verdict.word.fails and not _fits(verdict.metric, (expect.metric, *expect.also))
        }
        problems += [f"{result.case.key}: {other}, which nothing was done to" for other in sorted(others)]
    problems += [f"text: does not say {text!r}" for text in expect.says if text not in said]
    status = expect.status if expect.status is not None else STATUS.get(word, ExitStatus.PASSED)
    if ran.status != status:
        problems.append(f"exit status: {ran.status}, not {int(status)}")
    return problems


def _holds(interval: tuple[float, float] | None, effect: float) -> bool:
    """Whether an interval of 95 % speaks for the truth: one in twenty misses it, one in a thousand by so much."""
    if interval is None:
        return False
    low, high = interval
    slack = (3.29 / 1.96 - 1) * (high - low) / 2  # 99.9 % of a normal's, and 95 %
    return low - slack <= effect <= high + slack


def _on_a_hard_input(result: CaseResult) -> bool:
    """Whether a case is wrong on a derived input alone: the clean suite is right there, so this is the mutant."""
    return any(each.word is Word.WRONG and (each.reason or "").startswith("hard input") for each in result.verdicts)


def _verdicts(result: CaseResult, word: Word) -> list[Verdict]:
    return [verdict for verdict in result.verdicts if verdict.word is word]


def _is(result: CaseResult, pattern: str) -> bool:
    return _fits(result.case.key, (pattern,))


def _fits(text: str, patterns: Sequence[str]) -> bool:
    # Names of cases hold brackets, which a pattern would take for a set of letters.
    return any(fnmatchcase(text, pattern.replace("[", "[[]")) for pattern in patterns)


def _lines(verdicts: Sequence[Verdict]) -> list[str]:
    return [line for verdict in verdicts for line in describe_verdict(verdict)]


def failing(report: Report | None) -> list[tuple[str, Verdict]]:
    """The verdicts that fail, each with the key of its case, the worst first."""
    results = report.results if report else ()
    found = [(result.case.key, each) for result in results for each in result.verdicts if each.word.fails]
    return sorted(found, key=lambda each: URGENCY[each[1].word])


def _told(report: Report, keys: set[str], word: Word) -> list[str]:
    lines = []
    for result in report.results:
        verdicts = [each for each in result.verdicts if each.word.fails or each.word is word]
        if result.case.key in keys and verdicts:
            told = _lines(verdicts)
            more = [f"and {len(told) - MOST_LINES} lines more"] if len(told) > MOST_LINES else []
            lines += [result.case.key, *(f"  {line}" for line in [*told[:MOST_LINES], *more])]
    return lines
