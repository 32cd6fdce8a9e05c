"""Gathers the artifacts of the lanes of one run, and judges them by the baselines of the merge base."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import PurePosixPath

import msgspec

from perfguard.github.api.client import Client
from perfguard.github.api.commit_files import MOST_LISTED, CommitFiles, Folder, find_merge_base
from perfguard.github.api.measured_run import Pull, WorkflowRun, fetch_artifacts, job_urls, link_of
from perfguard.github.lanes.baselines_at_commit import BaselineSet, read_files
from perfguard.github.lanes.lane_views import Reference, judge_lanes
from perfguard.github.lanes.untrusted_report import receive_all
from perfguard.judge.lane import is_own
from perfguard.model.config import SETTINGS_FILE, Settings
from perfguard.model.errors import GitHubError, UsageError
from perfguard.model.records.baseline import EVERY_CPU
from perfguard.model.units import Unit
from perfguard.render.overview import Overview
from perfguard.render.record_changes import BaselineEdit
from perfguard.session.pairing.worktrees import is_code
from perfguard.store.comment_limits import MOST_FILE_BYTES, MOST_FILES, PACKED_BYTES, most_cases, most_recorded

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
