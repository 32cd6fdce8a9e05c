"""Pure functions from readings and a baseline to verdicts. Nothing here knows the name of a metric."""

from perfguard.judge.exact import describe_difference, judge_exact
from perfguard.judge.ladder import judge_case
from perfguard.judge.lane import Lane, differing_versions, timer_class
from perfguard.judge.pairs import PairVerdict, judge_pairs, judge_tracks
from perfguard.judge.session import judge_session, screen_session, with_verdicts
from perfguard.judge.suite import count_guarded, exit_status, find_stale, is_guarded, is_inconclusive, test_of
from perfguard.judge.unchanged import covered

__all__ = [
    "Lane",
    "PairVerdict",
    "count_guarded",
    "covered",
    "describe_difference",
    "differing_versions",
    "exit_status",
    "find_stale",
    "is_guarded",
    "is_inconclusive",
    "judge_case",
    "judge_exact",
    "judge_pairs",
    "judge_session",
    "judge_tracks",
    "screen_session",
    "test_of",
    "timer_class",
    "with_verdicts",
]
