"""Why a case is slower, by hardware counters: one process of the base and one of the working tree, each started by the
vendor's profiler, make the call while it looks. `perfguard explain CASE [BASE]`, and the end of a run."""

from __future__ import annotations

import argparse
import difflib
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from perfguard.judge.exact import because, describe_difference
from perfguard.judge.pair_test import PairVerdict
from perfguard.measure.devices import open_device
from perfguard.measure.metrics.times import DEVICE_TIME
from perfguard.measure.profilers import Launch, Moved, Profiler, is_counter, moved, profiler_for, refusal
from perfguard.model.config import Settings, find_project, read_settings
from perfguard.model.errors import ExitStatus, MeasurementError, PerfguardError, UsageError
from perfguard.model.records import Case, CaseId, CaseResult, ReadingId, Word
from perfguard.model.records.case import with_readings
from perfguard.model.suite_names import name_of, suite_of
from perfguard.model.units import format_time
from perfguard.render.escaping import clean
from perfguard.render.words import more_lines, one_line
from perfguard.session.child import Request, add_pytest_arguments, child_command
from perfguard.session.child_process import TOO_LONG, Tell
from perfguard.session.device_lock import DeviceLock
from perfguard.session.pairing.bases import find_base
from perfguard.session.pairing.pairs import PairWorktrees
from perfguard.session.pairing.sides import SIDES, describe
from perfguard.session.pairing.worktrees import find_repository
from perfguard.store.report_file import read_report

if TYPE_CHECKING:
    from perfguard.session.run import Run

_MOST, _SECONDS = 3, 20.0  # Cases that a run explains, and its limit for the process of a side.


def _compared(worktrees: PairWorktrees, case: Case, profiler: Profiler, minutes: float = 0.0) -> Moved:
    """The counters of a case that moved from the base to the working tree, which are laid out in `worktrees`. Each has
    one process, with a limit of `minutes` (0: `session_minutes`).

    Raises:
        MeasurementError: the profiler counted no launch of a side, or not all.
    """
    sides: list[list[Launch]] = []
    for side in SIDES[::2]:  # Without the control.
        request = Request(worktrees.slug, tests=[case.nodeid], profiled=case)
        with tempfile.TemporaryDirectory(prefix="perfguard-") as name:
            prefix = profiler.prefix(str(shutil.which(profiler.name)), Path(name))
            answer = worktrees.answer(request, side, prefix=prefix, minutes=minutes)
            sides.append(profiler.launches(Path(name)))
            problem = refusal(Path(name)) or answer.problem
        if minutes and TOO_LONG in answer.problem:
            problem = f"it {TOO_LONG} {60 * minutes:g} s; `perfguard explain` gives it more"
        if answer.problem or not answer.results or not sides[-1]:
            missing = "no kernel ran on the device" if answer.results else "the test does not make this call there"
            raise MeasurementError(f"{profiler.name}, {describe(side)}: {problem or missing}")
    return moved(*sides)


def explain_slower(
    run: Run,
    worktrees: PairWorktrees,
    verdicts: Mapping[ReadingId, PairVerdict],
    answers: dict[CaseId, CaseResult],
    tell: Tell,
) -> None:
    """Add counters of the slowest case of each test function and pass to the run and to the base's `answers`, if this
    device has a profiler. The first case that cannot be counted is told and ends the series."""
    slower = [each for each in verdicts if verdicts[each].word is Word.SLOWER and each.metric == DEVICE_TIME]
    slower.sort(key=lambda each: -verdicts[each].effect)
    known = sum(any(map(is_counter, result.readings)) for result in run.measured.values())
    worst: dict[tuple[str, str, str], CaseResult] = {}  # Its other cases are slower for the same reason.
    for result in (run.measured[each.case] for each in slower if each.case in answers):
        case = result.case
        worst.setdefault((case.suite, case.name.partition("[")[0], case.direction), result)
    results = [*worst.values()][: _MOST - known]
    profiler = profiler_for(run.device.identity)
    if profiler is None or not results:
        return
    if shutil.which(profiler.name) is None:
        tell(f"hardware counters would tell more of what is slower: install {profiler.package}")
        return
    try:
        for result in results:
            tell(f"counting with {profiler.name} why {result.case.key} is slower")
            counted = _compared(worktrees, result.case, profiler, _SECONDS / 60)
            run.measured[result.id] = with_readings(result, counted.work)
            answers[result.id] = with_readings(answers[result.id], counted.base)
    except (PerfguardError, OSError) as error:
        tell(f"not explained by hardware counters: {error}")


