"""Runs in simulated and in resampled real worlds, judged by the judge's own functions from screen to process pairs.

    python -m tests.judge.simulation [--suites 24] [--seed 1] [--jobs 2] [--json docs/judging-rates.json]
    python -m tests.judge.simulation --write

The first runs all worlds and writes what it counted; the second puts its tables into docs/judging-rates.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np

from perfguard.judge.lane import Lane
from perfguard.judge.pair_test import MOST_PAIRS
from perfguard.model.records import Toolchain
from tests.judge import real, tables
from tests.judge.runs import BASE, HARDWARE, Counts, count, judge, seeded
from tests.judge.worlds import (
    HARD,
    NOISES,
    PLACES,
    Suite,
    Truth,
    World,
    baseline_of,
    draw_cases,
    pair_readings,
    place_levels,
    results_of,
    stored_noise,
)

ROOT = Path(__file__).resolve().parents[2]
RATES, DOCUMENT = ROOT / "docs" / "judging-rates.json", ROOT / "docs" / "judging-rates.md"
SIZES, CONTROLS, STORED = (1, 3, 8, 50, 200), (0, 20), (5, 8)
SUITES = [Suite(cases, controls, stored) for cases in SIZES for controls in CONTROLS for stored in STORED]
EFFECTS = (0.01, 0.02, 0.03, 0.05, 0.10, 0.25)
KINDS = ("five", "tenth", "half", "all")
TRUTHS = [Truth(kind, effect) for kind in KINDS for effect in EFFECTS] + [Truth("mixed", 0.03), Truth("power", 0.04)]
LARGE = 200  # suites of so many cases are drawn a third as often, since they take as long as all others together
SMALL = 8  # suites of more cases are drawn a quarter as often where power is asked
# Where noise is hard: changed cases, and how often a suite of so many is drawn.
HARD_SIZES = {1: 12.0, 3: 10.0, 8: 10.0, 20: 2.0, 50: 1.0, 200: 1 / 6, 1000: 1 / 24}
HARD_PLACE = "other board 0.4 %"  # where no record passes a time
SLOWED = [suite for suite in SUITES if (suite.controls, suite.stored) in ((0, 5), (20, 8))]  # where power is asked


def simulate(world: World, suite: Suite, truth: Truth, random: np.random.Generator) -> Counts | None:
    """Draw one run and judge it; None where a suite of that size has no such truth."""
    changed = truth.levels(suite.cases)
    if changed is None:
        return None
    levels = np.concatenate([np.zeros(suite.controls), changed])
    cases = draw_cases(world, levels.size, random)
    baseline = baseline_of(stored_noise(world, cases, suite.stored, random), suite.controls)
    now = stored_noise(world, cases, 1, random)[0] + place_levels(world, levels.size, random) + levels
    results = results_of(now, suite.controls, world.board)
    lane = Lane(HARDWARE, Toolchain(), [baseline], base=BASE)
    readings = pair_readings(world, cases, levels, truth, random)
    processes = {result.id: read for result, read in zip(results, readings, strict=True)}
    verdicts, taken = judge(results, lane, processes)
    judged = [verdicts[result.id] for result in results[suite.controls :]]
    return count(changed.tolist(), judged, taken.values())


def run_world(world: World, suites: int, seed: int) -> list[dict[str, object]]:
    """All truths of one world; a row for each truth and suite. `suites` of each kind where nothing moved."""
    rows: list[dict[str, object]] = []
    if world.noise in HARD:
        for size, often in HARD_SIZES.items():
            suite, counts = Suite(size, 0, STORED[0]), Counts()
            random = seeded(seed, world, suite, Truth())
            for _ in range(max(round(often * suites), 1)):
                if (found := simulate(world, suite, Truth(), random)) is not None:
                    counts.add(found)
            rows.append({**asdict(world), **asdict(Truth()), **asdict(suite), **asdict(counts)})
        return rows
    for truth in [Truth(), *TRUTHS]:
        still = truth.kind == "nothing"
        for suite in SUITES if still else SLOWED:
            random, counts = seeded(seed, world, suite, truth), Counts()
            often = suites if still else suites // 5 if suite.cases <= SMALL else suites // 20
            for _ in range(max(often // (3 if suite.cases == LARGE else 1), 1)):
                found = simulate(world, suite, truth, random)
                if found is not None:
                    counts.add(found)
            if counts.suites:
                rows.append({**asdict(world), **asdict(truth), **asdict(suite), **asdict(counts)})
    return rows


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.judge.simulation")
    parser.add_argument("--suites", type=int, default=24, help="of each size, controls and K, where nothing moved")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--noise", choices=[*HARD, *NOISES], action="append", help="only these")
    parser.add_argument("--place", choices=PLACES, action="append", help="only these")
    parser.add_argument("--json", type=Path, default=RATES)
    parser.add_argument("--extract", action="store_true", help=f"write {real.DATA.name} from git's history, no more")
    parser.add_argument("--write", action="store_true", help=f"put the tables into docs/{DOCUMENT.name}, no more")
    options = parser.parse_args(arguments)
    if options.extract:
        real.extract()
        return
    if options.write:
        text, data = DOCUMENT.read_text(encoding="utf-8"), json.loads(options.json.read_bytes())
        DOCUMENT.write_text(tables.filled(text, data, options.json.name), encoding="utf-8")
        return
    worlds = [
        World(noise, place)
        for noise in options.noise or [*HARD, *NOISES]
        for place in ([HARD_PLACE] if noise in HARD else options.place or PLACES)
    ]
    rows: list[dict[str, object]] = []
    with ProcessPoolExecutor(options.jobs) as pool:
        for world, found in zip(
            worlds, pool.map(partial(run_world, suites=options.suites, seed=options.seed), worlds), strict=True
        ):
            rows += found
            [null] = tables.pooled((row for row in found if row["kind"] == "nothing"), ["kind"])
            print(f"{world.noise}, {world.place}: {tables.summary(null)}", flush=True)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    written = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": commit.strip(),
        "command": " ".join(["python -m tests.judge.simulation", *arguments]),
        "most_pairs": MOST_PAIRS,
        "worlds": tables.pooled(
            (row for row in rows if row["noise"] not in HARD), ["noise", "place", "kind", "effect"]
        ),
        "suites": tables.pooled(
            (row for row in rows if row["noise"] not in HARD), ["kind", "effect", "cases", "controls", "stored"]
        ),
        "hard": tables.pooled((row for row in rows if row["noise"] in HARD), ["noise", "cases"]),
        "real": real.run(options.suites, options.seed),
    }
    options.json.write_text(tables.dumped(written), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
