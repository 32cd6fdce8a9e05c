"""The workflow run that measured, and its pull request, from GitHub's data instead of the run's artifacts. Links to its
jobs, and the artifacts that its lanes uploaded, which are not parsed here."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct, field

from perfguard.github.api.client import FULL_NAME, ApiError, Client
from perfguard.model.errors import GitHubError, UsageError

MEASURE_WORKFLOW = ".github/workflows/measure.yml"
Sha = Annotated[str, Meta(pattern="^[0-9a-f]{40}([0-9a-f]{24})?$")]  # This is SHA-1 or SHA-256.
_LINK = re.compile(r"https?://.+/actions/runs/([0-9]{1,18})(?:/attempts/([0-9]{1,9}))?")
_QUEUE = re.compile(r"gh-readonly-queue/.+/pr-[0-9]+-([0-9a-f]{40}(?:[0-9a-f]{24})?)", re.DOTALL)
_LANES = 5  # So many of the largest archives are read together; others are smaller.
_EVENTS = ("pull_request", "merge_group", "push")
_CONCLUSIONS = ("success", "failure", "timed_out", "cancelled")


class _Number(Struct, frozen=True):
    number: int


class Repository(Struct, frozen=True):
    """A repository; its id survives a rename. `full_name` is `owner/name`."""

    id: int
    full_name: Annotated[str, Meta(pattern=f"^{FULL_NAME}$")]


class WorkflowRun(Struct, frozen=True):
    """A workflow run, from the event or the API. Its titles, branches and actors are untrusted text.

    Attributes:
        attempt: the number of the attempt, from 1.
        event: the trigger of the run: `pull_request`, `merge_group`, `push` …
        path: the path of its workflow file, which may end in `@ref`.
        conclusion: `success`, `failure`, `timed_out`, `cancelled` …; None while the run lasts.
        head_repository: the repository of the head; None if the fork was deleted.
        pull_requests: those that GitHub knows the run by; none for most forks.
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
    pull_requests: list[_Number] | None = None

    @property
    def order(self) -> tuple[int, int]:
        """The place among the runs of a repository, whose ids rise: (id, attempt)."""
        return self.id, self.attempt

    @property
    def queued_on(self) -> str | None:
        """The commit on which a merge queue placed the head, from the name of the branch; None for other events, since
        GitHub's API does not give the commit before a push."""
        found = _QUEUE.fullmatch(self.head_branch or "") if self.event == "merge_group" else None
        return found[1] if found else None


def link_of(client: Client, run: WorkflowRun) -> str:
    """The URL of the run's attempt."""
    attempt = f"/attempts/{run.attempt}" if run.attempt > 1 else ""
    return f"{client.server}/{client.repository}/actions/runs/{run.id}{attempt}"


def order_of(link: str) -> tuple[int, int] | None:
    """`WorkflowRun.order` from the URL of an attempt; None for any other text."""
    found = _LINK.fullmatch(link)
    return (int(found[1]), int(found[2] or 1)) if found else None


class _Event(Struct, frozen=True):
    workflow_run: WorkflowRun


class _Id(Struct, frozen=True):
    id: int


class Side(Struct, frozen=True):
    """The head or base of a pull request; its repository may have been deleted."""

    sha: str
    ref: str
    repo: _Id | None = None


class Pull(Struct, frozen=True):
    """A pull request."""

    number: int
    state: str
    head: Side
    base: Side


class Lookup(Struct, frozen=True):
    """The pull request of a run, or the reason why none gets a comment (one sentence, for the log).

    Attributes:
        alone: whether this run may set the commit's statuses, because no other open pull request has this head. Anyone
            can push a commit of others to a fork and open another pull request.
    """

    pull: Pull | None = None
    reason: str = ""
    alone: bool = False


