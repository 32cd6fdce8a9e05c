"""The questions that a run asks its base commits at its end. Records screen readings; only the base makes them fail.

A run asks about times in question, faults beside the given inputs, metrics without a comparable record, kernels whose
code differs from the recorded one, and the cause of each metric that is worse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from perfguard.judge.case_verdicts import is_doubtful
from perfguard.judge.lane import Lane
from perfguard.judge.screen import has_other_code
from perfguard.model.records import (
    CaseId,
    CaseResult,
    Doubt,
    ReadingId,
    Verdict,
    Word,
)


@dataclass
class Question:
    """The question to one base commit.

    Attributes:
        cases: this run's results of the cases that the base has to read.
        times: the times in question.
        code: the cases whose kernels are not those of the record.
    """

    cases: dict[CaseId, CaseResult] = field(default_factory=dict)
    times: dict[ReadingId, Verdict] = field(default_factory=dict)
    code: set[CaseId] = field(default_factory=set)

    def is_timed(self, case: CaseId) -> bool:
        """Whether a time of the case is in question."""
        return any(track.case == case for track in self.times)

    @property
    def size(self) -> int:
        """The number of cases and times: the base with the largest number is asked first."""
        return len(self.cases) + len(self.times)

    @property
    def doubts(self) -> dict[str, dict[str, list[Doubt]]]:
        """Suite -> name of a case without its pass -> faults that the given inputs do not show."""
        by_suite: dict[str, dict[str, list[Doubt]]] = {}
        for result in self.cases.values():
            if result.doubts:
                by_suite.setdefault(result.case.suite, {}).setdefault(result.case.name, []).extend(result.doubts)
        return by_suite


def questions(
    results: Sequence[CaseResult], verdicts: Mapping[CaseId, Sequence[Verdict]], lane: Lane
) -> dict[str, Question]:
    """Base commit -> the question to it, the largest first.

    Args:
        verdicts: the verdicts by the record (`screen_session`).
    """
    by_commit: dict[str, Question] = {}
    for result in results:
        base = lane.base_of(*result.id)
        if base.commit is None or base.equal:
            continue
        times = [each for each in verdicts[result.id] if each.word is Word.SUSPECT and each.metric]
        other = has_other_code(result, lane)
        if times or other or result.doubts or any(_asks(result, each) for each in verdicts[result.id]):
            question = by_commit.setdefault(base.commit, Question())
            question.cases[result.id] = result
            question.times |= {ReadingId(*result.id, each.metric): each for each in times}
            if other:
                question.code.add(result.id)
    return dict(sorted(by_commit.items(), key=lambda item: -item[1].size))


def _asks(result: CaseResult, verdict: Verdict) -> bool:
    reading = result.reading(verdict.metric)
    exact = reading is not None and not reading.timed and reading.gated and result.ranks == 1
    return exact and is_doubtful(verdict)
