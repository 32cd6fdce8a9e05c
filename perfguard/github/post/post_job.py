"""The post job: check the run, gather and judge, save the report, post to GitHub.

Errors of GitHub change no verdict and lose no report: files and summary are written before posting.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from perfguard.github.api.client import Client, open_client
from perfguard.github.api.comment_identity import State
from perfguard.github.api.comments import Action, Posted, Rules, post_comment
from perfguard.github.api.job_summary import without_commands
from perfguard.github.api.retries import Clock
from perfguard.github.api.runs import MEASURE_WORKFLOW, Run, fetch_run, read_event, reason_to_stop
from perfguard.github.api.statuses import set_statuses
from perfguard.github.api.token import Environ
from perfguard.github.api.troubles import NoToken
from perfguard.github.post.gather import Gathered, default_branch_of, gather, link_of
from perfguard.github.post.report_copies import keep_files, keep_summary
from perfguard.github.post.what_to_tell import exit_status, given_up, is_resolved, statuses, wants_comment
from perfguard.model.config import Settings
from perfguard.model.errors import ExitStatus, GitHubError
from perfguard.model.lane_summary import Overview
from perfguard.render.markdown import render_markdown, render_resolved
from perfguard.session.report_command import merge, read_lanes


@dataclass(frozen=True)
class Job:
    """Options and environment of one post job.

    Attributes:
        environ: of GitHub Actions: token, repository, event, summary.
        run: id of the run that measured; None: the run of the job's event.
        dry: write nothing to GitHub.
        key: of the comment.
        output: folder of report.md, report.html and report.json.
        workflow: path of the workflow that measures.
    """

    settings: Settings
    environ: Environ
    run: int | None = None
    dry: bool = False
    key: str = "default"
    output: Path = Path(".perfguard")
    workflow: str = MEASURE_WORKFLOW
    clock: Clock | None = None


def post(job: Job) -> ExitStatus:
    """Judge the results of a run and post them; returns the verdict's status, or NOT_POSTED if only posting failed.

    Raises:
        UsageError: the job is not configured correctly.
    """
    client = measured = None
    try:
        client = open_client(job.environ, job.clock)
        measured = read_event(job.environ) if job.run is None else fetch_run(client, job.run)
        stop = reason_to_stop(measured, client, job.workflow)
        if stop:
            _say(job, [f"nothing to post: {stop}"])
            return ExitStatus.PASSED
        return _judge_and_tell(job, client, measured)
    except NoToken as error:
        return _judge_at_hand(job, error)
    except Exception as error:
        if isinstance(error, GitHubError):
            _say(
                job, [f"comment skipped: {error}", "the lanes' reports are artifacts of their run; run this job again"]
            )
        if client is not None and measured is not None and not job.dry:
            marks = given_up(job.settings, link_of(client, measured))
            _say(job, set_statuses(client, measured.head_sha, marks))
        if isinstance(error, GitHubError):
            return ExitStatus.NOT_POSTED
        raise


def _judge_and_tell(job: Job, client: Client, measured: Run) -> ExitStatus:
    """The verdict's status, or NOT_POSTED if only posting failed.

    Raises:
        GitHubError: GitHub cannot be asked for what judging needs.
        UsageError: no lane is expected.
    """
    gathered = gather(client, measured, job.settings, default_branch_of(job.environ))
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


def _judge_at_hand(job: Job, why: NoToken) -> ExitStatus:
    """Without a token: the verdicts of the reports in the output folder, where pytest saves them."""
    paths = sorted(job.output.glob("report-*.json"))
    if not paths:
        _say(job, [f"comment skipped: {why}; no report-*.json in {job.output} either"])
        return ExitStatus.NOT_POSTED
    overview = merge(read_lanes([str(path) for path in paths]), job.settings.lanes)
    problems = [*keep_files(job.output, overview), *keep_summary(job.environ, overview)]
    _say(job, [f"comment skipped: {why}; report: {job.output / 'report.md'}", *problems])
    return exit_status(overview, job.settings.strict)


def _tell(job: Job, client: Client, gathered: Gathered) -> list[str]:
    """Set the statuses, then post the comment. Returns failures, a sentence each; skipped steps are only printed."""
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
    measured, overview, settings = gathered.run, gathered.overview, job.settings
    lanes = [lane.name for lane in overview.lanes]
    return post_comment(
        client,
        gathered.pull,
        _texts(job, overview),
        wants=wants_comment(overview, settings),
        state=State(measured.id, measured.attempt, measured.head_sha, lanes),
        rules=Rules(job.key, settings.drafts, settings.author),
    )


def _texts(job: Job, overview: Overview) -> list[str]:
    """The comment's texts, the largest first. A resolved comment gets a few lines only."""
    if is_resolved(overview, job.settings):
        return [render_resolved(overview)]
    return render_markdown(overview)


def _rehearse(job: Job, gathered: Gathered) -> None:
    """Print the comment and statuses of a dry run."""
    overview = gathered.overview
    lines = [f"{mark.context}: {mark.state}: {mark.description}" for mark in statuses(overview, job.settings.strict)]
    if gathered.pull is None or job.settings.comment == "never":
        lines.append(f"no comment: {gathered.why_no_pull or 'comment is never in [tool.perfguard]'}")
    elif wants_comment(overview, job.settings):
        lines.append(f"comment on #{gathered.pull.number}:")
    else:
        lines.append(f"comment on #{gathered.pull.number}, only if there is one already:")
    print(_harmless(job, "\n".join([*lines, "", _texts(job, overview)[0]])))


def _say(job: Job, lines: Sequence[str]) -> None:
    if lines:
        print(_harmless(job, "\n".join(f"perfguard: {line}" for line in lines)), file=sys.stderr)


def _harmless(job: Job, text: str) -> str:
    """Text with untrusted names, in which an Actions runner ignores workflow commands."""
    return without_commands(text) if job.environ.get("GITHUB_ACTIONS") == "true" else text
