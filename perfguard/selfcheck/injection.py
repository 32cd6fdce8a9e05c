"""Slows a real kernel down, measures it in fresh processes like any suite, and judges it like any case."""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from perfguard.judge.pair_test import LEAST_PAIRS, PairVerdict
from perfguard.measure.metrics.times import HOST_TIME
from perfguard.model.atomic_files import write_atomically
from perfguard.model.config import Settings
from perfguard.model.errors import MeasurementError
from perfguard.model.records import CaseResult, Report, Word
from perfguard.selfcheck import delayed
from perfguard.selfcheck.delayed.plan import PLAN, Delay, read_plan
from perfguard.selfcheck.draws import SIDES, SUITE_CASES, independent_runs, resampled_pairs
from perfguard.selfcheck.findings import Injected
from perfguard.selfcheck.judging import Timed, judge_run, smallest_found, timed_cases
from perfguard.selfcheck.measuring import Progress, measure_sessions, read_sessions
from perfguard.selfcheck.rates import clustered_rate
from perfguard.selfcheck.sample import gather
from perfguard.session.child import Request, Timers, child_command, timers_of

_SEED = 20261121
_SUITE = Path(delayed.__file__).with_name("test_delayed.py")


def inject(folder: Path, settings: Settings, device: str, sessions: int, *, progress: Progress) -> None:
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
    command = child_command(arguments, folder, device)
    request = Request(exact=False, unread=[HOST_TIME])  # only the device time of a chain is judged
    progress("measuring the kernel with its delays")
    measure_sessions(
        command,
        request,
        folder,
        sessions + 1,
        minutes=settings.session_minutes,
        progress=progress,
        timers=lambda pilot: _timers(pilot, read_plan(folder)),
    )


def _tune(folder: Path, settings: Settings, device: str) -> None:
    line = [sys.executable, "-m", "perfguard.selfcheck.delayed", str(folder), device]
    try:
        done = subprocess.run(
            line, capture_output=True, text=True, errors="replace", timeout=60 * settings.session_minutes, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise MeasurementError(
            f"selfcheck: tuning took longer than {settings.session_minutes:g} minutes; close other work on the device"
        ) from error
    if done.returncode != 0 or not (folder / PLAN).is_file():
        last = "\n".join(f"{done.stdout}{done.stderr}".strip().splitlines()[-15:])
        raise MeasurementError(f"selfcheck: tuning ended with status {done.returncode}:\n{last}")


def _timers(pilot: Report, plan: list[Delay]) -> Timers:
    """The pilot's timers, but every delay has those of its length without a tail."""
    read = {_delay_name(result): result.readings for result in pilot.results}
    bases = {delay.name: _base(delay, plan).name for delay in plan}
    return timers_of(
        replace(result, readings=read.get(bases.get(_delay_name(result), ""), result.readings))
        for result in pilot.results
    )


def _delay_name(result: CaseResult) -> str:
    """`delayed[10us-3pct]` -> `10us-3pct`."""
    return result.case.name.partition("[")[2].removesuffix("]")


def _base(delay: Delay, plan: list[Delay]) -> Delay:
    return next(other for other in plan if other.length_us == delay.length_us and other.aimed == 0)


def judge_injected(folder: Path) -> list[Injected]:
    """Judge every delay as a change of the kernel without a tail, as one of 200 times, in one run per session.

    The list is empty if there are too few sessions.
    """
    plan = read_plan(folder)
    sample = gather(read_sessions(folder)[1:])  # without the pilot
    sessions = len(sample.sessions)
    if sessions < SIDES * LEAST_PAIRS:
        return []
    known = {_delay_name(time.result): time for time in timed_cases(sample).values()}
    times = {
        delay: Timed(base.result, base.base, known[delay.name].base)
        for delay in plan
        if (base := known.get(_base(delay, plan).name)) is not None and delay.name in known
    }
    chance = random.Random(_SEED)
    runs = [judge_run(times, resampled_pairs(sessions, chance), SUITE_CASES) for _ in range(sessions)]
    smallest = smallest_found(times, SUITE_CASES)
    return [_injected(delay, smallest[delay], [verdicts[delay] for verdicts in runs]) for delay in times]


def _injected(delay: Delay, smallest: float, found: Sequence[PairVerdict]) -> Injected:
    hits = ((run, int(verdict.word is Word.SLOWER), 1) for run, verdict in enumerate(found))
    return Injected(
        length_us=delay.length_us,
        aimed=delay.aimed,
        true_slowdown=delay.slowdown,
        standard_error=delay.error,
        smallest=smallest,
        found=clustered_rate(hits, independent_runs(len(found))),
        pairs=statistics.fmean(verdict.pairs for verdict in found),
    )
