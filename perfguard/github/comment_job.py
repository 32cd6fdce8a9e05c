"""`perfguard comment`: checks the run, gathers and judges its reports, saves the result, then posts it.

Errors of GitHub neither change a verdict nor lose a report: files and summary are written before posting. The job fails
only if it could not post: the commit statuses hold the verdict.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import msgspec

from perfguard.github.api.client import Client, open_client
from perfguard.github.api.commit_files import MOST_LISTED, CommitFiles, Folder, find_merge_base
from perfguard.github.api.measured_run import (
    MEASURE_WORKFLOW,
    Lookup,
    Pull,
    WorkflowRun,
    fetch_artifacts,
    fetch_run,
    find_pull,
    job_urls,
    link_of,
    read_event,
    reason_to_stop,
)
from perfguard.github.api.posts import newer_run, post_comment, set_statuses
from perfguard.github.lanes.baselines_at_commit import BaselineSet, read_files
from perfguard.github.lanes.lane_views import Reference, judge_lanes
from perfguard.github.lanes.untrusted_report import receive_all
from perfguard.github.outcome import comment_of, files_of, given_up, statuses, wants_comment
from perfguard.judge.lane import is_own
from perfguard.model.atomic_files import write_atomically
from perfguard.model.config import SETTINGS_FILE, Settings, find_project, read_settings
from perfguard.model.errors import ExitStatus, GitHubError, UsageError
from perfguard.model.records.baseline import EVERY_CPU
from perfguard.model.units import Unit
from perfguard.render.escaping import clean
from perfguard.render.findings import BaselineEdit
from perfguard.render.markdown import render_markdown
from perfguard.render.overview import Overview
from perfguard.session.pairing.worktrees import is_code
from perfguard.session.report_command import with_history
from perfguard.store.comment_limits import MOST_FILE_BYTES, MOST_FILES, PACKED_BYTES, most_cases, most_recorded

_POST_SECONDS = 120.0  # The time to post a result, which is kept apart: reading may have used up its own.
_GIVE_UP_SECONDS = 60.0  # The time to set statuses for a job that gives up.
SUMMARY_BYTES = 1_000_000  # GitHub shows nothing if a step's summary exceeds 1 MiB.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `perfguard comment`."""
    parser.description = (
        "For a job `on: workflow_run` after the lanes: reads what they uploaded as untrusted data, judges it by the "
        "baselines of the merge base, and keeps one comment and the commit statuses up to date. Needs GITHUB_TOKEN, no "
        "GPU and no torch. See docs/pull-requests.md."
    )
    add = parser.add_argument
    add("--run", type=int, metavar="ID", help="the run that measured (default: that of the job's event)")
    only = "the workflow that measures (default: %(default)s); other runs are left alone"
    add("--workflow", metavar="PATH", default=MEASURE_WORKFLOW, help=only)
    files = "folder of comment.md, report.md, report.html, report.json, codequality.json"
    add("-o", "--output", type=Path, metavar="DIR", default=Path(".perfguard"), help=files)


def run(options: argparse.Namespace) -> int:
    """Run the command; returns one of `perfguard.ExitStatus`.

    Raises:
        PerfguardError: nothing can be judged; the message names the next step.
    """
    settings = read_settings(find_project(Path.cwd()))
    return int(post(Job(settings, os.environ, options.run, options.output, options.workflow)))


@dataclass(frozen=True)
class Job:
    """The options and environment of one post job.

    Attributes:
        environ: the environment of GitHub Actions: token, repository, event, summary.
        run: the id of the run that measured; None for the run of the job's event.
        output: the folder of the files of the result (`files_of`).
        workflow: the path of the workflow that measures.
    """

    settings: Settings
    environ: Mapping[str, str] = field(repr=False)
    run: int | None = None
    output: Path = Path(".perfguard")
    workflow: str = MEASURE_WORKFLOW


def post(job: Job) -> ExitStatus:
    """Judge and post the results of a run; returns NOT_POSTED if that failed. The commit statuses hold the verdict.

    Raises:
        UsageError: the job is not configured correctly.
    """
    client = measured = search = None
    try:
        client = open_client(job.environ)
        measured = read_event(job.environ) if job.run is None else fetch_run(client, job.run)
        stop = reason_to_stop(measured, client, job.workflow)
        if stop:
            _log(job, [f"nothing to post: {stop}"])
            return ExitStatus.PASSED
        search = find_pull(client, measured)
        overview = gather(client, measured, search.pull, job.settings, job.environ.get("GITHUB_SHA", ""))
        overview = with_history(overview, find_project(Path.cwd()) / job.settings.baselines, overview.base)
        client.allow(_POST_SECONDS)
        return _report(job, client, measured, search, overview)
    except Exception as error:
        if isinstance(error, GitHubError):
            next_step = "the lanes' reports are artifacts of their run; run this job again"
            _log(job, [f"comment skipped: {error}", next_step])
        if client is not None and measured is not None:
            _give_up(job, client, measured, search)
        if isinstance(error, GitHubError):
            return ExitStatus.NOT_POSTED
        raise


