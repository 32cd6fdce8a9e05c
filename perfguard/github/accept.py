"""`perfguard accept [--lane L] [-k EXPR] (--from REPORT.json | --run ID) --reason TEXT`: turns a report into changed
baselines.

It judges the report again, plans as `--perfguard-update` does, shows and writes the changes. Reports are not trusted,
wherever they come from. They must be of this checkout's code: values of other code must not become its baselines.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from perfguard._compat.pytest_internals import compiled_expression
from perfguard.github.accepted_levels import measured_changes, other_toolchain
from perfguard.github.api.artifacts import fetch_artifacts
from perfguard.github.api.client import open_client
from perfguard.github.api.measured_run import fetch_run
from perfguard.github.lanes.baselines_at_commit import BaselineSet, folders_of
from perfguard.github.lanes.judge_again import judge_again
from perfguard.github.lanes.stranger_report import MOST_BYTES, Received, read_report_of_stranger, receive_all
from perfguard.model.config import Category, Settings, find_project, read_settings
from perfguard.model.errors import ExitStatus, LaneError, UsageError
from perfguard.model.records import BY_TOOLCHAIN, CaseResult, Report, Verdict, Word
from perfguard.model.records.change import Change, select
from perfguard.render.escaping import clean
from perfguard.render.words import listed
from perfguard.session.pairing.worktrees import changed_code, find_repository
from perfguard.store.baseline_files import Store
from perfguard.store.baseline_update import apply

_CATEGORIES: frozenset[Category] = frozenset({"new", "faster", "slower", "changed"})
_UNDECIDED = (Word.UNRESOLVED, Word.SUSPECT)
_WIDEST = 1000  # most characters of a line
_WRONG = (Word.WRONG, Word.BROKEN)
_SHA = re.compile(r"[0-9a-f]{7,64}")


@dataclass(frozen=True)
class Acceptance:
    """The request to accept cases that `expression` selects into the baselines below `root`."""

    root: Path
    settings: Settings
    expression: str
    reason: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `perfguard accept`."""
    parser.description = (
        "Writes what a run measured into the baselines of this checkout, as --perfguard-update would, without "
        "measuring anything. Judges the readings again by these baselines first. The new time "
        "is the recorded one times the ratio of the process pairs. Times without pairs, wrong results and readings "
        "under another toolchain are left alone, with the reason. Then commit."
    )
    parser.add_argument("--lane", metavar="LANE", help="only this lane, e.g. nvidia-h200 (default: every one)")
    parser.add_argument("-k", dest="expression", metavar="EXPR", default="", help="which cases; as pytest -k")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--from", dest="reports", type=Path, nargs="+", metavar="REPORT.json", help="reports at hand")
    source.add_argument("--run", type=int, metavar="ID", help="the reports of a workflow run; needs GITHUB_TOKEN")
    parser.add_argument("--reason", required=True, metavar="TEXT", help="why; kept in the file for what got worse")


def run(options: argparse.Namespace) -> int:
    """Return the exit status, one of `perfguard.ExitStatus`.

    Raises:
        PerfguardError: nothing can be accepted; with the next step.
    """
    root = find_project(Path.cwd())
    settings = read_settings(root)
    if options.run is None:
        reports = _from_files(options.reports, options.lane)
    else:
        reports = _from_run(os.environ, options.run, [options.lane] if options.lane else settings.lanes)
    request = Acceptance(root / settings.baselines, settings, options.expression, options.reason)
    return int(accept(request, reports, print))


def _from_files(paths: Sequence[Path], lane: str | None) -> list[Received]:
    """The reports in `paths`, of `lane` only if it is named.

    Raises:
        UsageError: a file that cannot be read or is no report, or no report of the lane.
    """
    found = []
    for path in paths:
        try:
            if path.stat().st_size > MOST_BYTES:
                raise LaneError(f"larger than {MOST_BYTES:,} bytes")
            received = read_report_of_stranger(path.read_bytes())
        except OSError as error:
            raise UsageError(f"{path}: cannot be read ({error.strerror}); make one with: pytest --perfguard") from error
        except LaneError as error:
            raise UsageError(f"{path}: {error}; make one with: pytest --perfguard") from error
        hardware = received.report.hardware
        if lane in (None, hardware.slug, hardware.target):
            found.append(received)
    if not found:
        raise UsageError(f"--lane {lane}: none of the reports is of it; leave --lane out, or name its report")
    return found


def _from_run(environ: Mapping[str, str], number: int, lanes: Sequence[str]) -> list[Received]:
    """The reports that `lanes` uploaded in a workflow run; lanes without a report are left out.

    Raises:
        GitHubError: a request to GitHub fails.
        UsageError: no lane is named, or none has a valid report.
    """
    if not lanes:
        raise UsageError("--run: no lane; name one with --lane, or set lanes in [tool.perfguard]")
    client = open_client(environ)
    run = fetch_run(client, number)
    received = receive_all(fetch_artifacts(client, run, lanes), run.head_sha)
    found = [each for each in received.values() if isinstance(each, Received)]
    if not found:
        problems = "; ".join(f"{lane}: {why}" for lane, why in received.items())
        raise UsageError(f"--run {number}: {problems}; run the lane again")
    return found


