"""Copies of this checkout, and runs of `pytest --perfguard` in them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from perfguard.model.atomic_files import write_atomically
from perfguard.model.records import Report, load_report
from perfguard.session.child import own_packages

ROOT = Path(__file__).resolve().parents[1]
HANGS = 256  # of a run that was ended for taking too long: no status that a process has


def copied(path: Path, source: Path = ROOT) -> Path:
    """`path`, a clone of the last commit of `source`. Where git does not know `source`, its files are committed there
    as they are: a machine that is lent may get files alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if (source / ".git").exists():
        git(path.parent, "clone", "--quiet", "--shared", str(source), str(path))
    else:
        shutil.copytree(source, path, ignore=shutil.ignore_patterns(".perfguard", ".venv", "__pycache__", "build"))
        commit(path)
    return path


def commit(folder: Path) -> None:
    """Commit everything below `folder`, which becomes a repository if it is none."""
    if not (folder / ".git").exists():
        git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "-m", "as it is")


def git(folder: Path, *arguments: str) -> str:
    """What git prints; it needs to know nobody."""
    settings = (
        "user.name=somebody",
        "user.email=somebody@localhost",
        "commit.gpgSign=false",
        "init.defaultBranch=main",
    )
    line = ["git", *(part for each in settings for part in ("-c", each)), *arguments]
    return subprocess.run(line, cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def import_path(*folders: Path | str) -> str:
    """PYTHONPATH with these folders in front of what it holds."""
    return os.pathsep.join(filter(None, [*map(str, folders), os.environ.get("PYTHONPATH")]))


_REASON = "recorded by a benchmark"
#: Options that record everything anew, with what got worse, whatever the tree holds.
RECORDING = ("--perfguard-update=all", "--perfguard-dirty", f"--perfguard-reason={_REASON}")


@dataclass(frozen=True)
class Ran:
    """One run of pytest.

    Attributes:
        status: its exit status; below 0 the signal that ended it, `HANGS` where it took too long.
        output: what it printed.
        report: None where it wrote none.
        seconds: of the clock.
    """

    status: int
    output: str
    report: Report | None
    seconds: float = 0.0


def environment() -> dict[str, str]:
    """Of runs in copies: without git's variables and pytest's, one thread each, since their number changes results."""
    unset = ("PYTEST_", "GIT_", "PYTHONDONTWRITEBYTECODE")  # each run imports the same hundreds of modules
    kept = {name: value for name, value in os.environ.items() if not name.startswith(unset)}
    return kept | {"OMP_NUM_THREADS": "1"}


def share_binaries(folder: Path, cache: Path) -> None:
    """What runs in `folder` compile is kept in `cache`, by what it is, for all copies that share it. What is
    remembered of derived inputs is each copy's own."""
    (cache / "binaries").mkdir(parents=True, exist_ok=True)
    own = folder / ".perfguard" / "cache"
    own.mkdir(parents=True)
    (own / "binaries").symlink_to((cache / "binaries").resolve())


def run_pytest(
    folder: Path,
    *arguments: str,
    python: str = sys.executable,
    variables: Mapping[str, str] | None = None,
    reports: Path | None = None,
    minutes: float | None = None,
) -> Ran:
    """`pytest` in `folder`, for so many minutes at most. `reports`, by default perfguard's own folder there, gets what
    it prints (output.txt), and loses older reports. `variables`: the whole environment, by default this process's."""
    reports = reports or folder / ".perfguard"
    reports.mkdir(parents=True, exist_ok=True)
    for old in reports.glob("report-*.json"):
        old.unlink()
    started = time.monotonic()
    with (reports / "output.txt").open("wb") as output:
        try:
            status = subprocess.run(
                [python, "-m", "pytest", *arguments], cwd=folder, env=variables, stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, timeout=minutes and 60 * minutes, check=False,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            status = HANGS
    seconds = time.monotonic() - started
    found = sorted(reports.glob("report-*.json"))
    text = (reports / "output.txt").read_text(encoding="utf-8", errors="replace")
    return Ran(status, text, load_report(found[0].read_bytes()) if found else None, seconds)


def guard(folder: Path, reports: Path, *arguments: str, **variables: str) -> Ran:
    """`pytest --perfguard` in `folder`. `reports` gets its report and what it prints (output.txt)."""
    # A warning of a version that was never tried must not end a session on a machine that is lent by the minute.
    options = [*own_packages().plugin, "-q", "-p", "no:cacheprovider", "-W", "default", "--perfguard"]
    whole = {**os.environ, "PYTHONPATH": import_path(folder, ROOT), **variables}
    ran = run_pytest(
        folder, *options, f"--perfguard-reports={reports}", *arguments, variables=whole, reports=reports
    )  # fmt: skip
    for path in folder.glob("baselines/*/*.yaml"):  # reasons are a person's
        text = path.read_text(encoding="utf-8")
        if _REASON in text:
            write_atomically(path, text.replace(f", reason: {_REASON}}}", "}").encode())
    return ran
