"""The post job as a paragraph: gate, gather and judge, keep the report, tell GitHub.

Trouble with GitHub changes no verdict and loses no report: files and summary are written before anything is posted.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfguard.config import Settings
from perfguard.errors import ExitStatus, GitHubError
from perfguard.github import (
    Action,
    Client,
    Clock,
    Posted,
    Rules,
    State,
    fetch_run,
    open_client,
    post_comment,
    read_event,
    reason_to_stop,
    set_statuses,
    without_commands,
)
from perfguard.posting.gathering import Gathered, default_branch_of, gather
from perfguard.posting.keeping import keep_files, keep_summary
from perfguard.posting.telling import exit_status, statuses, wants_comment
from perfguard.render.markdown import render_markdown


@dataclass(frozen=True)
class Job:
    """What one post job was asked for, and where it runs.

    Attributes:
        environ: of GitHub Actions: token, repository, event, summary.
        run: id of the run that measured; None: the one of the job's event.
        dry: tell GitHub nothing.
        key: of the comment.
        output: folder of report.md, report.html and report.json.
    """

    settings: Settings
    environ: Mapping[str, str]
    run: int | None = None
    dry: bool = False
    key: str = "default"
    output: Path = Path(".perfguard")
    clock: Clock | None = None


def post(job: Job) -> ExitStatus:
    """Judge what a run delivered and tell it; the verdict's status, NOT_POSTED where only the telling failed.

    Raises:
        UsageError: a job that is not set up as it has to be.
    """
    try:
        client = open_client(job.environ, job.clock)
        measured = read_event(job.environ) if job.run is None else fetch_run(client, job.run)
        stop = reason_to_stop(measured, client)
        if stop:
            _say(job, [f"nothing to post: {stop}"])
            return ExitStatus.PASSED
        gathered = gather(client, measured, job.settings, default_branch_of(job.environ))
    except GitHubError as error:
        _say(job, [f"comment skipped: {error}", "the lanes' reports are artifacts of their run; run this job again"])
        return ExitStatus.NOT_POSTED
    problems = keep_files(job.output, gathered.overview)
    if not problems:
        _say(job, [f"report: {job.output / 'report.md'}"])
    if job.dry:
        _rehearse(job, gathered)
        failures: list[str] = []
    else:
        problems += keep_summary(job.environ, gathered.overview)
        failures = _tell(job, client, gathered)
    _say(job, [*problems, *failures])
    verdict = exit_status(gathered.overview, job.settings.strict)
    return ExitStatus.NOT_POSTED if failures and verdict is ExitStatus.PASSED else verdict


def _tell(job: Job, client: Client, gathered: Gathered) -> list[str]:
    """Statuses, then the comment. What is merely not due is said; what failed is returned, a sentence each."""
    failures = []
    pull = gathered.pull
    if gathered.own or (pull is not None and pull.alone):
        failures += set_statuses(client, gathered.run.head_sha, statuses(gathered.overview, job.settings.strict))
    elif pull is not None:
        _say(job, [f"no statuses: {pull.head_sha[:12]} is the head of another pull request, too"])
    if pull is None or job.settings.comment == "never":
        _say(job, [f"no comment: {gathered.why_no_pull or 'comment is never in [tool.perfguard]'}"])
        return failures
    posted = _comment(job, client, gathered)
    _say(job, [": ".join(filter(None, (f"comment {posted.action}", posted.reason))), *posted.warnings])
    return [*failures, f"post failed: {posted.reason}"] if posted.action is Action.FAILED else failures


def _comment(job: Job, client: Client, gathered: Gathered) -> Posted:
    assert gathered.pull is not None
    measured, overview = gathered.run, gathered.overview
    return post_comment(
        client,
        gathered.pull,
        render_markdown(overview),
        wants=wants_comment(overview, job.settings),
        state=State(measured.id, measured.attempt, measured.head_sha, [lane.name for lane in overview.lanes]),
        rules=Rules(key=job.key, notify=job.settings.notify),
    )


def _rehearse(job: Job, gathered: Gathered) -> None:
    """Print what would be written."""
    overview = gathered.overview
    lines = [f"{mark.context}: {mark.state}: {mark.description}" for mark in statuses(overview, job.settings.strict)]
    if gathered.pull is None or job.settings.comment == "never":
        lines.append(f"no comment: {gathered.why_no_pull or 'comment is never in [tool.perfguard]'}")
    elif wants_comment(overview, job.settings):
        lines.append(f"comment on #{gathered.pull.number}:")
    else:
        lines.append(f"comment on #{gathered.pull.number}, only if there is one already:")
    print(_harmless(job, "\n".join([*lines, "", render_markdown(overview)[0]])))


def _say(job: Job, lines: Sequence[str]) -> None:
    if lines:
        print(_harmless(job, "\n".join(f"perfguard: {line}" for line in lines)), file=sys.stderr)


def _harmless(job: Job, text: str) -> str:
    """Names of strangers stand in it: an Actions runner takes no line of it for a command."""
    return without_commands(text) if job.environ.get("GITHUB_ACTIONS") == "true" else text
