"""Steps 2 to 5 of the post job: find the pull request, fetch artifacts and the merge base's baselines, judge."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import msgspec

from perfguard.github.api.artifacts import NO_RESULT, LaneArtifact, fetch_artifacts
from perfguard.github.api.client import Client
from perfguard.github.api.contents import MergeBase, Tree, fetch_file, fetch_tree, find_merge_base
from perfguard.github.api.pulls import Pull, find_pull
from perfguard.github.api.runs import Run
from perfguard.github.lanes.baselines_at_commit import Remembered, read_files
from perfguard.github.lanes.lane_views import Delivery, Trusted, arrive, view
from perfguard.model.config import Settings, settings_from
from perfguard.model.errors import GitHubError, UsageError
from perfguard.model.lane_summary import Overview

MOST_COMMITS_BEHIND = 500  # a merge base further behind gets a warning at any age
_CONFIGURATION = "pyproject.toml"
_SHA = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")


@dataclass(frozen=True)
class Gathered:
    """The judged results of one run, and where to report them.

    Attributes:
        pull: the pull request whose head was measured; None: report in the summary only, for the reason `why_no_pull`.
        own: the run was not for a pull request (a push, a merge queue), so it may set the commit's statuses.
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
    head: str | None
    merge_base: MergeBase | None = None
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
    of_pull = run.event == "pull_request"
    found = find_pull(client, run) if of_pull else None
    pull = found.pull if found else None
    bases = _bases(client, run, pull, default_branch) if of_pull else _Bases(run.head_sha, None, compared=run.queued_on)
    artifacts = fetch_artifacts(client, run, settings.lanes)
    trusted, unread, warnings = _trusted(client, bases, settings)
    views = view(arrive([_delivery(each) for each in artifacts], run.head_sha), trusted)
    overview = Overview(
        lanes=views.lanes,
        edits=views.edits,
        head=run.head_sha,
        base=bases.base,
        base_age_days=bases.merge_base.age_days if bases.merge_base else None,
        unread=unread,
        run_url=link_of(client, run),
        artifacts_until=_until(artifacts),
        warnings=[*_age(bases, settings.max_base_age_days), *warnings, *views.warnings],
    )
    why = found.reason if found else f"the run was started by a {run.event}, which has no pull request"
    return Gathered(run, overview, pull, "" if pull else why, own=not of_pull)


def link_of(client: Client, run: Run) -> str:
    """URL of the run's attempt, which also orders statuses."""
    attempt = f"/attempts/{run.attempt}" if run.attempt > 1 else ""
    return f"{client.server}/{client.repository}/actions/runs/{run.id}{attempt}"


def _delivery(artifact: LaneArtifact) -> Delivery:
    nothing = artifact.problem == NO_RESULT
    problem = "nothing was uploaded; look at the lane's job, and run it again" if nothing else artifact.problem
    return Delivery(artifact.lane, artifact.data, problem)


def _bases(client: Client, run: Run, pull: Pull | None, default_branch: str) -> _Bases:
    """The commits of a pull request's judgement."""
    if pull is None and not _SHA.fullmatch(default_branch):
        why = "no commit; GitHub Actions sets it, set it to the base's tip"
        raise UsageError(f"GITHUB_SHA={default_branch[:60]!r}: {why}")
    found = find_merge_base(client, pull.base_sha if pull else default_branch, run.head_sha)
    return _Bases(found.sha, run.head_sha, found, compared=found.sha)


def _trusted(client: Client, bases: _Bases, settings: Settings) -> tuple[Trusted, str, list[str]]:
    """Baselines of base and head, why the head's were not all read (or ""), and how its configuration differs.

    Reads all folders, because edits for hardware without a lane count as well.
    """
    limits, warnings = _settings(client, bases, settings)
    root = str(PurePosixPath(limits.baselines))
    before = fetch_tree(client, root, bases.base)
    if root in before.problems:  # a lane's file may be among the unread ones
        raise GitHubError(f"{root} at {bases.base[:12]}: {before.problems[root]}; merge suites of one hardware")
    head = None
    unread = ""
    if bases.head is not None:
        after = fetch_tree(client, root, bases.head, before.files)
        head = _read(after, root)
        if root in after.problems:
            unread = f"the change's baselines: {after.problems[root]}"
    return Trusted(_read(before, root), head, bases.compared), unread, warnings


def _read(tree: Tree, root: str) -> Remembered:
    read = read_files({path: file.data for path, file in tree.files.items()}, root)
    unread = {path: f"{path}: {why}" for path, why in tree.problems.items()}
    return Remembered(read.folders, {**unread, **read.problems})


def _settings(client: Client, bases: _Bases, now: Settings) -> tuple[Settings, list[str]]:
    """The settings before the change, and the change's edits of them, which are listed but not obeyed.

    `now`: settings of the default branch, used if this perfguard cannot read the old ones.
    """
    data = fetch_file(client, _CONFIGURATION, bases.base)
    limits, warnings = now, []
    try:
        limits = settings_from(data or b"", f"{_CONFIGURATION} at {bases.base[:12]}")
    except UsageError as error:
        warnings.append(f"the default branch's settings were taken: {error}")
    if bases.head is None:
        return limits, warnings
    edited = fetch_file(client, _CONFIGURATION, bases.head)
    if edited == data:
        return limits, warnings
    try:
        after = msgspec.structs.asdict(settings_from(edited or b"", _CONFIGURATION))
    except UsageError as error:
        return limits, [*warnings, f"the change's settings, not obeyed here: {error}"]
    before = msgspec.structs.asdict(limits)
    return limits, warnings + [
        f"[tool.perfguard] {name}: {before[name]!r} -> {after[name]!r} in this change; not obeyed here"
        for name in before
        if before[name] != after[name]
    ]


def _until(artifacts: Sequence[LaneArtifact]) -> str:
    """The day on which the first artifact expires."""
    days = sorted(artifact.expires[:10] for artifact in artifacts if artifact.expires)
    try:
        return datetime.date.fromisoformat(days[0]).isoformat() if days else ""
    except ValueError:
        return ""


def _age(bases: _Bases, most_days: int) -> list[str]:
    base = bases.merge_base
    if base is None or (base.age_days <= most_days and base.behind <= MOST_COMMITS_BEHIND):
        return []
    return [
        f"the merge base {base.sha[:12]} is {base.age_days} days and {base.behind} commits old: merge or rebase, "
        "so that newer baselines judge"
    ]


def default_branch_of(environ: Mapping[str, str]) -> str:
    """The commit that a workflow_run job runs for: the tip of the default branch."""
    return environ.get("GITHUB_SHA", "")
