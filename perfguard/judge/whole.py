"""The cases of one device together: what their session did to all of them is known, and fresh processes have spoken.

`pytest --perfguard` judges so at the end of a run, and whoever judges a report again does the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from perfguard.judge.ladder import judge_case
from perfguard.judge.lane import Lane
from perfguard.judge.session import CommonMode, common_modes
from perfguard.records import CaseResult, Verdict

CaseId = tuple[str, str]  # suite, case key


def judge_session(results: Sequence[CaseResult], lane: Lane) -> dict[CaseId, list[Verdict]]:
    """Every case of one session by what the session did to all of them; what only fresh processes can tell is
    SUSPECT.

    Args:
        results: as they were measured, of one device; what was not measured is left out.
    """
    modes = common_modes(results, lane)
    return {(result.case.suite, result.case.key): judge_case(result, lane, modes=modes) for result in results}


def confirm(
    suspects: Sequence[CaseResult],
    results: Sequence[CaseResult],
    lane: Lane,
    sessions: Sequence[Sequence[CaseResult]],
    count: int,
    problem: str = "",
) -> dict[CaseId, list[Verdict]]:
    """The suspects again, by what fresh processes on the same device read.

    Args:
        suspects: those of `results` that are SUSPECT without fresh processes, as they were measured.
        results: of the session that suspects them, as they were measured.
        sessions: the results of each fresh process. One that did not measure a case has no say in it.
        count: fresh processes that were asked for.
        problem: why there are fewer.
    """
    modes = common_modes(results, lane)
    known = {_id(result): result for result in results}
    named = {_id(result) for result in suspects}
    read: dict[CaseId, list[tuple[CaseResult, Mapping[str, CommonMode]]]] = {name: [] for name in named}
    for session in sessions:
        theirs = common_modes([_completed(result, known) for result in session], lane, suspects=named)
        for result in session:
            if result.readings and _id(result) in named:
                read[_id(result)].append((result, theirs))
    verdicts = {}
    for result in suspects:
        fresh = read[_id(result)]
        why = ""
        if len(fresh) < count:
            why = problem or f"only {len(fresh)} of {count} fresh processes measured it"
        verdicts[_id(result)] = judge_case(
            result,
            lane,
            [other for other, _ in fresh],
            why,
            modes=modes,
            fresh_modes=[theirs for _, theirs in fresh],
        )
    return verdicts


def _completed(result: CaseResult, known: Mapping[CaseId, CaseResult]) -> CaseResult:
    """With the exact readings that a fresh process left to the session before it: they tell which times cannot have
    moved."""
    own = {reading.metric for reading in result.readings}
    before = known[_id(result)].readings if _id(result) in known else []
    missing = [reading for reading in before if not reading.timed and reading.metric not in own]
    return replace(result, readings=[*missing, *result.readings]) if missing else result


def with_verdicts(result: CaseResult, verdicts: Sequence[Verdict]) -> CaseResult:
    """`result` with further verdicts behind its own."""
    return replace(result, verdicts=[*result.verdicts, *verdicts])


def _id(result: CaseResult) -> CaseId:
    return result.case.suite, result.case.key
