"""The workflow run that measured, from the event or the API, and whether its results are posted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct, field

from perfguard.github.api.client import FULL_NAME, Client
from perfguard.model.errors import UsageError

MEASURE_WORKFLOW = ".github/workflows/measure.yml"
Sha = Annotated[str, Meta(pattern="^[0-9a-f]{40}([0-9a-f]{24})?$")]  # SHA-1, or SHA-256
_QUEUE = re.compile(r"gh-readonly-queue/.+/pr-[0-9]+-([0-9a-f]{40}(?:[0-9a-f]{24})?)", re.DOTALL)
_EVENTS = ("pull_request", "merge_group", "push")
_CONCLUSIONS = ("success", "failure", "timed_out", "cancelled")


class Owner(Struct, frozen=True):
    """Owner of a repository: a person or an organisation."""

    login: str


class Repository(Struct, frozen=True):
    """A repository; its id survives a rename. `full_name` is `owner/name`."""

    id: int
    full_name: Annotated[str, Meta(pattern=f"^{FULL_NAME}$")]
    owner: Owner


class Branch(Struct, frozen=True):
    """Base branch of a hint."""

    ref: str


class Hint(Struct, frozen=True):
    """A pull request that GitHub associates with a run."""

    number: int
    base: Branch


class Run(Struct, frozen=True):
    """A workflow run, from the event or the API. Its titles, branches and actors are hostile text.

    Attributes:
        attempt: 1, then 2 … for reruns.
        event: trigger of the run: `pull_request`, `merge_group`, `push` …
        path: of its workflow file; may end in `@ref`.
        conclusion: `success`, `failure`, `timed_out`, `cancelled` …; None while it runs.
        head_repository: None if the fork was deleted.
        pull_requests: a hint only; empty for most forks.
    """

    id: int
    event: str
    path: str
    head_sha: Sha
    repository: Repository
    attempt: int = field(name="run_attempt", default=1)
    head_branch: str | None = None
    conclusion: str | None = None
    head_repository: Repository | None = None
    pull_requests: list[Hint] | None = None

    @property
    def queued_on(self) -> str | None:
        """The commit that a merge queue placed the head on, from the branch name. None for other events: for a push,
        GitHub's API does not give the previous commit."""
        found = _QUEUE.fullmatch(self.head_branch or "") if self.event == "merge_group" else None
        return found[1] if found else None


class _Event(Struct, frozen=True):
    workflow_run: Run


def read_event(environ: Mapping[str, str]) -> Run:
    """The run that completed, from the `workflow_run` event in GITHUB_EVENT_PATH.

    Raises:
        UsageError: no such variable or file, or another event.
    """
    path = environ.get("GITHUB_EVENT_PATH", "")
    if not path:
        raise UsageError("GITHUB_EVENT_PATH: not set; post from a workflow_run job, or name a run by its id")
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=_Event).workflow_run
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); GITHUB_EVENT_PATH names the event") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path}: no workflow_run event ({error}); run this in a job `on: workflow_run`") from error


def fetch_run(client: Client, number: int) -> Run:
    """A run of the client's repository by its id.

    Raises:
        GitHubError: there is none, or GitHub cannot be asked.
    """
    return client.get(f"/repos/{client.repository}/actions/runs/{number}", Run)


def reason_to_stop(run: Run, client: Client, workflow: str = MEASURE_WORKFLOW) -> str:
    """Why nothing is posted for this run; empty if something is.

    `cancelled` runs of pull requests continue: `find_pull` finds one only while its head is the measured commit.
    """
    if not client.is_home(run.repository.id, run.repository.full_name):
        return f"run {run.id} belongs to {run.repository.full_name}, not to {client.repository}"
    path = run.path.partition("@")[0]
    if path not in (workflow, f"{run.repository.full_name}/{workflow}"):
        return f"run {run.id} is of another workflow, {path[:200]!r}, not of {workflow}"
    if run.event not in _EVENTS:
        return f"run {run.id} was started by {run.event[:50]!r}, not by one of {', '.join(_EVENTS)}"
    if run.conclusion not in _CONCLUSIONS:
        return f"run {run.id} ended as {str(run.conclusion)[:50]!r}, not as one of {', '.join(_CONCLUSIONS)}"
    if run.event != "pull_request" and run.conclusion == "cancelled":
        return f"run {run.id} was cancelled"
    return ""
