from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from perfguard.github.client import Client


class Owner(Struct, frozen=True):
    login: str


class Repository(Struct, frozen=True):
    id: int
    full_name: str  # owner/name
    owner: Owner


class Branch(Struct, frozen=True):
    ref: str


class Hint(Struct, frozen=True):
    number: int
    base: Branch


class Run(Struct, frozen=True):
    """A workflow run, of the event or of the API. Titles, branches and actors in it are hostile text.

    Attributes:
        attempt: 1, 2 … when it is run again.
        event: what started it: `pull_request`, `merge_group`, `push` …
        path: of its workflow file; may end in `@ref`.
        conclusion: `success`, `failure`, `timed_out`, `cancelled` …; None while it runs.
        head_repository: None where the fork is gone.
        pull_requests: a hint at most; empty for most forks.
    """

    id: int
    event: str
    path: str
    head_sha: str
    repository: Repository
    attempt: int = field(name="run_attempt", default=1)
    head_branch: str | None = None
    conclusion: str | None = None
    head_repository: Repository | None = None
    pull_requests: list[Hint] = []


def read_event(environ: Mapping[str, str]) -> Run:
    """The run that completed, from the `workflow_run` event in GITHUB_EVENT_PATH.

    Raises:
        UsageError: no such variable or file, or another event.
    """
    raise NotImplementedError


def fetch_run(client: Client, number: int) -> Run:
    """A run of the client's repository by its id.

    Raises:
        GitHubError: there is none, or GitHub cannot be asked.
    """
    raise NotImplementedError


def reason_to_stop(run: Run, client: Client, workflow: str = ".github/workflows/measure.yml") -> str:
    """Why nothing is to be posted for this run; empty if something is.

    `cancelled` runs go on: `find_pull` finds a pull request only while its head is what the run measured.
    """
    raise NotImplementedError
