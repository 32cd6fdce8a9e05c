"""Gathers what judges one run: its pull request, the lanes' artifacts, the merge base's baselines and settings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

import msgspec

from perfguard.github.api.artifacts import fetch_artifacts
from perfguard.github.api.client import Client
from perfguard.github.api.commit_files import CommitFiles, find_merge_base
from perfguard.github.api.measured_run import Found, Pull, Run, find_pull
from perfguard.github.lanes.baselines_at_commit import Remembered, read_files
from perfguard.github.lanes.lane_views import Trusted, view
from perfguard.model.config import Settings, settings_from
from perfguard.model.errors import GitHubError, UsageError
from perfguard.render.overview import Overview

_CONFIGURATION = "pyproject.toml"
_SHA = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")


@dataclass(frozen=True)
class Gathered:
    """The judged results of one run, and where to report them.

    Attributes:
        pull: the pull request whose head was measured; None: report in the summary only, for the reason `why_no_pull`.
        own: the commit's statuses belong to this run: no other pull request has the commit as its head.
    """

    run: Run
    overview: Overview
    pull: Pull | None = None
    why_no_pull: str = ""
    own: bool = False


@dataclass(frozen=True)
class _Bases:
    """The commits of the judgement. Baselines of `base` are trusted. Those of `head` are only compared, to list edits;
    None: no edits. Times must be compared with `compared`; None: GitHub does not give it."""

    base: str
    head: str | None = None
    compared: str | None = None


def gather(client: Client, run: Run, settings: Settings, default_branch: str) -> Gathered:
    """Fetch, validate and judge what `run` delivered.

    Args:
        settings: of the default branch; names the expected lanes.
        default_branch: the commit of these settings. It is the base of a commit without a known pull request.

    Raises:
        GitHubError: GitHub cannot be asked.
        UsageError: no lane is expected.
    """
    if not settings.lanes:
        raise UsageError('lanes in [tool.perfguard]: empty; name those of measure.yml, e.g. lanes = ["nvidia-h200"]')
    found = find_pull(client, run)
    bases = _bases(client, run, found, default_branch)
    artifacts = fetch_artifacts(client, run, settings.lanes)
    trusted, unread, warnings = _trusted(client, bases, settings)
    judged = view(artifacts, run.head_sha, trusted)
    overview = msgspec.structs.replace(
        judged,
        head=run.head_sha,
        base=bases.base,
        unread=unread,
        run_url=link_of(client, run),
        warnings=[*warnings, *judged.warnings],
    )
    return Gathered(run, overview, found.pull, found.reason, own=found.alone or run.event != "pull_request")


def link_of(client: Client, run: Run) -> str:
    """URL of the run's attempt."""
    attempt = f"/attempts/{run.attempt}" if run.attempt > 1 else ""
    return f"{client.server}/{client.repository}/actions/runs/{run.id}{attempt}"


def _bases(client: Client, run: Run, found: Found, default_branch: str) -> _Bases:
    if run.event != "pull_request":
        return _Bases(run.head_sha, compared=run.queued_on)
    if found.pull is None and not _SHA.fullmatch(default_branch):
        why = "no commit; GitHub Actions sets it, set it to the base's tip"
        raise UsageError(f"GITHUB_SHA={default_branch[:60]!r}: {why}")
    base = find_merge_base(client, found.pull.base.sha if found.pull else default_branch, run.head_sha)
    return _Bases(base, run.head_sha, compared=base)


def _trusted(client: Client, bases: _Bases, settings: Settings) -> tuple[Trusted, str, list[str]]:
    """Baselines of base and head, why the head's were not all read (or ""), and how its configuration differs.

    Reads all folders, because edits for hardware without a lane count as well.
    """
    files = CommitFiles(client)
    limits, warnings = _settings(files, bases, settings)
    root = str(PurePosixPath(limits.baselines))
    base, missing = _baselines(files, root, bases.base)
    if missing:  # a lane's file may be among the unread ones
        raise GitHubError(f"{root} at {bases.base[:12]}: {missing}; merge suites of one hardware")
    if bases.head is None:
        return Trusted(base, commit=bases.compared), "", warnings
    head, unread = _baselines(files, root, bases.head)
    return Trusted(base, head, bases.compared), unread and f"the change's baselines: {unread}", warnings


def _baselines(files: CommitFiles, root: str, commit: str) -> tuple[Remembered, str]:
    """The baselines at a commit, and why files are missing from them (or "")."""
    folder = files.folder(root, commit)
    read = read_files(folder.files, root)
    unread = {path: f"{path}: {why}" for path, why in folder.problems.items()}
    return Remembered(read.folders, {**unread, **read.problems}), folder.problems.get(root, "")


def _settings(files: CommitFiles, bases: _Bases, now: Settings) -> tuple[Settings, list[str]]:
    """The settings before the change, and the change's edits of them, which are listed but not obeyed.

    `now`: settings of the default branch, used if this perfguard cannot read the old ones.
    """
    data = files.file(_CONFIGURATION, bases.base)
    limits, warnings = now, []
    try:
        limits = settings_from(data, f"{_CONFIGURATION} at {bases.base[:12]}")
    except UsageError as error:
        warnings.append(f"the default branch's settings were taken: {error}")
    edited = data if bases.head is None else files.file(_CONFIGURATION, bases.head)
    if edited == data:
        return limits, warnings
    try:
        after = msgspec.structs.asdict(settings_from(edited, _CONFIGURATION))
    except UsageError as error:
        return limits, [*warnings, f"the change's settings, not obeyed here: {error}"]
    before = msgspec.structs.asdict(limits)
    return limits, warnings + [
        f"[tool.perfguard] {name}: {before[name]!r} -> {after[name]!r} in this change; not obeyed here"
        for name in before
        if before[name] != after[name]
    ]