def read_event(environ: Mapping[str, str]) -> WorkflowRun:
    """The run that completed, from the `workflow_run` event in GITHUB_EVENT_PATH.

    Raises:
        UsageError: there is no such variable or file, or the event is another one.
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


def fetch_run(client: Client, number: int) -> WorkflowRun:
    """A run of the client's repository by its id.

    Raises:
        GitHubError: there is none, or the request fails.
    """
    return client.get(f"/actions/runs/{number}", WorkflowRun)


def reason_to_stop(run: WorkflowRun, client: Client, workflow: str = MEASURE_WORKFLOW) -> str:
    """Why nothing is posted for this run; empty if the run is posted.

    Cancelled runs of pull requests are posted, too: `find_pull` checks that the head is still the measured commit.
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


def find_pull(client: Client, run: WorkflowRun) -> Lookup:
    """The open pull request whose head `run` measured.

    All open pull requests are queried, since `workflow_run.pull_requests` is empty for most forks, and the list of a
    commit includes pull requests that were merged long ago.

    Raises:
        GitHubError: a request fails.
    """
    if run.event != "pull_request":
        return Lookup(reason=f"the run was started by a {run.event}, which has no pull request", alone=True)
    if run.head_repository is None:
        return Lookup(reason=f"the repository that {run.head_sha[:12]} came from is gone; nothing to comment on")
    pulls = [pull for page in client.pages("/pulls", list[Pull], state="open") for pull in page]
    same = [pull for pull in pulls if pull.head.sha == run.head_sha]
    ours = [pull for pull in same if _is_between(pull, run)]
    if len(ours) > 1:  # They differ in their bases. GitHub may know which one started the run.
        known = {each.number for each in run.pull_requests or ()}
        ours = [pull for pull in ours if pull.number in known] or ours
    if len(ours) == 1:
        return Lookup(ours[0], alone=len(same) == 1)
    if ours:
        numbers = ", ".join(f"#{pull.number}" for pull in ours)
        return Lookup(reason=f"{numbers} share the head {run.head_sha[:12]}; it is unclear which one was measured")
    moved = [pull for pull in pulls if pull.head.ref == run.head_branch and _is_between(pull, run)]
    if moved:
        numbers = ", ".join(f"#{pull.number} is at {pull.head.sha[:12]}" for pull in moved[:5])
        return Lookup(reason=f"measured {run.head_sha[:12]}, which is outdated: {numbers}; its own run will comment")
    return Lookup(reason=f"no open pull request has {run.head_sha[:12]} as its head; nothing to comment on")


def _is_between(pull: Pull, run: WorkflowRun) -> bool:
    """Whether the pull request is from the run's head repository to its base. An owner can have several forks."""
    head, base = pull.head.repo, pull.base.repo
    assert run.head_repository is not None
    return head is not None and head.id == run.head_repository.id and base is not None and base.id == run.repository.id


class _Job(Struct, frozen=True):
    name: str
    html_url: str


class _Jobs(Struct, frozen=True):
    jobs: list[_Job]


def job_urls(client: Client, run: WorkflowRun, lanes: Sequence[str]) -> dict[str, str]:
    """Lane -> the URL of its job, if exactly one job of the run's attempt names it: `measure (nvidia-h200) / lane`.

    Only the first 100 jobs are read. A result without links is a result, so that a failed request means no links.
    """
    try:
        jobs = client.get(f"/actions/runs/{run.id}/attempts/{run.attempt}/jobs", _Jobs, per_page="100").jobs
    except GitHubError:
        return {}
    urls = {}
    for lane in lanes:
        named = [job.html_url for job in jobs if re.search(rf"(?<![\w.+-]){re.escape(lane)}(?![\w.+-])", job.name)]
        if len(named) == 1 and named[0].startswith(f"{client.server}/"):
            urls[lane] = named[0]
    return urls


class _Source(Struct, frozen=True):
    head_branch: str | None = None
    head_repository_id: int | None = None


