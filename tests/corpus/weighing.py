"""What a run said of a mutant against what it has to say: caught, half caught, missed, or others accused."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from perfguard.model.errors import ExitStatus
from perfguard.model.records import CaseResult, Report, Verdict, Word
from perfguard.render.words import describe_verdict
from tests.corpus.mutant import Expect
from tests.corpus.project import Ran

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
    affected = {result.case.key for result in ran.report.results if _fits(result.case.key, expect.cases)}
    named = {result.case.key for result in ran.report.results if _verdicts(result, word)}
    failing = {
        result.case.key
        for result in ran.report.results
        if any(each.word.fails for each in result.verdicts)
        and not _fits(result.case.key, expect.beside)
        and not (word is Word.WRONG and _on_a_hard_input(result) and not _fits(result.case.key, expect.cases))
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
        problems.append(f"cases: none is called {' or '.join(expect.cases)}")
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


def _told(report: Report, keys: set[str], word: Word) -> list[str]:
    lines = []
    for result in report.results:
        verdicts = [each for each in result.verdicts if each.word.fails or each.word is word]
        if result.case.key in keys and verdicts:
            told = _lines(verdicts)
            more = [f"and {len(told) - MOST_LINES} lines more"] if len(told) > MOST_LINES else []
            lines += [result.case.key, *(f"  {line}" for line in [*told[:MOST_LINES], *more])]
    return lines
