"""A real kernel made slower: tuned and measured in fresh processes like any suite, and judged like any case."""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from perfguard.config import Settings
from perfguard.errors import MeasurementError
from perfguard.judge.statistics import MIN_SESSIONS
from perfguard.metrics import host_time
from perfguard.records import CaseResult, Report, Verdict, Word
from perfguard.reports import write_atomically
from perfguard.selfcheck import delayed
from perfguard.selfcheck.delayed.plan import PLAN, Delay, read_plan
from perfguard.selfcheck.draws import SUITE_CASES, disjoint_draws
from perfguard.selfcheck.findings import Injected
from perfguard.selfcheck.judging import DrawnSuite, Version
from perfguard.selfcheck.measuring import Progress, measure_sessions, read_sessions, suite_command, with_timers
from perfguard.selfcheck.rates import clustered_rate
from perfguard.selfcheck.sample import CaseId, Sample, gather, primary

_SEED = 20261121
_SUITE = Path(delayed.__file__).with_name("test_delayed.py")


def inject(folder: Path, settings: Settings, device: str, sessions: int, *, progress: Progress) -> None:
    """Tune the delays on the device and measure them in `sessions` fresh processes; goes on where it stopped.

    The first process is a pilot: it chooses the timers, and the delays of one length then share one. Its readings
    are not judged.

    Raises:
        MeasurementError: a process crashed, hung or measured nothing.
    """
    project = f"[tool.pytest.ini_options]\n[tool.perfguard]\ncase_seconds = {settings.case_seconds}\n"
    write_atomically(folder / "pyproject.toml", project.encode())
    if not (folder / PLAN).is_file():
        progress("tuning the kernel's delays on the device")
        _tune(folder, settings, device)
    arguments = (str(_SUITE), "-c", str(folder / "pyproject.toml"), "--rootdir", str(folder))
    # A chain's device time is all that is judged.
    command = replace(suite_command(arguments, folder, device), rivals=False, unread=(host_time.METRIC,))
    progress("measuring the kernel with its delays")
    measure_sessions(
        command,
        folder,
        sessions + 1,
        minutes=settings.session_minutes,
        progress=progress,
        timers_of=lambda pilot: _request(pilot, read_plan(folder)),
        exact=False,
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


def _request(pilot: Report, plan: list[Delay]) -> Report:
    """The pilot's report in which every delay asks for the timers of its length without a tail."""
    results = {_delay_name(result): result for result in pilot.results}
    bases = {delay.name: _base(delay, plan).name for delay in plan}
    return with_timers(pilot, lambda result: results.get(bases.get(_delay_name(result), "")))


def _delay_name(result: CaseResult) -> str:
    """`delayed[10us-3pct]` -> `10us-3pct`."""
    return result.case.name.partition("[")[2].removesuffix("]")


def _base(delay: Delay, plan: list[Delay]) -> Delay:
    return next(other for other in plan if other.length_us == delay.length_us and other.aimed == 0)


def judge_injected(folder: Path, settings: Settings) -> list[Injected]:
    """Every delay judged against baselines of the kernel without one, as one reading of a suite of 200.

    One length at a time is delayed; the others stand beside it undelayed, as the rest of a suite would.
    """
    plan = read_plan(folder)
    sample = gather(read_sessions(folder)[1:]).timed_only()  # without the pilot
    cases: dict[str, CaseId] = {_delay_name(sample.sessions[0][case]): case for case in sample.cases}
    found: dict[Delay, list[tuple[int, Verdict]]] = defaultdict(list)
    bases = [cases[delay.name] for delay in plan if delay.aimed == 0 and delay.name in cases]
    stored = max(settings.sessions, MIN_SESSIONS)
    for draw in disjoint_draws(len(sample.sessions), stored, settings.confirmations, bases, random.Random(_SEED)):
        suite = DrawnSuite(sample, draw, timed_now=SUITE_CASES)
        for delay in plan:
            base = cases.get(_base(delay, plan).name)
            if base is None or delay.name not in cases:
                continue
            changed: Mapping[CaseId, Version] = {base: _version(sample, cases[delay.name], base)}
            verdict = _of_primary(suite.judge(changed, only=True)[base], sample.sessions[0][base])
            found[delay].append((draw.judged, verdict))
    return [_injected(delay, found[delay]) for delay in plan if found[delay]]


def _version(sample: Sample, delayed_case: CaseId, base: CaseId) -> Callable[[int], CaseResult]:
    """The delayed kernel's result of a session, under the name of the kernel that it is a change of."""

    def version(number: int) -> CaseResult:
        session = sample.sessions[number]
        named, read = session[base], session[delayed_case]
        return msgspec.structs.replace(named, readings=read.readings)

    return version


def _of_primary(verdicts: list[Verdict], result: CaseResult) -> Verdict:
    reading = primary(result)
    return next(verdict for verdict in verdicts if reading is not None and verdict.metric == reading.metric)


def _injected(delay: Delay, found: list[tuple[int, Verdict]]) -> Injected:
    seen = [verdict.smallest for _, verdict in found if verdict.smallest is not None]
    return Injected(
        length_us=delay.length_us,
        aimed=delay.aimed,
        true_slowdown=delay.slowdown,
        standard_error=delay.error,
        smallest=statistics.median(seen) if seen else None,
        found=clustered_rate((judged, int(verdict.word is Word.SLOWER), 1) for judged, verdict in found),
    )
