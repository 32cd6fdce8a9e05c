"""`perfguard accept [--lane L] [-k EXPR] (--from REPORT.json | --run ID) --reason TEXT`: turns a report into changed
baselines.

It judges the report again, plans like `--perfguard-update`, and shows and writes the changes. All reports are untrusted
data. They have to be of this checkout's code: values of other code must not become its baselines.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from perfguard._compat.pytest_internals import compiled_expression
from perfguard.github.lanes.baselines_at_commit import BaselineSet, folders_of
from perfguard.github.lanes.judge_again import judge_again
from perfguard.github.lanes.lane_views import of_lane
from perfguard.github.lanes.untrusted_report import Received, read_untrusted_file
from perfguard.judge.lane import Lane
from perfguard.judge.record import differing_versions
from perfguard.judge.update_plan import plan
from perfguard.model.config import Category, find_project, read_settings
from perfguard.model.errors import ExitStatus, LaneError, UsageError
from perfguard.model.limits import KERNEL_TIME, KERNEL_TIME_LIMITS, timed_kernel
from perfguard.model.records import BY_TOOLCHAIN, CaseResult, Parts, Report, Verdict, Word
from perfguard.model.records.change import Change, select
from perfguard.model.units import Unit
from perfguard.render.escaping import clean
from perfguard.render.words import listed
from perfguard.session.pairing.worktrees import changed_code, find_repository
from perfguard.store.baseline_files import Store, apply
from perfguard.store.comment_limits import most_recorded_in

_CATEGORIES: frozenset[Category] = frozenset({"new", "faster", "slower", "changed"})
_PAIRED = (Word.SLOWER, Word.FASTER, Word.PASS)
_WIDEST = 1000  # The most characters of a line.
_MOST_CHARACTERS = 300  # The most characters of what `gh` says.
_SECONDS = 300.0  # Limit for a download.
_WRONG = (Word.WRONG, Word.BROKEN)
_SHA = re.compile(r"[0-9a-f]{7,64}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `perfguard accept`."""
    parser.description = (
        "Writes what a run measured into the baselines of this checkout, as --perfguard-update would, without "
        "measuring anything. Judges the readings again by these baselines first. The new time is the recorded one "
        "times the ratio of the process pairs; that of a new case is the lane's. Undecided times, wrong results and "
        "readings under another toolchain are left alone, with the reason. Then commit."
    )
    parser.add_argument("--lane", metavar="LANE", help="only this lane, e.g. nvidia-h200 (default: every one)")
    parser.add_argument("-k", dest="expression", metavar="EXPR", default="", help="which cases; as pytest -k")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--from", dest="reports", type=Path, nargs="+", metavar="REPORT.json", help="reports at hand")
    source.add_argument("--run", type=int, metavar="ID", help="the reports of a workflow run, by GitHub's gh")
    parser.add_argument("--reason", required=True, metavar="TEXT", help="why; kept in the file for what got worse")


def run(options: argparse.Namespace) -> int:
    """Return the exit status, one of `perfguard.ExitStatus`.

    Raises:
        PerfguardError: nothing can be accepted; with the next step.
    """
    root = find_project(Path.cwd())
    settings = read_settings(root)
    if not options.reason.strip():
        raise UsageError("--reason: empty; say why, the code owners of the baselines will read it")
    recorded = most_recorded_in(root / settings.baselines)
    if options.run is None:
        reports = _from_files(options.reports, options.lane, recorded)
    else:
        reports = _from_run(root, options.run, [options.lane] if options.lane else settings.lanes, recorded)
    return int(_accept(root / settings.baselines, reports, options.expression, options.reason))


def _from_files(paths: Sequence[Path], lane: str | None, recorded: int) -> list[Received]:
    """The reports in `paths`, or those of `lane` if it is given. `recorded` bounds their size (`comment_limits`).

    Raises:
        UsageError: a file cannot be read or is no report, or no report is of the lane.
    """
    reports = []
    for path in paths:
        try:
            received = read_untrusted_file(path, recorded)
        except (OSError, LaneError) as error:
            why = f"cannot be read ({error.strerror})" if isinstance(error, OSError) else error
            raise UsageError(f"{path}: {why}; make one with: pytest --perfguard") from error
        hardware = received.report.hardware
        if lane in (None, hardware.slug, hardware.target):
            reports.append(received)
    if not reports:
        raise UsageError(f"--lane {lane}: none of the reports is of it; leave --lane out, or name its report")
    return reports


def _from_run(root: Path, number: int, lanes: Sequence[str], recorded: int) -> list[Received]:
    """The reports that `lanes` uploaded in a workflow run, as GitHub's `gh` downloads them; of several attempts that of
    the last one. Lanes without a valid report are left out.

    Raises:
        UsageError: no lane is named, `gh` fails, or no lane has a valid report.
    """
    if not lanes:
        raise UsageError("--run: no lane; name one with --lane, or set lanes in [tool.perfguard]")
    reports, problems = [], []
    with tempfile.TemporaryDirectory(prefix="perfguard-") as name:
        _download(root, number, lanes, Path(name))
        for lane in lanes:
            try:
                reports.append(of_lane(lane, read_untrusted_file(_uploaded(Path(name), lane), recorded)))
            except LaneError as error:
                problems.append(f"{lane}: {error}")
    for problem in problems if reports else ():
        _print(problem)
    if not reports:
        raise UsageError(f"--run {number}: {'; '.join(problems)}; run the lane again")
    return reports