def _give_up(job: Job, client: Client, run: WorkflowRun, search: Lookup | None) -> None:
    """Set statuses in place of green ones of an earlier run, after the checks of `_report`."""
    client.allow(_GIVE_UP_SECONDS)
    try:
        no_status = _why_no_status(job, client, run, search or find_pull(client, run))
        marks = given_up(job.settings.lanes, link_of(client, run))
        _log(job, [f"no statuses: {no_status}"] if no_status else set_statuses(client, run.head_sha, marks))
    except GitHubError as error:
        _log(job, [f"no statuses: {error}"])


def _why_no_status(job: Job, client: Client, run: WorkflowRun, search: Lookup) -> str:
    """Why the run may not set the statuses of its commit; empty if it may.

    Raises:
        GitHubError: a request fails.
    """
    if not search.alone:
        return search.reason or f"{run.head_sha[:12]} is also the head of another pull request"
    newer = newer_run(client, run)
    return newer and f"{newer}, which is newer, has reported"


def _report(job: Job, client: Client, run: WorkflowRun, search: Lookup, overview: Overview) -> ExitStatus:
    """Write and post the results; returns NOT_POSTED if posting failed."""
    strict = job.settings.strict
    text = comment_of(overview, strict)
    wants, marks = wants_comment(overview, strict), statuses(overview, strict)
    never = 'comment = "never" in [tool.perfguard]' if job.settings.comment == "never" else ""
    no_comment = search.reason if search.pull is None else never
    failures: list[str] = []
    _write_files(job, overview)
    _write_summary(job, overview)
    try:
        no_status = _why_no_status(job, client, run, search)
        if no_status:
            _log(job, [f"no statuses: {no_status}"])
            no_comment = no_comment or (no_status if search.alone else "")
        else:
            failures += set_statuses(client, run.head_sha, marks)
    except GitHubError as error:
        failures.append(f"statuses not set: {error}")
    if search.pull is None or no_comment:
        _log(job, [f"no comment: {no_comment}"])
    else:
        try:
            _log(job, [post_comment(client, search.pull, text, wants=wants, order=run.order)])
        except GitHubError as error:
            failures.append(f"comment not posted: {error}")
    _log(job, failures)
    return ExitStatus.NOT_POSTED if failures else ExitStatus.PASSED


def _write_files(job: Job, overview: Overview) -> None:
    """Write the files of the result; errors are logged."""
    _log(job, [f"report: {job.output}"])
    for name, content in files_of(overview, job.settings.strict).items():
        try:
            write_atomically(job.output / name, content)
        except OSError as error:
            _log(job, [f"{job.output / name}: not written ({error.strerror}); make room or name another --output"])


def _write_summary(job: Job, overview: Overview) -> None:
    """Append the largest fitting text to the step's summary; an error is logged."""
    name = job.environ.get("GITHUB_STEP_SUMMARY", "")
    if not name:
        return
    try:
        with open(name, "a", encoding="utf-8") as file:
            file.write(render_markdown(overview, SUMMARY_BYTES) + "\n")
    except OSError as error:
        _log(job, [f"{name}: the summary was not written ({error.strerror}); the report is in its file"])


def _log(job: Job, lines: Sequence[str]) -> None:
    if lines:
        print(_harmless(job, "\n".join(f"perfguard: {line}" for line in lines)), file=sys.stderr)


def _harmless(job: Job, text: str) -> str:
    """`text`, which may hold untrusted names, in a form in which terminals and Actions runners ignore commands."""
    text = "\n".join(clean(line, None) for line in text.split("\n"))
    if job.environ.get("GITHUB_ACTIONS") != "true":
        return text
    mark = f"perfguard-{secrets.token_hex(16)}"
    return f"::stop-commands::{mark}\n{text}\n::{mark}::"


# -- gathering ---------------------------------------------------------------------------------------------------------


_MOST_SETTINGS = 200_000  # Bytes. Python's TOML parser needs a time that grows with the square of a key's length.
_SHA = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")