def accept(request: Acceptance, received: Sequence[Received], tell: Callable[[str], None]) -> ExitStatus:
    """Write the measured values; PASSED if any were written, or if there were none to write.

    Raises:
        UsageError: an empty reason, an invalid expression, missing cases, or a report of other code.
        BaselineError: a file that cannot be read or written; nothing is written in that case.
    """
    if not request.reason.strip():
        raise UsageError("--reason: empty; say why, the code owners of the baselines will read it")

    def say(text: str) -> None:  # names come from strangers and go to a terminal
        tell(clean(text, _WIDEST))

    chosen = _chosen(request.expression)
    store = Store(request.root)
    written: list[Path] = []
    left: list[str] = []
    matched = 0
    for each in received:  # check all reports before the first is written
        _check_commit(each.report, request.root)
    for each in received:
        judged = _judged(each.report, store, request.settings)
        results = [result for result in judged.results if chosen(result)]
        matched += len(results)
        changes, refusals = _changes(store, judged, results, request)
        left += [*refusals, *(f"{refused.name}: {refused.reason}" for refused in each.refused)]
        for change in changes:
            say(change.describe())
        written += apply(store, changes, judged.provenance, request.reason)
    if not matched:
        raise UsageError(f"-k {request.expression}: no case of the reports; see them with: perfguard report")
    for line in left:
        say(f"left alone: {line}")
    for path in dict.fromkeys(written):
        say(f"written: {os.path.relpath(path)}")
    if not written:
        say("nothing written" if left else "nothing to accept: the baselines hold what was measured")
    return ExitStatus.PASSED if written or not left else ExitStatus.USAGE_ERROR


def _check_commit(report: Report, baselines: Path) -> None:
    """Compare the report's commit with the checkout; documents and perfguard's own files may differ.

    Raises:
        UsageError: the checkout does not know the commit, or its tracked files hold other code.
    """
    measured = report.commit or ""
    commit = measured.removesuffix("+")
    try:
        repository = find_repository(baselines.parent)
    except UsageError:  # no git, no commits
        return
    if not commit:  # measured without git
        return
    known = repository.commit(commit) if _SHA.fullmatch(commit) else None
    if known is None:
        raise UsageError(
            f"the report of {report.hardware.slug} measured {commit[:12]!r}, which is no commit of this clone; "
            "fetch it, or measure this checkout"
        )
    if measured.endswith("+") and known == repository.commit("HEAD"):
        return  # its uncommitted changes are unknown, but most likely those made here
    code = changed_code(repository, known, [baselines, baselines.parent / ".perfguard"])
    if code:
        more = f" and {len(code) - 1} more" if len(code) > 1 else ""
        raise UsageError(
            f"the report of {report.hardware.slug} measured {known[:12]}, from which this checkout differs in "
            f"{code[0]}{more}; git checkout {known[:12]}, or measure this checkout"
        )


def _judged(report: Report, store: Store, settings: Settings) -> Report:
    """The report, judged by the baselines of this checkout."""
    remembered = BaselineSet({folder: store.baselines(folder) for folder in folders_of(report)})
    lane = remembered.lane(report.hardware, report.toolchain, exact_only=report.exact_only)
    return judge_again(report, lane)


def _chosen(expression: str) -> Callable[[CaseResult], bool]:
    """Like pytest's -k: words match parts of a case's name, suite or node id, in upper or lower case."""
    if not expression.strip():
        return lambda result: True
    try:
        chosen_by = compiled_expression(expression)
    except Exception as error:  # pytest 8 has its own exception, pytest 9 raises SyntaxError
        raise UsageError(f"-k {expression}: {error}; write it as for pytest -k") from error

    def chosen(result: CaseResult) -> bool:
        names = f"{result.case.suite} {result.case.key} {result.case.nodeid}".lower()
        return chosen_by(lambda word: word.lower() in names)

    return chosen


def _changes(
    store: Store, judged: Report, results: Sequence[CaseResult], request: Acceptance
) -> tuple[list[Change], list[str]]:
    """The changes to write, and one line with the reason for the changes of a case that are left for it."""
    planned: list[Change] = []
    lines: list[str] = []
    for result in results:
        verdicts = {verdict.metric: verdict for verdict in result.verdicts}
        changes = measured_changes(store, judged, result)
        planned += [
            replace(change, refused=change.refused or _drift(verdicts.get(change.metric))) for change in changes
        ]
        named = {change.metric for change in changes}
        rest = [each for each in result.verdicts if each.metric not in named and each.word in (*_UNDECIDED, *_WRONG)]
        for why, alike in itertools.groupby(sorted(rest, key=_why), _why):
            lines.append(f"{result.case.key} {listed([verdict.metric for verdict in alike])}".rstrip() + f": {why}")
    chosen, left = select(planned, _CATEGORIES, request.reason)
    return chosen, [*(f"{change.describe(left=True)}; {why}" for change, why in left), *lines]


def _drift(verdict: Verdict | None) -> str:
    """The reason why an exact metric of another toolchain may not become a baseline; empty if it may."""
    if verdict is None or verdict.word is not Word.DRIFT:
        return ""
    _, _, versions = verdict.reason.rpartition(BY_TOOLCHAIN)
    return other_toolchain(versions)


def _why(verdict: Verdict) -> str:
    """Why a verdict leaves nothing to accept."""
    if verdict.word in _WRONG:
        return f"{verdict.word}, which no baseline makes right: {verdict.reason}"
    return f"not decided: {verdict.reason}; run the lane again"
