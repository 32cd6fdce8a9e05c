"""Pure functions from readings and a baseline to verdicts. Nothing here knows the name of a metric."""

from perfguard.judge.exact import describe_difference, judge_exact
from perfguard.judge.ladder import Lane, differing_versions, judge_case
from perfguard.judge.session import CommonShift, common_shifts, excuse
from perfguard.judge.suite import count_guarded, exit_status, find_stale
from perfguard.judge.timed import Family, judge_timed

__all__ = [
    "CommonShift",
    "Family",
    "Lane",
    "common_shifts",
    "count_guarded",
    "describe_difference",
    "differing_versions",
    "excuse",
    "exit_status",
    "find_stale",
    "judge_case",
    "judge_exact",
    "judge_timed",
]
