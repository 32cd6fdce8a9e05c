"""Pure functions from readings and a baseline to verdicts. Nothing here knows the name of a metric."""

from perfguard.judge.common import Common, Recording
from perfguard.judge.exact import describe_difference, judge_exact
from perfguard.judge.ladder import judge_case
from perfguard.judge.lane import Lane, differing_versions, timer_class
from perfguard.judge.pairs import PairVerdict, judge_pairs, learn_pairs
from perfguard.judge.session import CommonMode, common_modes
from perfguard.judge.suite import count_guarded, exit_status, find_stale
from perfguard.judge.timed import Family, judge_timed
from perfguard.judge.unchanged import covered
from perfguard.judge.whole import confirm, judge_session, with_verdicts

__all__ = [
    "Common",
    "CommonMode",
    "Family",
    "Lane",
    "PairVerdict",
    "Recording",
    "common_modes",
    "confirm",
    "count_guarded",
    "covered",
    "describe_difference",
    "differing_versions",
    "exit_status",
    "find_stale",
    "judge_case",
    "judge_exact",
    "judge_pairs",
    "judge_session",
    "judge_timed",
    "learn_pairs",
    "timer_class",
    "with_verdicts",
]
