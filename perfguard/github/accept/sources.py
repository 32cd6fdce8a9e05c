"""Reads the reports to accept from files or from the artifacts of a workflow run. Neither source is trusted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from perfguard.github.api.artifacts import fetch_artifacts
from perfguard.github.api.client import open_client
from perfguard.github.api.runs import fetch_run
from perfguard.github.lanes.archive import MOST_BYTES
from perfguard.github.lanes.stranger_report import Received, read_report_of_stranger, receive
from perfguard.model.errors import LaneError, UsageError


def from_files(paths: Sequence[Path], lane: str | None) -> list[Received]:
    """The reports in `paths`, of `lane` only if it is named.

    Raises:
        UsageError: a file that cannot be read or is no report, or no report of the lane.
    """
    found = []
    for path in paths:
        try:
            if path.stat().st_size > MOST_BYTES:
                raise UsageError(f"{path}: larger than {MOST_BYTES:,} bytes; a report is smaller, name that file")
            received = read_report_of_stranger(path.read_bytes())
        except OSError as error:
            raise UsageError(f"{path}: cannot be read ({error.strerror}); make one with: pytest --perfguard") from error
        except LaneError as error:
            raise UsageError(f"{path}: {error}; make one with: pytest --perfguard") from error
        hardware = received.report.hardware
        if lane in (None, hardware.slug, hardware.target):
            found.append(received)
    if not found:
        raise UsageError(f"--lane {lane}: none of the reports is of it; leave --lane out, or name its report")
    return found


def from_run(environ: Mapping[str, str], number: int, lanes: Sequence[str]) -> list[Received]:
    """The reports that `lanes` uploaded in a workflow run; lanes without a report are left out.

    Raises:
        GitHubError: a request to GitHub fails.
        UsageError: no lane is named, or none has a valid report.
    """
    if not lanes:
        raise UsageError("--run: no lane; name one with --lane, or set lanes in [tool.perfguard]")
    client = open_client(environ)
    run = fetch_run(client, number)
    found, problems = [], []
    for artifact in fetch_artifacts(client, run, lanes):
        try:
            if artifact.data is None:
                raise LaneError(artifact.problem)
            found.append(receive(artifact.lane, artifact.data, run.head_sha))
        except LaneError as error:
            problems.append(f"{artifact.lane}: {error}")
    if not found:
        raise UsageError(f"--run {number}: {'; '.join(problems)}; run the lane again")
    return found
