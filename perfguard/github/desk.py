"""Finds a workflow run for a person's checkout: its remotes and `gh` have what GitHub Actions gives to a job."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from perfguard.github.api.client import TIMEOUT, TOKEN, ApiError, Client, open_client
from perfguard.github.api.measured_run import WorkflowRun, fetch_run
from perfguard.model.errors import UsageError
from perfguard.render.words import listed
from perfguard.session.pairing.worktrees import find_repository

_GITHUB = "github.com"
_HOST = r"(?:ssh\.|www\.)?(?P<host>[A-Za-z0-9][A-Za-z0-9.-]*)"
_NAME = r"(?P<name>[\w-]+/[\w.-]+?)(?:\.git)?/?"
# https://host/owner/name.git, ssh://git@host:22/owner/name, git@host:owner/name.git
_URLS = (
    re.compile(rf"(?:https?|ssh|git)://(?:[^@/]+@)?{_HOST}(?::\d+)?/{_NAME}", re.ASCII),
    re.compile(rf"(?:[^@/:]+@)?{_HOST}:{_NAME}", re.ASCII),
)
_USUAL = ("upstream", "github", "origin")  # A fork is often `origin`, and its runs belong to the other repository.


def find_run(environ: Mapping[str, str], root: Path, number: int) -> tuple[Client, WorkflowRun]:
    """The workflow run of this id, and the client of its repository: GITHUB_REPOSITORY, or else that of a remote.

    Args:
        root: a folder of the checkout.

    Raises:
        GitHubError: a request fails.
        UsageError: repository, token or run is missing; one line names it and the next step.
    """
    asked, closed = [], []
    for host, variables in _repositories(environ, root):
        token = _token(environ, host)
        if not token:
            closed.append(host)
            continue
        client = open_client({**variables, TOKEN: token})
        try:
            return client, fetch_run(client, number)
        except ApiError as error:
            if error.status != 404:
                raise
            asked.append(client.repository)
    repository = "set GITHUB_REPOSITORY=owner/name"
    file = "or download the lane's report from the run's page, and name it: --from report-….json"
    if asked:
        missing = f"no run of {listed(asked)}; {repository}, and check that the token may see it"
    elif closed:
        missing = f"no token for {closed[0]}; gh auth login --hostname {closed[0]}, or set {TOKEN}, {file}"
    else:
        missing = f"no remote of {root} is on GitHub; {repository}, {file}"
    raise UsageError(f"--run {number}: {missing}")


def _repositories(environ: Mapping[str, str], root: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """The host and the variables that GitHub Actions would set, for each repository that may have the run."""
    if environ.get("GITHUB_REPOSITORY"):
        yield _own_host(environ), dict(environ)
        return
    try:
        lines = find_repository(root).git("remote", "-v").splitlines()
    except UsageError as error:  # There is no repository, or no git.
        raise UsageError(f"{error}; or set GITHUB_REPOSITORY=owner/name") from error
    urls = {name: url for name, url, *_ in map(str.split, lines)}
    matches = [_URLS[0].fullmatch(url) or _URLS[1].fullmatch(url) for _, url in sorted(urls.items(), key=_usual)]
    for host, name in dict.fromkeys((each["host"].lower(), each["name"]) for each in matches if each):
        is_cloud = host == _GITHUB or host.endswith(".ghe.com")
        api = f"https://api.{host}" if is_cloud else f"https://{host}/api/v3"
        variables = {"GITHUB_API_URL": api, "GITHUB_SERVER_URL": f"https://{host}", **environ}
        yield host, {**variables, "GITHUB_REPOSITORY": name}


def _usual(remote: tuple[str, str]) -> int:
    return _USUAL.index(remote[0]) if remote[0] in _USUAL else len(_USUAL)


def _token(environ: Mapping[str, str], host: str) -> str:
    """The user's token for a host; empty if there is none. That of a variable is for `_own_host`: no other host that a
    remote names may get it."""
    token = environ.get(TOKEN) or environ.get("GH_TOKEN")
    if token and host == _own_host(environ):
        return token
    command = ["gh", "auth", "token", "--hostname", host]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=TIMEOUT
        )
    except (OSError, subprocess.TimeoutExpired):  # It is not installed, or waits for somebody.
        return ""
    return done.stdout.strip()


def _own_host(environ: Mapping[str, str]) -> str:
    """The host of GITHUB_SERVER_URL, by default GitHub's."""
    return urlsplit(environ.get("GITHUB_SERVER_URL", "")).hostname or _GITHUB
