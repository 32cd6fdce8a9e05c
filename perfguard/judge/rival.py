"""A time beside that of what the candidate has to beat: read by turns, judged without a baseline (docs/judging.md)."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

import msgspec

from perfguard.judge.statistics import MISS_ERROR, UNLEARNT, History, Noise
from perfguard.judge.timed import MOST_REJECTED, Family, TimeJudgement
from perfguard.records import Reading, Verdict, Word

_KNOWN = sys.maxsize  # sessions that the centre rests on: the rival's time is no estimate from earlier ones


def judge_rival(reading: Reading, family: Family, fresh: Sequence[Reading] = (), fresh_problem: str = "") -> Verdict:
    """Whether the candidate is slower than its rival.

    Only the ratio of the two counts, whose noise is no less than that of a time without a history. The ladder's first
    rung is the same: what is slower in every block is SUSPECT, and SLOWER once fresh processes agree.

    Args:
        reading: with a rival.
        fresh: the same reading in fresh processes. None of them, without a problem: a slower one is SUSPECT.
        fresh_problem: why fresh processes could not be run.
    """
    return msgspec.structs.replace(_judge(reading, family, fresh, fresh_problem), storable=False)


def _judge(reading: Reading, family: Family, fresh: Sequence[Reading], fresh_problem: str) -> Verdict:
    degrees = UNLEARNT.degrees + max(0, len(reading.blocks) - 1)  # the blocks tell the spread
    noise = Noise(math.hypot(UNLEARNT.sigma, reading.spread), degrees, _KNOWN)
    centre = History(math.log(reading.rival), 0.0, _KNOWN)
    beside = TimeJudgement(reading, centre, family, noise, [0.0] * max(1, len(fresh)), ())
    shift = math.log(_time(reading) / reading.rival)
    if reading.rejected_blocks >= MOST_REJECTED:
        reason = f"ENV: {reading.rejected_blocks} blocks rejected; look at clocks and other processes, then run again"
        return beside.verdict(Word.UNRESOLVED, reason, shift)
    if shift < 0 or not beside.suspects(shift, 0.0):
        excluded = shift + noise.quantile(MISS_ERROR) * noise.standard_error(1) < reading.promise
        return beside.verdict(Word.PASS, "", shift) if excluded else beside.pass_or_noisy(shift)
    if not fresh and not fresh_problem:
        return beside.verdict(Word.SUSPECT, "slower than its rival in one session", shift)
    if len(fresh) < family.confirmations:
        problem = fresh_problem or f"{len(fresh)} of {family.confirmations} fresh processes read it"
        return beside.verdict(Word.UNRESOLVED, f"UNCONFIRMED: slower than its rival in one session; {problem}", shift)
    # Each session has timed the rival anew: what the fresh ones read is put beside this one's.
    found = beside.confirm(shift, [reading.rival * _time(each) / each.rival for each in fresh])
    more = f"; {reading.note}" if reading.note and found.word is Word.SLOWER else ""
    return msgspec.structs.replace(found, reason=f"than its rival: {found.reason}{more}")


def _time(reading: Reading) -> float:
    assert isinstance(reading.value, int | float)
    return float(reading.value)
