from __future__ import annotations

from collections.abc import Mapping

from perfguard.github.clock import Clock


class Client:
    """One repository on GitHub, asked and told by one post job.

    Attributes:
        repository: `owner/name`.
        server: base of links for people, `https://github.com`.
    """

    repository: str
    server: str


def open_client(environ: Mapping[str, str], clock: Clock | None = None) -> Client:
    """The client of the repository that this job runs for.

    Args:
        environ: GITHUB_TOKEN and GITHUB_REPOSITORY, and, on GitHub Enterprise, GITHUB_API_URL, GITHUB_GRAPHQL_URL
            and GITHUB_SERVER_URL.

    Raises:
        GitHubError: no token ("no token in GITHUB_TOKEN …"), requests is not installed.
        UsageError: a variable whose value cannot be right.
    """
    raise NotImplementedError
