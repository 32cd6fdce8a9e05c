"""Messages of an update: the changes that it writes and leaves, and verdicts on times that it records."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from statistics import median

import msgspec

from perfguard.model.records import CaseId, CaseResult, TimedEntry, Verdict, Word
from perfguard.model.records.baseline import MIN_SESSIONS, UNSTABLE
from perfguard.model.records.change import Change
from perfguard.model.units import counted, format_value

MOST_LINES = 8  # The most lines of one kind, unless the output is verbose.


def describe_changes(changes: Sequence[Change], verbose: bool = False) -> list[str]:
    """The changes that the update writes. A new case takes one line, a changed case one line for each metric. If many
    cases are new, each suite takes one line."""
    new = [change for change in changes if change.before is None and change.after is not None]
    lines = _cases(new)
    if len(lines) > MOST_LINES and not verbose:
        lines = _at_most([*_suites(new), "each new case: -v"], verbose)
    unstable = [change for change in changes if change.after == UNSTABLE]
    if unstable:
        facts, tests = counted(len(unstable), "fact"), counted(len({each.key for each in unstable}), "test")
        named = ", ".join(f"{each.metric} of {each.key}" for each in unstable[:MOST_LINES])
        more = "" if len(unstable) <= MOST_LINES or verbose else ", …"
        lines.append(
            f"{facts} of {tests}, not the same in all processes: stored as {UNSTABLE}, never gated: {named}{more}"
        )
    known = [change for change in changes if change.before is not None or change.after is None]
    joined = [change for change in known if change.adds_session and not change.note]
    if joined and not verbose:
        lines.append(f"new: {_of_cases(joined)}: another session")
        known = [change for change in known if not change.adds_session or change.note]
    lines += _at_most([change.describe() for change in known], verbose)
    young = [each for each in changes if isinstance(each.after, TimedEntry) and len(each.after.sessions) < MIN_SESSIONS]
    if young:
        lines.append(f"{_of_cases(young)}: a record screens from {MIN_SESSIONS} sessions on, each update adds one")
    return lines


def _of_cases(changes: Sequence[Change]) -> str:
    cases = {(change.suite, change.key) for change in changes}
    return f"{counted(len(changes), 'time')} of {counted(len(cases), 'case')}"


def describe_left(left: Sequence[tuple[Change, str]], verbose: bool = False) -> list[str]:
    """The changes that the update does not write, with reasons. If there are many, each reason takes one line."""
    lines = [f"{change.describe(left=True)}; {why}" for change, why in left]
    if len(lines) > MOST_LINES and not verbose:
        reasons: dict[str, list[str]] = {}
        for line, (_, why) in zip(lines, left, strict=True):
            reasons.setdefault(why, []).append(line)
        lines = [group[0] if len(group) == 1 else f"{len(group)} changes: {why}" for why, group in reasons.items()]
    return _at_most(lines, verbose)


def _cases(new: Sequence[Change]) -> list[str]:
    metrics_by_case: dict[str, list[str]] = {}
    for change in new:
        value = change.after
        number = value.sessions[-1] if isinstance(value, TimedEntry) else value
        shown = "" if isinstance(number, str | list | dict) or number is None else format_value(number, change.unit)
        note = f"({change.note})" if change.note else ""
        name = f"{change.category}: {change.folder} {change.suite} {change.key}"
        metrics_by_case.setdefault(name, []).append(" ".join(filter(None, (change.metric, shown, note))))
    return [f"{name}: {', '.join(metrics)}" for name, metrics in metrics_by_case.items()]


def _suites(new: Sequence[Change]) -> list[str]:
    """`new: cpu tests.moe: 40 cases, 520 values`."""
    cases: dict[str, list[str]] = {}
    for change in new:
        cases.setdefault(f"{change.category}: {change.folder} {change.suite}", []).append(change.key)
    return [f"{name}: {counted(len(set(keys)), 'case')}, {counted(len(keys), 'value')}" for name, keys in cases.items()]


def _at_most(lines: Sequence[str], verbose: bool) -> list[str]:
    if verbose or len(lines) <= MOST_LINES:
        return list(lines)
    return [*lines[: MOST_LINES - 1], f"… and {len(lines) - MOST_LINES + 1:,} more; all: -v"]


def mark_recorded(results: dict[CaseId, CaseResult], planned: Sequence[Change], held: Collection[CaseId]) -> None:
    """Set the verdicts on recorded times, which follow from the records instead of a comparison with the base.

    Args:
        held: the cases that the update left out.
    """
    change_of = {(change.suite, change.key, change.metric): change for change in planned}
    for name, result in results.items():
        if name in held:
            continue
        verdicts = [_recorded(each, change_of.get((*name, each.metric))) for each in result.verdicts]
        results[name] = msgspec.structs.replace(result, verdicts=verdicts)


def _recorded(verdict: Verdict, change: Change | None) -> Verdict:
    unpaired = verdict.word is Word.UNRESOLVED and verdict.reason.startswith("UNPAIRED")
    # If code is committed before it is recorded, the tree equals its base, and only growth over the anchor is visible.
    if change is not None and change.needs_reason and (unpaired or verdict.word is Word.UNCHANGED):
        return _grown(verdict, change)
    if not unpaired:
        return verdict
    if change is None:
        return msgspec.structs.replace(verdict, word=Word.PASS, reason="as recorded")
    word = Word.FASTER if change.category == "faster" else Word.PASS
    reason = "joins its record" if change.adds_session else "recorded anew"
    return msgspec.structs.replace(verdict, word=word, reason=reason)


def _grown(verdict: Verdict, change: Change) -> Verdict:
    """The verdict SLOWER with the levels of the two records, from which the reading of this process may differ."""
    levels = [median(entry.sessions) for entry in (change.before, change.after) if isinstance(entry, TimedEntry)]
    if len(levels) == 2:
        verdict = msgspec.structs.replace(verdict, before=levels[0], after=levels[1], ratio=levels[1] / levels[0])
    return msgspec.structs.replace(verdict, word=Word.SLOWER, reason=change.grown)
