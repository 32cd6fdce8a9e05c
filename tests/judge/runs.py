"""A run as perfguard makes one: screened, its times in question paired as the engine pairs them, judged and counted."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from perfguard.judge.lane import Lane
from perfguard.judge.pair_test import judge_paired
from perfguard.judge.run_verdicts import count_suspects, judge_session, paired_readings_of, screen_session
from perfguard.model.records import (
    BaseTree,
    CaseId,
    CaseResult,
    Hardware,
    PairedCase,
    PairedTime,
    Pairing,
    PairReading,
    Verdict,
    Word,
)

HARDWARE = Hardware(slug="here", vendor="fake", name="Here", architecture="x1")
BASE = BaseTree(commit="0" * 40)


@dataclass
class Counts:
    """What was counted over suites: cases are changed ones, `level` ones those whose time did not move."""

    suites: int = 0
    false_slower: int = 0  # suites with a SLOWER among their level cases
    false_faster: int = 0
    level: int = 0
    level_undecided: int = 0
    slow: int = 0
    slow_found: int = 0
    slow_undecided: int = 0
    slow_faster: int = 0
    fast: int = 0
    fast_found: int = 0
    cycles_said: int = 0  # slower ones whose reason tells the cycles
    paired: int = 0  # cases in question
    case_pairs: int = 0  # process pairs, summed over the cases
    suite_pairs: int = 0  # process pairs, of each suite the most that a case of it took

    def add(self, other: Counts) -> None:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


def measure(
    results: Sequence[CaseResult], lane: Lane, processes: Mapping[CaseId, Sequence[PairReading]]
) -> dict[CaseId, PairedCase]:
    """The cases in question beside their base, as the engine pairs them: one more pair for what is undecided.

    What is decided is asked no more, so one call with all pairs finds after which of them each was.
    """
    screened = screen_session(results, lane)
    asked = {each.id: each for each in results if any(v.word is Word.SUSPECT for v in screened[each.id])}
    tracks = {
        name: paired_readings_of(result, PairedTime("span", "clock", list(processes[name])))
        for name, result in asked.items()
    }
    known = {name: track for name, track in tracks.items() if track is not None}
    found = judge_paired(known, count_suspects(screened))
    return {
        name: PairedCase(*name, times=[PairedTime("span", "clock", list(processes[name][: verdict.pairs]))])
        for name, verdict in found.items()
    }


def judge(
    results: Sequence[CaseResult], lane: Lane, processes: Mapping[CaseId, Sequence[PairReading]]
) -> tuple[dict[CaseId, Verdict], dict[CaseId, int]]:
    """The final verdict on each case's time, and how many process pairs it took."""
    paired = measure(results, lane, processes)
    taken = {name: len(case.times[0].readings) for name, case in paired.items()}
    pairing = Pairing(BASE.commit or "", list(paired.values()), max(taken.values(), default=0))
    final = judge_session(results, lane, [pairing])
    return {name: next(v for v in found if v.metric == "span") for name, found in final.items()}, taken


def count(levels: Sequence[float], verdicts: Sequence[Verdict], pairs: Iterable[int]) -> Counts:
    """One suite's counts, from what the code did to each changed case and what was said of it."""
    counts, taken = Counts(suites=1), list(pairs)
    for level, verdict in zip(levels, verdicts, strict=True):
        word = verdict.word
        if level > 0:
            counts.slow += 1
            counts.slow_found += word is Word.SLOWER
            counts.slow_undecided += word is Word.UNRESOLVED
            counts.slow_faster += word is Word.FASTER
            counts.cycles_said += word is Word.SLOWER and "in cycles" in verdict.reason
        elif level < 0:
            counts.fast += 1
            counts.fast_found += word is Word.FASTER
            counts.false_slower |= word is Word.SLOWER
        else:
            counts.level += 1
            counts.level_undecided += word is Word.UNRESOLVED
            counts.false_slower |= word is Word.SLOWER
            counts.false_faster |= word is Word.FASTER
    counts.paired, counts.case_pairs, counts.suite_pairs = len(taken), sum(taken), max(taken, default=0)
    return counts


def seeded(seed: int, *names: object) -> np.random.Generator:
    """A stream of its own for each of the named, the same in every run."""
    return np.random.default_rng([seed, zlib.crc32(repr(names).encode())])
