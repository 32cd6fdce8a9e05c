"""Recordings of one suite again and again, each of other code: how much growth asks for a reason, and how soon.

`python -m tests.store.creep` makes the table of docs/baselines.md; about three minutes.
"""

from __future__ import annotations

import math
import random
import tempfile
from pathlib import Path
from statistics import median

from msgspec.structs import replace

from perfguard.judge.update_plan import plan
from perfguard.model.config import CATEGORIES
from perfguard.model.records import Better, Case, CaseResult, Hardware, Provenance, Reading, Verdict, Word
from perfguard.model.records.change import select
from perfguard.model.units import Unit
from perfguard.store.baseline_files import Store, apply
from tests.store import lane_of

SLUG, SUITE, TIME = "nvidia-h200", "fp8", "device_time_us"
GPU = Hardware(slug=SLUG, vendor="nvidia", name="NVIDIA H200", architecture="sm_90")
READING = Reading(TIME, Unit.MICROSECONDS, 50.0, timer="graph")


def read(number: int, us: float, day: int) -> CaseResult:
    """A judged case whose code is another one every day."""
    code = Reading("fingerprint", Unit.TEXT, f"code {day}", Better.SAME, gated=False, covers=[TIME])
    case = Case(SUITE, f"case{number}", "forward")
    word = Verdict(Word.PASS if day else Word.NEW, "fingerprint", before=f"code {day - 1}", after=f"code {day}")
    return CaseResult(case, "bf16", readings=[code, replace(READING, value=us)], verdicts=[word])


def record(store: Store, cases: dict[int, float], day: int, reason: str = "", board: str | None = None) -> set[str]:
    """Record what was read of every case, µs, by the real planner; answers the cases that ask for a reason."""
    results = [read(number, us, day) for number, us in cases.items()]
    now = Provenance(board=board, commit=f"{day:07}", recorded=f"2026-11-{day + 1:02}")
    changes = plan(lane_of(store, GPU, now), results, {}, [], now)
    asking = {change.key for change in changes if change.needs_reason}
    chosen, left = select(changes, CATEGORIES, reason)
    assert {change.key for change, _ in left} == (set() if reason else asking)
    apply(store, chosen, now, reason)
    return asking


def recording(draw: random.Random, level: float) -> float:
    """What a process reads, µs: it scatters by 0.2 % round `level` (a logarithm) as a board reads it, and a board moves
    every case by Student t with 2 degrees, MAD 0.2 %."""
    here = level + 0.002 / 0.8165 * draw.gauss(0, 1) / math.sqrt(draw.expovariate(1))
    return math.exp(draw.gauss(here, 0.002))


def simulated(store: Store, cases: int, days: int, step: float, seed: int, *, named: bool = True) -> dict[str, int]:
    """Case -> the first recording that asks, each of them on another board.

    Args:
        step: true growth from one recording to the next, a logarithm.
        named: the records tell the boards apart; else all of them say the same one.
    """
    draw = random.Random(seed)
    first: dict[str, int] = {}
    for day in range(days + 1):
        level = math.log(50.0) + step * day
        cases_left = [number for number in range(cases) if f"case{number}/forward" not in first]
        given = {number: recording(draw, level) for number in cases_left}
        for key in record(store, given, day, board=f"board {day if named else 0}"):
            first.setdefault(key, day)
    return first


def main() -> None:
    worlds = (
        ("no growth", 2000, 20, 0.0, True),
        ("no growth, one recording proves", 2000, 20, 0.0, False),
        ("+0.8 % a recording", 500, 10, math.log(1.008), True),
        ("+0.4 % a recording", 500, 14, math.log(1.004), True),
    )
    for seed, (name, cases, days, step, named) in enumerate(worlds, 3):
        with tempfile.TemporaryDirectory() as folder:
            first = simulated(Store(Path(folder)), cases, days, step, seed, named=named)
        when = sorted(first.values())
        middle = [when[int(len(when) * share)] for share in (0.05, 0.95)]
        print(
            f"{name}: {len(first) / cases:.2%} of {cases} cases ask within {days} recordings; of these the median "
            f"at recording {median(when):g}, nine of ten from {middle[0]} to {middle[1]}"
        )


if __name__ == "__main__":
    main()
