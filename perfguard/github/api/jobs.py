"""Finds the jobs of a run that measured the lanes, for links to them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from perfguard.github.api.client import Client
from perfguard.github.api.measured_run import WorkflowRun
from perfguard.model.errors import GitHubError


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