class _Artifact(Struct, frozen=True):
    id: int
    name: str
    size_in_bytes: int
    expired: bool
    digest: str | None = None
    workflow_run: _Source = _Source()


class _Page(Struct, frozen=True):
    artifacts: list[_Artifact]


def fetch_artifacts(
    client: Client, run: WorkflowRun, lanes: Sequence[str], most: int
) -> tuple[dict[str, bytes | str], list[str]]:
    """Lane -> the zip file that it uploaded, or why there is none, with the next step; and a warning for each lane
    whose file is of an earlier attempt.

    An artifact is called `perfguard-<lane>-<attempt>`. The highest attempt counts, up to the run's own.

    Args:
        most: the most bytes of an archive.

    Raises:
        GitHubError: the artifacts cannot be listed.
    """
    by_lane: dict[str, bytes | str] = {}
    earlier: list[str] = []
    for lane in lanes:
        left = _LANES * most - sum(len(data) for data in by_lane.values() if isinstance(data, bytes))
        attempt, by_lane[lane] = _fetch_lane(client, run, lane, min(most, left))
        if attempt < run.attempt and isinstance(by_lane[lane], bytes):
            earlier.append(f"{lane}: the report is of attempt {attempt}, since attempt {run.attempt} uploaded none")
    return by_lane, earlier


def fetch_newest(client: Client, run: WorkflowRun, name: str, most: int) -> bytes | None:
    """The newest zip file of this name that a run of the branch of `run` uploaded, otherwise the newest of any branch
    of the repository itself; None if there is none. Those of other forks are not used.

    Args:
        most: the most bytes of an archive.

    Raises:
        GitHubError: a request fails, or the file is too large.
    """
    listed = client.get("/actions/artifacts", _Page, name=name, per_page="100").artifacts  # The newest come first.
    own, home = (run.head_repository.id if run.head_repository else 0, run.head_branch), run.repository.id

    def branch(each: _Artifact) -> tuple[int | None, str | None]:
        return each.workflow_run.head_repository_id, each.workflow_run.head_branch

    usable = [each for each in listed if not each.expired and (branch(each) == own or branch(each)[0] == home)]
    newest = max(usable, key=lambda each: (branch(each) == own, each.id), default=None)
    return None if newest is None else _download(client, newest, most)


def _fetch_lane(client: Client, run: WorkflowRun, lane: str, limit: int) -> tuple[int, bytes | str]:
    """The attempt that uploaded something, and the file or why it is not used."""
    for attempt in range(run.attempt, 0, -1):  # A lane that did not run again has an earlier one.
        # The name filters the list, because a run of untrusted code may have thousands of other artifacts.
        pages = client.pages(f"/actions/runs/{run.id}/artifacts", _Page, name=f"perfguard-{lane}-{attempt}")
        same = [artifact for page in pages for artifact in page.artifacts]
        if len(same) > 1:
            return attempt, f"{len(same)} artifacts are called {same[0].name}; upload one"
        if same:
            try:
                return attempt, _download(client, same[0], limit)
            except GitHubError as error:
                return attempt, f"{same[0].name}: {error}"
    return 0, "nothing was uploaded; look at the lane's job, and run it again"


def _download(client: Client, artifact: _Artifact, limit: int) -> bytes:
    expired = GitHubError("expired; run the lane again")
    if artifact.expired:
        raise expired
    if artifact.size_in_bytes > limit:
        raise GitHubError(
            f"{artifact.size_in_bytes:,} bytes, larger than {limit:,} bytes; upload nothing but the report"
        )
    try:
        data = client.download(f"/actions/artifacts/{artifact.id}/zip", limit)
    except ApiError as error:
        raise (expired if error.status == 410 else error) from error
    kind, _, digest = (artifact.digest or "").partition(":")
    if kind == "sha256" and hashlib.sha256(data).hexdigest() != digest:
        raise GitHubError("its bytes are not those that were uploaded; run the post job again")
    return data
