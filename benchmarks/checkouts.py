"""Copies of this checkout, and runs of `pytest --perfguard` in them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

from perfguard.model.atomic_files import write_atomically
from perfguard.model.records import Report
from perfguard.store.report_file import read_report

ROOT = Path(__file__).resolve().parents[1]


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
    line = ["git", "-c", "user.name=somebody", "-c", "user.email=somebody@localhost", *arguments]
    return subprocess.run(line, cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def import_path(*folders: Path | str) -> str:
    """PYTHONPATH with these folders in front of what it holds."""
    return os.pathsep.join(filter(None, [*map(str, folders), os.environ.get("PYTHONPATH")]))


def plugin() -> tuple[str, ...]:
    """What pytest needs to know of perfguard where it is on PYTHONPATH and not installed."""
    return () if entry_points(group="pytest11", name="perfguard") else ("-p", "perfguard.plugin")


_REASON = "recorded by a benchmark"
#: Options that record everything anew, with what got worse, whatever the tree holds.
RECORDING = ("--perfguard-update=all", "--perfguard-dirty", f"--perfguard-reason={_REASON}")


@dataclass(frozen=True)
class Ran:
    """One run: its report if it wrote one, its exit status and its seconds."""

    report: Report | None
    status: int
    seconds: float


def guard(folder: Path, reports: Path, *arguments: str, **variables: str) -> Ran:
    """`pytest --perfguard` in `folder`. `reports` gets its report and what it prints (output.txt)."""
    reports.mkdir(parents=True, exist_ok=True)
    for old in reports.glob("report-*.json"):
        old.unlink()
    # A warning of a version that was never tried must not end a session on a machine that is lent by the minute.
    line = [sys.executable, "-m", "pytest", *plugin(), "-q", "-p", "no:cacheprovider", "-W", "default", "--perfguard"]
    started = time.monotonic()
    with (reports / "output.txt").open("w", encoding="utf-8") as output:
        status = subprocess.run(
            [*line, f"--perfguard-reports={reports}", *arguments], cwd=folder, check=False, stdout=output,
            env={**os.environ, "PYTHONPATH": import_path(folder, ROOT), **variables}, stderr=subprocess.STDOUT,
        ).returncode  # fmt: skip
    for path in folder.glob("baselines/*/*.yaml"):  # reasons are a person's
        text = path.read_text(encoding="utf-8")
        if _REASON in text:
            write_atomically(path, text.replace(f", reason: {_REASON}}}", "}").encode())
    found = sorted(reports.glob("report-*.json"))
    return Ran(read_report(found[0]) if found else None, status, time.monotonic() - started)