def gather(client: Client, run: WorkflowRun, pull: Pull | None, settings: Settings, default_branch: str) -> Overview:
    """Fetch, validate and judge the artifacts of `run`.

    Args:
        pull: the pull request whose head was measured, if it is known.
        settings: the settings of the default branch. Edits of them in the change have no effect.
        default_branch: the commit of these settings, which is the base if the pull request is unknown.

    Raises:
        GitHubError: a request to GitHub fails.
        UsageError: no lane is expected.
    """
    if not settings.lanes:
        raise UsageError('lanes in [tool.perfguard]: empty; name those of measure.yml, e.g. lanes = ["nvidia-h200"]')
    base, head, compared = run.head_sha, None, run.queued_on  # Only edits of pull requests are judged.
    changed: list[str] = []
    if run.event == "pull_request":
        base, changed = _merge_base(client, run, pull, default_branch)
        head, compared = run.head_sha, base
    elif compared:
        _, changed = find_merge_base(client, compared, run.head_sha)
    spared = 0 < len(changed) < MOST_LISTED and not any(map(is_code, changed))
    files = CommitFiles(client, MOST_FILES, MOST_FILE_BYTES)
    root = str(PurePosixPath(settings.baselines))
    data = (root, settings.reports, ".perfguard")
    code = [path for path in changed if is_code(path) and not any(map(PurePosixPath(path).is_relative_to, data))]
    folder = files.folder(root, base)
    if root in folder.problems:  # A missing file may be that of a lane.
        raise GitHubError(f"{root} at {base[:12]}: {folder.problems[root]}; merge suites of one hardware")
    before = after = _parsed(folder, root)
    unread = ""
    if head is not None:
        # Edits for hardware of the base without a lane are judged as well.
        own = {EVERY_CPU, *before.folders}
        edited = files.folder(
            root,
            head,
            base=folder,
            wanted=lambda name: name in own or any(is_own(lane, name) for lane in settings.lanes),
        )
        after, unread = before if edited is folder else _parsed(edited, root), edited.problems.get(root, "")
    recorded = most_recorded(before.folders)
    artifacts, earlier = fetch_artifacts(client, run, settings.lanes, PACKED_BYTES * most_cases(recorded))
    received = receive_all(artifacts, run.head_sha, recorded)
    judged = judge_lanes(received, Reference(before, after if head else None, compared, code))
    jobs = job_urls(client, run, settings.lanes)
    return msgspec.structs.replace(
        judged,
        lanes=[
            msgspec.structs.replace(lane, job_url=jobs.get(lane.name, ""), spared=spared and lane.report is None)
            for lane in judged.lanes
        ],
        edits=[*(_settings_edits(files, base, head) if head else []), *judged.edits],
        warnings=[*earlier, *judged.warnings],
        head=run.head_sha,
        base=base,
        unread=unread and f"the change's baselines: {unread}",
        run_url=link_of(client, run),
        source_url=f"{client.server}/{client.repository}/blob/{run.head_sha}/",
    )


def _settings_edits(files: CommitFiles, before: str, after: str) -> list[BaselineEdit]:
    """The settings that the change edits, which have no effect on its own judgement."""
    contents = files.changed(SETTINGS_FILE, (before, after), _MOST_SETTINGS)
    then, now = map(_settings, contents or (b"", b""))
    why = "takes effect when merged"
    return [
        BaselineEdit(SETTINGS_FILE, "", "[tool.perfguard]", key, Unit.TEXT, then.get(key), now.get(key), why)
        for key in sorted({*then, *now})
        if then.get(key) != now.get(key)
    ]


def _settings(content: bytes | None) -> dict[str, str]:
    """Setting -> its value as text, from untrusted TOML; what cannot be read is one setting."""
    try:
        if content is not None:  # It is None if it is too large.
            table = tomllib.loads(content.decode("utf-8")).get("tool", {}).get("perfguard", {})
            return {key: json.dumps(value, default=str) for key, value in table.items()}
    except (ValueError, RecursionError, AttributeError):
        pass
    return {"every setting": "cannot be read"}


def _merge_base(client: Client, run: WorkflowRun, pull: Pull | None, default_branch: str) -> tuple[str, list[str]]:
    if pull is None and not _SHA.fullmatch(default_branch):
        why = "no commit; GitHub Actions sets it, set it to the base's tip"
        raise UsageError(f"GITHUB_SHA={default_branch[:60]!r}: {why}")
    return find_merge_base(client, pull.base.sha if pull else default_branch, run.head_sha)


def _parsed(folder: Folder, root: str) -> BaselineSet:
    """The baselines in a folder, with the reason for each that is missing."""
    read = read_files(folder.files, root)
    unread = {path: f"{path}: {why}" for path, why in folder.problems.items()}
    return BaselineSet(read.folders, {**unread, **read.problems})
