"""Gathers the artifacts of the lanes of one run, and judges them by the baselines of the merge base."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

import msgspec

from perfguard.github.api.artifacts import fetch_artifacts
from perfguard.github.api.client import Client
from perfguard.github.api.commit_files import CommitFiles, find_merge_base
from perfguard.github.api.jobs import job_urls
from perfguard.github.api.measured_run import Pull, WorkflowRun
from perfguard.github.lanes.baselines_at_commit import BaselineSet, read_files
from perfguard.github.lanes.lane_views import Reference, judge_lanes
from perfguard.github.lanes.untrusted_report import receive_all
from perfguard.model.config import Settings
from perfguard.model.errors import GitHubError, UsageError
from perfguard.render.overview import Overview

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
    if run.event == "pull_request":
        base = compared = _merge_base(client, run, pull, default_branch)
        head = run.head_sha
    artifacts = fetch_artifacts(client, run, settings.lanes)
    files = CommitFiles(client)
    root = str(PurePosixPath(settings.baselines))
    # All folders are read, because edits for hardware without a lane are judged as well.
    before, missing = _baselines(files, root, base)
    if missing:  # A missing file may be that of a lane.
        raise GitHubError(f"{root} at {base[:12]}: {missing}; merge suites of one hardware")
    after, unread = _baselines(files, root, head) if head else (None, "")
    judged = judge_lanes(receive_all(artifacts, run.head_sha), Reference(before, after, compared))
    jobs = job_urls(client, run, settings.lanes)
    return msgspec.structs.replace(
        judged,
        lanes=[msgspec.structs.replace(lane, job_url=jobs.get(lane.name, "")) for lane in judged.lanes],
        head=run.head_sha,
        base=base,
        unread=unread and f"the change's baselines: {unread}",
        run_url=link_of(client, run),
        source_url=f"{client.server}/{client.repository}/blob/{run.head_sha}/",
    )


def link_of(client: Client, run: WorkflowRun) -> str:
    """The URL of the run's attempt."""
    attempt = f"/attempts/{run.attempt}" if run.attempt > 1 else ""
    return f"{client.server}/{client.repository}/actions/runs/{run.id}{attempt}"


def _merge_base(client: Client, run: WorkflowRun, pull: Pull | None, default_branch: str) -> str:
    if pull is None and not _SHA.fullmatch(default_branch):
        why = "no commit; GitHub Actions sets it, set it to the base's tip"
        raise UsageError(f"GITHUB_SHA={default_branch[:60]!r}: {why}")
    return find_merge_base(client, pull.base.sha if pull else default_branch, run.head_sha)


def _baselines(files: CommitFiles, root: str, commit: str) -> tuple[BaselineSet, str]:
    """The baselines at a commit, and why files are missing; "" if none is."""
    folder = files.folder(root, commit)
    read = read_files(folder.files, root)
    unread = {path: f"{path}: {why}" for path, why in folder.problems.items()}
    return BaselineSet(read.folders, {**unread, **read.problems}), folder.problems.get(root, "")