def _uploaded(folder: Path, lane: str) -> Path:
    """The report that the lane's last attempt uploaded as `perfguard-<lane>-<attempt>`.

    Raises:
        LaneError: there is none, or more than one.
    """
    names = [re.fullmatch(rf"perfguard-{re.escape(lane)}-(\d+)", each.name) for each in folder.iterdir()]
    attempts = {int(found[1]): found[0] for found in names if found}
    paths = [*(folder / attempts[max(attempts)]).glob("report-*.json")] if attempts else []
    if len(paths) != 1:
        raise LaneError(f"{len(paths)} reports were uploaded, and one is needed")
    return paths[0]


def _download(root: Path, number: int, lanes: Sequence[str], folder: Path) -> None:
    """Let `gh` download what the lanes uploaded in a run, each artifact into a folder of its name."""
    patterns = [f"--pattern=perfguard-{lane}-[0-9]*" for lane in lanes]
    line = ["gh", "run", "download", str(number), "--dir", str(folder), *patterns]
    try:
        done = subprocess.run(
            line, cwd=root, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=_SECONDS
        )
        said = "" if done.returncode == 0 else (done.stderr.strip() or f"gh ended with status {done.returncode}")
    except subprocess.TimeoutExpired:
        said = f"gh took longer than {_SECONDS:g} s"
    except OSError:
        said = "gh is not installed; install https://cli.github.com and log in: gh auth login"
    if said:
        file = "or download the lane's report from the run's page, and name it: --from report-….json"
        raise UsageError(f"--run {number}: {' '.join(said.split())[:_MOST_CHARACTERS]}; {file}")


def _accept(baselines: Path, received: Sequence[Received], expression: str, reason: str) -> ExitStatus:
    """Write the measured values; PASSED if any were written, or if there were none to write.

    Raises:
        UsageError: the expression is invalid or selects no case, or a report is of other code.
        BaselineError: a file cannot be read or written.
    """
    chosen, store = _chosen(expression), Store(baselines)
    written: list[Path] = []
    left: list[str] = []
    matched = 0
    for lane_report in received:  # Nothing is written before all are checked.
        _check_commit(lane_report.report, baselines)
    for lane_report in received:
        report = lane_report.report
        stored = BaselineSet({folder: store.baselines(folder) for folder in folders_of(report)})
        lane = stored.lane(report.hardware, report.toolchain, exact_only=report.exact_only)
        judged = judge_again(report, lane)
        results = [result for result in judged.results if chosen(result)]
        matched += len(results)
        changes, refusals = _changes(lane, judged, results, reason)
        left += [*refusals, *(f"{refused.name}: {refused.reason}" for refused in lane_report.refused)]
        for change in changes:
            _print(change.describe())
        written += apply(store, changes, judged.provenance, reason)
    if not matched:
        raise UsageError(f"-k {expression}: no case of the reports; see them with: perfguard report")
    for line in left:
        _print(f"left alone: {line}")
    for path in dict.fromkeys(written):
        _print(f"written: {os.path.relpath(path)}")
    if not written:
        _print("nothing written" if left else "nothing to accept: the baselines hold what was measured")
    return ExitStatus.PASSED if written or not left else ExitStatus.USAGE_ERROR


def _print(line: str) -> None:
    print(clean(line, _WIDEST))  # Names are untrusted text.


def _check_commit(report: Report, baselines: Path) -> None:
    """Compare the report's commit with the checkout; documents and perfguard's own files may differ.

    Raises:
        UsageError: the checkout does not know the commit, or its tracked files hold other code.
    """
    commit = (report.commit or "").removesuffix("+")
    try:
        repository = find_repository(baselines.parent)
    except UsageError:  # There are no commits without git.
        return
    if not commit:  # It was measured without git.
        return
    known = repository.commit(commit) if _SHA.fullmatch(commit) else None
    if known is None:
        raise UsageError(
            f"the report of {report.hardware.slug} measured {commit[:12]!r}, which is no commit of this clone; "
            "fetch it, or measure this checkout"
        )
    if commit != report.commit and known == repository.commit("HEAD"):
        return  # Its uncommitted changes are unknown, but most likely those of this checkout.
    code = changed_code(repository, known, [baselines, baselines.parent / ".perfguard"])
    if code:
        raise UsageError(
            f"the report of {report.hardware.slug} measured {known[:12]}, from which this checkout differs in "
            f"{listed(code)}; git checkout {known[:12]}, or measure this checkout"
        )


