"""Real sessions: what git's history of `baselines/nvidia-h200` holds, resampled as runs on other boards and days.

A recording is one suite on one board on one day: five to fourteen fresh processes of every case. Its process values
stand for the processes of a run: one is the run's own, three others each process pair (base, second checkout of the
base, working tree), the same processes for all cases, drawn with replacement. Of another recording of the same cases
come the stored sessions.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import yaml

from perfguard.judge.lane import Lane
from perfguard.judge.pair_test import MOST_PAIRS
from perfguard.model.records import (
    Baseline,
    Case,
    CaseBaseline,
    CaseResult,
    Conditions,
    PairReading,
    Provenance,
    Reading,
    TimedEntry,
    Toolchain,
)
from perfguard.model.units import Unit
from tests.judge.runs import BASE, HARDWARE, Counts, count, judge, seeded
from tests.judge.worlds import Random

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(__file__).parent / "data" / "h200-sessions.json"
FOLDER = "baselines/nvidia-h200"
METRIC = "device_time_us"
CHANGED, CONTROLS = 5, 20
STORED = 5  # sessions of a recording that was made at once, and of one on the run's own board
EFFECTS = (0.0, 0.02, 0.03, 0.05)


@dataclass(frozen=True)
class Recording:
    """One suite's device times of one board and day: case -> (timer, session values in µs)."""

    commit: str
    suite: str
    board: str | None
    times: dict[str, tuple[str, list[float]]]

    @cached_property
    def processes(self) -> int:
        """Processes that read every one of its cases."""
        return min((len(values) for _, values in self.times.values()), default=0)


def extract() -> None:
    """Write DATA: every recording that git's history holds, by the commit that brought it."""
    found, seen = {}, set()
    commits = _git("log", "--reverse", "--format=%h", "--abbrev=12", "--", FOLDER).split()
    for commit in commits:
        for path in _git("diff-tree", "--no-commit-id", "--name-only", "-r", commit, "--", FOLDER).split():
            document = yaml.safe_load(_git("show", f"{commit}:{path}"))
            recordings: dict[str | None, dict[str, object]] = {}
            for key, case in document["cases"].items():
                time = case.get(METRIC)
                if time is None or len(time["sessions"]) < STORED or str((path, key, time)) in seen:
                    continue
                seen.add(str((path, key, time)))
                board = case.get("provenance", document["provenance"]).get("board")
                recordings.setdefault(board, {})[key] = [time["timer"], time["sessions"]]
            for board, times in recordings.items():
                found[f"{commit} {Path(path).stem} {board or 'unknown'}"] = times
    DATA.parent.mkdir(exist_ok=True)
    lines = [f" {json.dumps(name)}: {json.dumps(times, separators=(',', ':'))}" for name, times in found.items()]
    DATA.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def load() -> list[Recording]:
    """All recordings, in the order of history."""
    recordings = []
    for name, times in json.loads(DATA.read_bytes()).items():
        commit, suite, board = name.split()
        held = {key: (timer, values) for key, (timer, values) in times.items()}
        recordings.append(Recording(commit, suite, None if board == "unknown" else board, held))
    return recordings


def settings(recordings: list[Recording]) -> Iterator[tuple[str, Recording, Recording]]:
    """Where a run may be: `same board`, or `other board` with the recording that is stored and the one that is now."""
    for now in recordings:
        if len(now.times) > CHANGED and now.processes >= 2 * STORED:
            yield "same board", now, now
        for stored in recordings:
            both = set(stored.times) & set(now.times)
            if stored is not now and stored.suite == now.suite and len(both) > CHANGED:
                yield "other board", stored, now


def simulate(stored: Recording, now: Recording, effect: float, random: Random) -> Counts:
    """One run: CHANGED cases, slower by `effect`, and up to CONTROLS unchanged ones."""
    keys = random.permutation(sorted(set(stored.times) & set(now.times)))[: CHANGED + CONTROLS].tolist()
    order = random.permutation(now.processes)
    kept = order[:STORED] if stored is now else ()
    rest = order[len(kept) :]
    run = int(rest[0])
    picked = [random.choice(rest, 3, replace=False).tolist() for _ in range(MOST_PAIRS)]
    cases, results, processes = {}, [], {}
    for number, key in enumerate(keys):
        timer, values = now.times[key]
        slower = 1 + effect if number < CHANGED else 1.0
        old_timer, old = stored.times[key]
        sessions = [old[index] for index in kept] if stored is now else old
        code = {"code": "same"} if number >= CHANGED else {}
        cases[key] = CaseBaseline({"span": TimedEntry(sessions, old_timer), **code}, "x")
        readings = [Reading("span", Unit.MICROSECONDS, values[run] * slower, timer=timer)]
        if code:
            readings.append(Reading("code", Unit.TEXT, "same", covers=["span"]))
        name, _, direction = key.rpartition("/")
        case = Case(now.suite, name, "backward" if direction == "backward" else "forward")
        results.append(CaseResult(case, "x", readings=readings, conditions=Conditions(board=now.board)))
        processes[results[-1].id] = [
            _reading(pair, *(values[index] for index in three), slower) for pair, three in enumerate(picked, 1)
        ]
    baseline = Baseline("here", now.suite, {"": Provenance(board=stored.board)}, cases)
    lane = Lane(HARDWARE, Toolchain(), [baseline], base=BASE)
    verdicts, taken = judge(results, lane, processes)
    judged = [verdicts[result.id] for result in results[:CHANGED]]
    return count([float(effect)] * CHANGED, judged, taken.values())


def _reading(pair: int, base: float, copy: float, work: float, slower: float) -> PairReading:
    change, control = np.log(work * slower / base), np.log(copy / base)
    return PairReading(pair, float(change), float(control), base, work * slower)


def run(suites: int, seed: int) -> list[dict[str, object]]:
    """A row for each place and effect, `suites` runs of every setting."""
    found, rows = list(settings(load())), []
    for place in ("same board", "other board"):
        for effect in EFFECTS:
            counts = Counts()
            here = [(stored, now) for where, stored, now in found if where == place]
            for number, (stored, now) in enumerate(here):
                random = seeded(seed, place, effect, number)
                for _ in range(suites):
                    counts.add(simulate(stored, now, effect, random))
            rows.append({"place": place, "effect": effect, "settings": len(here), **asdict(counts)})
    return rows
