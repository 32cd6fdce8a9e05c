"""The pull request of a run, from GitHub's own data, never from the run's artifacts.

`workflow_run.pull_requests` is empty for most forks, and `state=all` finds pull requests merged long ago. So the query
is for open pull requests of the head's branch, and the head must be exactly the measured commit.
"""

from __future__ import annotations

from msgspec import Struct

from perfguard.github.api.client import Client
from perfguard.github.api.runs import Run
from perfguard.github.api.troubles import Gone, NotFound, NotPermitted, Unexpected


class Pull(Struct, frozen=True):
    """An open pull request whose head is the commit that was measured.

    Attributes:
        base_sha: tip of the target branch.
        head_sha: the measured commit.
        labels: label names.
        alone: no other open pull request has this head, so a status on the commit belongs to this one. Anyone can push
            somebody else's commit to a fork and open another.
    """

    number: int
    base_sha: str
    head_sha: str
    draft: bool = False
    labels: list[str] = []
    alone: bool = True


class Found(Struct, frozen=True):
    """The pull request of a run, or the reason why none gets a comment (one sentence, for the log)."""

    pull: Pull | None = None
    reason: str = ""


class _Repository(Struct, frozen=True):
    id: int


class _Side(Struct, frozen=True):
    sha: str
    ref: str
    repo: _Repository | None = None  # a fork may be gone


class _Label(Struct, frozen=True):
    name: str = ""


class _Pull(Struct, frozen=True):
    number: int
    state: str
    head: _Side
    base: _Side
    draft: bool | None = False
    labels: list[_Label] = []

    def known(self, *, alone: bool) -> Pull:
        labels = [label.name for label in self.labels]
        return Pull(self.number, self.base.sha, self.head.sha, bool(self.draft), labels, alone)


def find_pull(client: Client, run: Run) -> Found:
    """The open pull request whose head `run` measured, found by repository, branch and commit of the event.

    Raises:
        GitHubError: GitHub cannot be asked.
    """
    if run.event != "pull_request":
        return Found(reason=f"run {run.id} was started by {run.event}: there is no pull request to comment on")
    if run.head_repository is None:
        return Found(reason=f"the repository that {run.head_sha[:12]} came from is gone; nothing to comment on")
    branch = _open_of_branch(client, run)
    same = _same_head(branch, run)
    if not same and branch:
        numbers = ", ".join(f"#{pull.number} is at {pull.head.sha[:12]}" for pull in branch[:5])
        return Found(reason=f"measured {run.head_sha[:12]}, which is outdated: {numbers}; its own run will comment")
    if not same:
        same = _same_head(_of_commit(client, run), run)
    if not same:
        return Found(reason=f"no open pull request has {run.head_sha[:12]} as its head; nothing to comment on")
    if len(same) == 1:
        return Found(same[0].known(alone=_is_alone(client, same[0])))
    return _by_base(same, run)


def read_pull(client: Client, number: int) -> tuple[Pull, bool]:
    """A pull request as it is now, and whether it is open.

    Raises:
        GitHubError: there is none, or GitHub cannot be asked.
    """
    answer = client.get(f"/repos/{client.repository}/pulls/{number}", _Pull)
    return answer.known(alone=True), answer.state == "open"


def _open_of_branch(client: Client, run: Run) -> list[_Pull]:
    """Open pull requests from the run's branch into our repository."""
    assert run.head_repository is not None
    if not run.head_branch:
        return []
    params = {"state": "open", "head": f"{run.head_repository.owner.login}:{run.head_branch}"}
    pages = client.pages(f"/repos/{client.repository}/pulls", list[_Pull], params)
    return [pull for page in pages for pull in page if _is_between(pull, run)]


def _of_commit(client: Client, run: Run) -> list[_Pull]:
    """Open pull requests with the commit, queried from the head's repository: ours does not list a fork's commits."""
    assert run.head_repository is not None
    path = f"/repos/{run.head_repository.full_name}/commits/{run.head_sha}/pulls"
    try:
        return [pull for page in client.pages(path, list[_Pull]) for pull in page if _is_between(pull, run)]
    except (NotFound, Gone, NotPermitted):  # a private fork
        return []


def _is_alone(client: Client, found: _Pull) -> bool:
    """Whether no other open pull request, from any branch, has the same head; False if unknown."""
    try:
        pages = client.pages(f"/repos/{client.repository}/pulls", list[_Pull], {"state": "open"})
        return [pull.number for page in pages for pull in page if pull.head.sha == found.head.sha] == [found.number]
    except Unexpected:  # more pages than we read
        return False


def _is_between(pull: _Pull, run: Run) -> bool:
    """Whether it is open, from the run's repository into ours. One owner can have several forks in a network."""
    head, base = pull.head.repo, pull.base.repo
    assert run.head_repository is not None
    return (
        pull.state == "open"
        and head is not None
        and head.id == run.head_repository.id
        and base is not None
        and base.id == run.repository.id
    )


def _same_head(pulls: list[_Pull], run: Run) -> list[_Pull]:
    return [pull for pull in pulls if pull.head.sha == run.head_sha]


def _by_base(same: list[_Pull], run: Run) -> Found:
    """One of several with the same head, identified by the base that GitHub names for the run."""
    bases = {(hint.number, hint.base.ref) for hint in run.pull_requests or []}
    meant = [pull for pull in same if (pull.number, pull.base.ref) in bases]
    if len(meant) == 1:
        return Found(meant[0].known(alone=False))
    numbers = ", ".join(f"#{pull.number}" for pull in same)
    return Found(reason=f"{numbers} share the head {run.head_sha[:12]}; which one was measured cannot be told")
