"""`perfguard resume`: fetches what earlier runs of CI have tried beside the given calls, for a job to go on there."""

from __future__ import annotations

import argparse
import io
import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from perfguard.github.api.client import TOKEN, open_client
from perfguard.github.api.measured_run import fetch_newest, fetch_run
from perfguard.model.atomic_files import write_atomically
from perfguard.model.config import find_project
from perfguard.model.errors import ExitStatus, GitHubError, UsageError
from perfguard.model.units import counted

_FILE = "turns.json"
_MOST_BYTES = 10_000_000  # Of the file, whose 10,000 cases take about 2 MB, and of its archive.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `perfguard resume`."""
    parser.description = (
        "For a job of GitHub Actions that guards: fetches .perfguard/cache/turns.json as an earlier run of the same "
        "branch uploaded it, otherwise one of any branch of the repository. Hard inputs and configurations then go on "
        "where that run stopped. Needs GITHUB_TOKEN with actions: read. Without a file, each case begins anew."
    )
    parser.add_argument("artifact", metavar="ARTIFACT", help="its name, for example turns-cpu")


def run(options: argparse.Namespace) -> int:
    """Return PASSED whether or not a file was found: a job without one is only slower to try everything.

    Raises:
        UsageError: a variable of GitHub Actions has an invalid value.
    """
    try:
        said = resume(os.environ, options.artifact, find_project(Path.cwd()) / ".perfguard" / "cache" / _FILE)
    except GitHubError as error:
        said = f"each case begins anew: {error}"
    print(f"perfguard resume: {said}")
    return int(ExitStatus.PASSED)


def resume(environ: Mapping[str, str], artifact: str, path: Path) -> str:
    """Write the file `path` as the artifact of this name holds it; returns what was done.

    Raises:
        GitHubError: it cannot be fetched, or is not what a run uploads.
        UsageError: a variable has an invalid value.
    """
    if not environ.get(TOKEN):
        raise GitHubError(f"{TOKEN} is not set; give this step ${{{{ github.token }}}}, and its job actions: read")
    client = open_client(environ)
    number = environ.get("GITHUB_RUN_ID", "")
    if not number.isdecimal():
        raise UsageError(
            f"GITHUB_RUN_ID={number[:100]!r}: no run; start this in a job of GitHub Actions, which sets it"
        )
    data = fetch_newest(client, fetch_run(client, int(number)), artifact, _MOST_BYTES)
    if data is None:
        return f"no earlier run has uploaded {artifact}; each case begins anew"
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive, archive.open(_FILE) as file:
            text = file.read(_MOST_BYTES + 1)
        cases = msgspec.json.decode(text[:_MOST_BYTES], type=dict[str, msgspec.Raw])
    # zipfile raises these for damaged, encrypted or unusual archives, by its documentation and by experiments.
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, NotImplementedError, RuntimeError, ValueError, OSError,
            msgspec.MsgspecError) as error:  # fmt: skip
        raise GitHubError(f"{artifact}: no archive of {_FILE} ({str(error)[:200]})") from error
    write_atomically(path, text)
    return f"fetched what earlier runs have tried in {counted(len(cases), 'case')}"