# -- the command -------------------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `perfguard explain`."""
    parser.description = (
        "Runs one case at its base and in the working tree under ncu (NVIDIA) or rocprofv3 (AMD), and names the "
        "hardware counters that moved, beside the verdict of the latest report."
    )
    parser.add_argument("case", metavar="CASE", help="a case as reports name it, or the node id of its test")
    parser.add_argument("base", metavar="BASE", nargs="?", help="default: the report's base, else the main branch")
    add_pytest_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Print the verdict, the counters that moved, and what else explains the verdict, such as binaries.

    Raises:
        PerfguardError: no such case or base, nothing to count with, or a side that was not counted.
    """
    project = find_project(Path.cwd())
    settings = read_settings(project)
    asked = _asked(options.case, project, settings)
    device = open_device(asked.device or settings.device)
    profiler, lines = profiler_for(device.identity), [*asked.lines] or [asked.case.key]
    if profiler is None or shutil.which(profiler.name) is None:
        where = "run it where there is an NVIDIA or AMD GPU" if profiler is None else f"install {profiler.package}"
        lines.append(f"{device.identity.name}: hardware counters cannot be read; {where}")
        if not asked.lines:
            raise UsageError(lines[-1])
    else:
        base, slug = _base(options.base or asked.base, project, settings), device.identity.slug
        command = child_command(options.pytest_arguments, project, asked.device or settings.device)
        with (
            DeviceLock(device.key) as lock,
            PairWorktrees(find_repository(project), command, slug, settings, _tell) as worktrees,
            worktrees.interrupts.armed(),
        ):
            lock.acquire(settings.lock_minutes, _tell)
            worktrees.lay_out(base, pairs=True)
            if options.setup:
                worktrees.set_up(options.setup)
            _tell(f"counting with {profiler.name}: {asked.case.key} at {base[:12]}, then in the working tree")
            counted = _compared(worktrees, asked.case, profiler)
        pairs = zip(counted.base, counted.work, strict=True)
        counters = ", ".join(describe_difference(now, then.value) for then, now in pairs) or "none moved"
        times = " -> ".join(map(format_time, counted.us))
        kernel = f"kernel: {counted.kernel} {times} in {profiler.name}, from {base[:12]}"
        lines[1:1] = [f"counters: {counters}", kernel]
    print("\n    ".join(clean(line, None) for line in lines))
    return int(ExitStatus.PASSED)


class _Asked(NamedTuple):
    """The case of the command, with what a report says of it: its verdict in lines, its base, its device."""

    case: Case
    lines: Sequence[str] = ()
    base: str = ""
    device: str = ""


def _asked(name: str, project: Path, settings: Settings) -> _Asked:
    """The case in the latest report that has it; of several passes the one with the worst verdict.

    Raises:
        UsageError: there is none, and `name` is no node id of a file either.
    """
    file, colons, test = name.partition("::")
    nodeid = Path(os.path.relpath(file, project)).as_posix() + colons + test  # As typed, it begins at this folder.
    folder, known = project / settings.reports, list[str]()
    paths = [*folder.glob("report-*.json"), *(folder / "compare").glob("report-*.json")]
    for report in map(read_report, sorted(paths, key=lambda path: -path.stat().st_mtime)):
        alike = [
            each for each in report.results if each.case.nodeid == nodeid or name in (each.case.key, each.case.name)
        ]
        judged = [(each.sort_key(verdict), each, verdict) for each in alike for verdict in each.verdicts]
        if judged:
            _, result, verdict = min(judged, key=lambda each: each[0])
            if result.case.direction == "test" or result.ranks > 1:
                raise UsageError(f"{name}: only guarded calls of one process are explained; name another case")
            pairs = [(each.base, case.base) for each in report.pairings for case in each.cases if case.id == result.id]
            commit, base = next(iter(pairs), ("", None))
            read = [] if base is None else base.readings  # Counters are read anew.
            before = {each.metric: each.value for each in read if not is_counter(each)}
            why = [because("", result.readings, before)] if before else more_lines(verdict)
            head = f"{verdict.word}  {result.case.key}  {one_line(verdict)}"
            return _Asked(result.case, [head, *why], commit, report.invocation.device)
        known += [each.case.key for each in report.results]
    if colons and Path(file).is_file():
        return _Asked(Case(suite_of(Path(file).absolute(), project), name_of(nodeid), "forward", nodeid))
    near = difflib.get_close_matches(name, known, n=3)
    step = f"did you mean {' or '.join(near)}?" if near else "name one of a report, or the node id of a test"
    raise UsageError(f"{name}: no such case in the reports of {folder}; {step}")


def _base(wanted: str, project: Path, settings: Settings) -> str:
    """The merge base with the `wanted` commit, or with the main branch.

    Raises:
        UsageError: there is none, or the working tree has the same code.
    """
    wanted = wanted or find_repository(project).main_branch()
    base = find_base(project, wanted, [project / settings.baselines, project / settings.reports])
    if base.commit is None or base.equal:
        raise UsageError(base.problem or f"{wanted}: the working tree has the same code; name an earlier commit")
    return base.commit


def _tell(text: str, *, passing: bool = False, detail: bool = False) -> None:
    if not detail:
        print(f"perfguard: {clean(text, None)}", file=sys.stderr, flush=True)
