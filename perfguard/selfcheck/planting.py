"""Slows a real kernel down, measures it in fresh processes like any suite, and judges it like any case."""

from __future__ import annotations

import math
import random
import re
import statistics
import subprocess
import sys
from pathlib import Path

from perfguard.measure.metrics.times import HOST_TIME
from perfguard.model.atomic_files import write_atomically
from perfguard.model.config import Settings
from perfguard.model.errors import MeasurementError
from perfguard.model.records import Report, Word
from perfguard.selfcheck import delayed
from perfguard.selfcheck.delayed import PLAN, read_plan
from perfguard.selfcheck.findings import PROMISE, Planted, Rate, clustered_rate
from perfguard.selfcheck.judging import LEAST_SESSIONS, SEED, SUITE_CASES, Timed, draw_pairs, judge_run, timed_cases
from perfguard.selfcheck.sessions import Progress, gather, measure_sessions, stored_sessions
from perfguard.session.child import Request, Timers, child_command, timers_of

_SUITE = Path(delayed.__file__).with_name("test_delayed.py")


def plant(folder: Path, settings: Settings, device: str, sessions: int, *, progress: Progress) -> None:
    """Tune the delays on the device and measure them in `sessions` fresh processes; resumes after an interruption.

    The first process is a pilot that chooses the timers: all delays of one length then share one. Its readings are not
    judged.

    Raises:
        MeasurementError: a process crashed, hung or measured nothing.
    """
    project = f"[tool.pytest.ini_options]\n[tool.perfguard]\ncase_seconds = {settings.case_seconds}\n"
    write_atomically(folder / "pyproject.toml", project.encode())
    if not (folder / PLAN).is_file():
        progress("tuning the kernel's delays on the device")
        _tune(folder, settings, device)
    arguments = (str(_SUITE), "-c", str(folder / "pyproject.toml"), "--rootdir", str(folder))
    progress("measuring the kernel with its delays")
    measure_sessions(
        child_command(arguments, folder, device),
        Request(exact=False, unread=[HOST_TIME]),  # only the device time of a chain is judged
        folder,
        sessions + 1,
        minutes=settings.session_minutes,
        progress=progress,
        timers=_timers,
    )


def _tune(folder: Path, settings: Settings, device: str) -> None:
    """Let a process of its own tune, so that this one holds no device while others measure on it."""
    line = [sys.executable, "-m", "perfguard.selfcheck.delayed", str(folder), device]
    try:
        done = subprocess.run(
            line, capture_output=True, text=True, errors="replace", timeout=60 * settings.session_minutes, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise MeasurementError("selfcheck: tuning takes longer than session_minutes; close other work") from error
    if done.returncode != 0:
        last = "\n".join(f"{done.stdout}{done.stderr}".strip().splitlines()[-15:])
        raise MeasurementError(f"selfcheck: tuning ended with status {done.returncode}:\n{last}")


def _timers(pilot: Report) -> Timers:
    """The pilot's timers, but every delay has those of its length without a delay."""
    found = timers_of(pilot.results)
    return {suite: {name: cases.get(_base(name), cases[name]) for name in cases} for suite, cases in found.items()}


def _base(name: str) -> str:
    """`delayed[10us-3pct]` -> `delayed[10us-0pct]`."""
    return re.sub("-[^-]*pct", "-0pct", name)


def judge_planted(folder: Path, suites: int) -> tuple[list[Planted], Rate]:
    """Judge every delay as a change of the kernel without one, as one time of a suite of 200, in `suites` suites.

    Returns:
        The kernels, none if there are too few sessions, and the rate at which those aimed at the promise are found.
    """
    reports = stored_sessions(folder)[1:]  # without the pilot
    if len(reports) < LEAST_SESSIONS:
        return [], clustered_rate(())
    read = {time.result.case.name: time for time in timed_cases(gather(reports)).values()}
    delays = {f"delayed[{delay.name}]": delay for delay in read_plan(folder)}
    times = {
        name: Timed(read[_base(name)].result, read[_base(name)].base, read[name].base)
        for name in delays
        if name in read and _base(name) in read
    }
    chance = random.Random(SEED)
    runs = [judge_run(times, draw_pairs(len(reports), chance), SUITE_CASES) for _ in range(suites)]
    planted, at_promise = [], []
    for name, time in times.items():
        slowdowns = [math.log(work / base) for base, work in zip(time.base, time.work, strict=True)]
        found = [(number, verdicts[name].word is Word.SLOWER) for number, verdicts in enumerate(runs)]
        at_promise += found if delays[name].aimed == PROMISE else []
        planted.append(
            Planted(
                length_us=delays[name].length_us,
                aimed=delays[name].aimed,
                slowdown=math.expm1(statistics.fmean(slowdowns)),
                error=statistics.stdev(slowdowns) / math.sqrt(len(slowdowns)),
                found=clustered_rate(found),
                pairs=statistics.fmean(verdicts[name].pairs for verdicts in runs),
            )
        )
    return planted, clustered_rate(at_promise)