def _chosen(expression: str) -> Callable[[CaseResult], bool]:
    """A filter like pytest's -k: words match parts of a case's name, suite or node id, regardless of case."""
    if not expression.strip():
        return lambda result: True
    try:
        chosen_by = compiled_expression(expression)
    except Exception as error:  # pytest 8 has its own exception, pytest 9 raises SyntaxError.
        raise UsageError(f"-k {expression}: {error}; write it as for pytest -k") from error

    def chosen(result: CaseResult) -> bool:
        names = f"{result.case.suite} {result.case.key} {result.case.nodeid}".lower()
        return chosen_by(lambda word: word.lower() in names)

    return chosen


def _changes(lane: Lane, judged: Report, results: Sequence[CaseResult], reason: str) -> tuple[list[Change], list[str]]:
    """The changes to write, and a line with the reason for each that is left alone."""
    planned: list[Change] = []
    lines: list[str] = []
    for result in results:
        changes = _measured_changes(lane, judged, result)
        planned += changes
        named = {change.metric for change in changes}
        rest = [
            each
            for each in result.verdicts
            if each.metric not in named and each.word in (Word.UNRESOLVED, Word.SUSPECT, *_WRONG)
        ]
        for why, alike in itertools.groupby(sorted(rest, key=_why), _why):
            lines.append(f"{result.case.key} {listed([verdict.metric for verdict in alike])}".rstrip() + f": {why}")
    chosen, left = select(planned, _CATEGORIES, reason)
    return chosen, [*(f"{change.describe(left=True)}; {why}" for change, why in left), *lines]


def _why(verdict: Verdict) -> str:
    """The reason why a verdict leaves nothing to accept."""
    if verdict.word in _WRONG:
        return f"{verdict.word}, which no baseline can accept: {verdict.reason}"
    return f"not decided: {verdict.reason}; run the lane again"


# -- the changes of one case -------------------------------------------------------------------------------------------


def _measured_changes(lane: Lane, judged: Report, result: CaseResult) -> list[Change]:
    """The changes of one case that follow from the report, some of them refused with the reason.

    The new sessions of a time are the stored ones times the ratio of the process pairs. A ratio is valid on any board,
    so that the record keeps its board, and the noise that was measured on it.
    """
    result = _with_kernel_times(lane, result)
    paired = [each for each in result.verdicts if each.word in _PAIRED and each.interval is not None]
    ratios = {each.metric: each.ratio for each in paired if each.ratio is not None}
    slower = {each.metric for each in paired if each.word is Word.SLOWER}
    base = next((case.base for each in judged.pairings for case in each.cases if case.id == result.id), None)
    refused = {
        each.metric: _other_toolchain(each.reason.rpartition(BY_TOOLCHAIN)[2])
        for each in result.verdicts
        if each.word is Word.DRIFT
    }
    scaled: dict[str, Sequence[float]] = {}
    provenance = judged.provenance
    timed = [each for each in result.readings if each.timed and each.is_recorded]
    for reading in timed if lane.stored_cases(*result.id) else ():  # A new case is recorded as read.
        record, why = lane.record(result, reading), "no process pair judged it; record it there"
        if record.entry is not None:
            if judged.commit is not None and record.provenance.commit == judged.commit:
                continue  # It was accepted before.
            versions = differing_versions(record.provenance, judged.toolchain)
            if versions:
                why = _other_toolchain(", ".join(versions))
            elif base is not None and lane.record(base, reading).same_code is False:
                why = "its record is of other code than the base's; record it there"
            elif reading.metric in ratios and record.comparable and not record.under_other_conditions:
                scaled[reading.metric] = [value * ratios[reading.metric] for value in record.comparable.sessions]
                provenance = replace(record.provenance, commit=judged.commit, recorded=judged.started[:10])
                continue
        refused[reading.metric] = why
    changes = []
    for change in plan(lane, [result], {}, [], provenance, scaled):
        category = change.category
        if change.metric in refused and not change.refused:
            step = f"pytest --perfguard --perfguard-update={category}"
            change = replace(change, refused=f"{refused[change.metric]}: {step}")
        if change.metric in scaled:
            accepts = category == "changed" and change.metric in slower  # The reason is stored then.
            change = replace(change, provenance=provenance, category="slower" if accepts else category)
        changes.append(change)
    return changes


def _other_toolchain(versions: str) -> str:
    return f"measured under another toolchain ({versions}); record it there"


def _with_kernel_times(lane: Lane, result: CaseResult) -> CaseResult:
    """An observed test with the new levels of its kernels' times, which are written with the kernels' new facts."""
    stored = lane.stored(*result.id).get(KERNEL_TIME)
    times: Parts = dict(stored) if isinstance(stored, dict) else {}
    paired = False
    for verdict in result.verdicts:
        kernel = timed_kernel(verdict.metric)
        if kernel and verdict.interval is not None and verdict.ratio is not None:
            paired = True
            before = times.get(kernel)
            if isinstance(before, int | float):
                times[kernel] = before * verdict.ratio
            elif isinstance(verdict.after, int | float):
                times[kernel] = verdict.after
    if not paired:
        return result
    reading = KERNEL_TIME_LIMITS.reading(KERNEL_TIME, Unit.MICROSECONDS, times, drifts=True)
    return replace(result, readings=[*result.readings, reading])
