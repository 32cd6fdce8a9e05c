"""Verdicts on the run as a whole: stale entries, renamed cases, the exit status."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from perfguard.judge.lane import Lane
from perfguard.model.errors import ExitStatus
from perfguard.model.records import CaseResult, Verdict, Word
from perfguard.model.records.case import is_guarded

SIMILAR_NAMES = 0.6  # least difflib ratio of a renamed case's old and new names

_Id = tuple[str, str]  # suite, case key


def find_stale(
    lane: Lane,
    suites_collected_whole: Collection[str],
    names_collected: Mapping[str, Collection[str]],
    results: Sequence[CaseResult],
    ended: Collection[_Id],
) -> tuple[list[Verdict], list[CaseResult]]:
    """Baseline entries whose case is gone, and the new cases that look like renamed ones.

    An entry is gone if its suite was collected completely and has no test of its name, or if its test ran to its end
    and did not guard this pass or label.

    Args:
        names_collected: suite -> names of its guarded tests, deselected ones too. A test's further calls are
            named `<test>:<label>`.
        ended: suite and name of the tests that ran to their end and guarded something.

    Returns:
        A verdict on every gone entry, with its `suite` and `case`: STALE, or RENAMED if a new case has the same pass,
        the same inputs and a similar name. Then these new cases, with RENAMED in place of NEW.
    """
    gone = sorted(_gone(lane, suites_collected_whole, names_collected, results, ended))
    new = {
        (result.case.suite, result.case.key): result
        for result in results
        if any(verdict.word is Word.NEW for verdict in result.verdicts)
        and (result.case.suite, result.case.key) not in lane.remembered
    }
    renamed = _match(lane, gone, new)
    verdicts = [_verdict(old, renamed.get(old)) for old in gone]
    return verdicts, [_rename(new[now], old) for old, now in renamed.items()]


def _gone(
    lane: Lane,
    whole: Collection[str],
    names: Mapping[str, Collection[str]],
    results: Sequence[CaseResult],
    ended: Collection[_Id],
) -> list[_Id]:
    present = {(result.case.suite, result.case.key) for result in results}
    gone = []
    for suite, key in lane.remembered - present:
        collected = names.get(suite, ())
        test = test_of(key.rpartition("/")[0], collected)
        if (suite in whole and test not in collected) or (suite, test) in ended:
            gone.append((suite, key))
    return gone


def test_of(name: str, collected: Collection[str]) -> str:
    """The collected test that guards `name`: `name` itself, or the part before the label of a further call."""
    if name in collected:
        return name
    before = [name[:at] for at, letter in enumerate(name) if letter == ":"]
    return next((test for test in reversed(before) if test in collected), name)


def _match(lane: Lane, gone: Sequence[_Id], new: Mapping[_Id, CaseResult]) -> dict[_Id, _Id]:
    """Old -> new, one to one, most similar names first. In another file, only an equal name matches."""
    candidates = []
    for old in gone:
        name, _, direction = old[1].rpartition("/")
        inputs = {stored.inputs for stored in lane.stored_cases(*old)} - {""}
        for now, result in new.items():
            if result.case.direction != direction or result.inputs not in inputs:
                continue
            alike = difflib.SequenceMatcher(None, name, result.case.name, autojunk=False).ratio()
            if alike >= (SIMILAR_NAMES if now[0] == old[0] else 1.0):
                candidates.append((-alike, now[0] != old[0], old, now))
    pairs: dict[_Id, _Id] = {}
    for _, _, old, now in sorted(candidates):
        if old not in pairs and now not in pairs.values():
            pairs[old] = now
    return pairs


def _verdict(old: _Id, now: _Id | None) -> Verdict:
    suite, key = old
    if now is None:
        return Verdict(Word.STALE, reason=f"{key} of {suite}: the case is gone", suite=suite, case=key)
    reason = f"{key} of {suite}: now {now[1]}" + (f" of {now[0]}" if now[0] != suite else "")
    return Verdict(Word.RENAMED, reason=reason, suite=suite, case=key)


def _rename(result: CaseResult, old: _Id) -> CaseResult:
    suite, key = old
    was = f"was {key}" + (f" of {suite}" if suite != result.case.suite else "")
    verdicts = [
        msgspec.structs.replace(verdict, word=Word.RENAMED, reason=was) if verdict.word is Word.NEW else verdict
        for verdict in result.verdicts
    ]
    return msgspec.structs.replace(result, verdicts=verdicts)


def exit_status(
    words: Iterable[Word], strict: bool, measured: int, tests_failed: bool = False, inconclusive: bool = False
) -> ExitStatus:
    """The exit status of a run with these verdicts.

    Args:
        words: of every case and of stale entries.
        measured: number of cases with at least one reading.
        tests_failed: whether a test failed for a reason other than a verdict on its cases.
        inconclusive: whether most timed cases are undecided.
    """
    found = set(words)
    if Word.WRONG in found:
        return ExitStatus.WRONG
    if found & {Word.SLOWER, Word.CHANGED}:
        return ExitStatus.REGRESSED
    if tests_failed or Word.BROKEN in found:
        return ExitStatus.TESTS_FAILED
    if measured == 0:
        return ExitStatus.NOTHING_MEASURED
    if inconclusive or (strict and any(word.unguarded for word in found)):
        return ExitStatus.UNGUARDED
    return ExitStatus.PASSED


def count_guarded(results: Iterable[CaseResult]) -> int:
    """Number of guarded cases (`is_guarded`)."""
    return sum(1 for result in results if is_guarded(result, result.word))
