"""Judges a time against that of a rival, measured in alternation, without a baseline (docs/judging.md)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from perfguard.judge.pair_test import judge_pairs, noisy
from perfguard.judge.screen import MOST_REJECTED
from perfguard.judge.statistics import UNLEARNT, least_effect
from perfguard.model.records import Reading, Verdict, Word

PROCESSES = 3  # fresh processes that re-measure a slower time; as many again if it stays undecided


def judge_rival(reading: Reading, fresh: Sequence[Reading] = ()) -> Verdict:
    """Judge whether the candidate is slower than its rival.

    Both were timed in alternation in one process, so each process counts as one process pair, with the same test. A
    slower time in one session is SUSPECT. Fresh processes then decide without the reading of that session.

    Args:
        reading: the time, with its rival's.
        fresh: the same reading in fresh processes.
    """
    theta = least_effect(reading.promise, reading.floor, reading.rival)
    slowdown = _slowdown(reading)
    if slowdown <= theta and not fresh:
        return _verdict(reading, Word.PASS, "", slowdown)
    read = [_slowdown(each) for each in fresh if each.rival and each.rejected_blocks < MOST_REJECTED]
    if len(read) < PROCESSES:
        seen = f"; {len(read)} of {PROCESSES} fresh processes read it" if fresh else ""
        return _verdict(reading, Word.SUSPECT, f"slower than its rival in one session{seen}", slowdown)
    found = judge_pairs(read, theta=theta, family=1, prior=UNLEARNT, most_pairs=2 * PROCESSES)
    if found.word is Word.SLOWER:
        note = f"; {reading.note}" if reading.note else ""
        return _verdict(reading, Word.SLOWER, f"than its rival: {found}{note}", found.effect, found.interval)
    if found.word in (Word.PASS, Word.FASTER) or found.effect <= theta:
        return _verdict(reading, Word.PASS, "", found.effect)
    if found.word is None:
        return _verdict(reading, Word.SUSPECT, f"than its rival, so far: {found}", found.effect)
    return _verdict(reading, Word.UNRESOLVED, f"than its rival: {noisy(found)}", found.effect)


def _verdict(
    reading: Reading, word: Word, reason: str, slowdown: float, interval: tuple[float, float] | None = None
) -> Verdict:
    return Verdict(
        word, reading.metric, reason, before=reading.rival, after=reading.value, unit=reading.unit,
        ratio=math.exp(slowdown), storable=False,
        interval=None if interval is None else (math.exp(interval[0]), math.exp(interval[1])),
    )  # fmt: skip


def _slowdown(reading: Reading) -> float:
    assert isinstance(reading.value, int | float)
    return math.log(reading.value / reading.rival)
