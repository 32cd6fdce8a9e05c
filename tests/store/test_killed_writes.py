"""A process that is killed while it writes leaves nothing that git takes, and the next one clears what it left."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from perfguard.model.atomic_files import write_atomically
from perfguard.store.baseline_files import Store
from perfguard.store.report_file import save_report
from tests.store.test_report_file import REPORT

KILLED = """
import os, signal, sys
from pathlib import Path
from perfguard.store.baseline_files import Store
from perfguard.store.report_file import save_report
from tests.store.test_report_file import REPORT

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

setattr(os, sys.argv[2], die)
path = Path(sys.argv[1])
{
    "baseline": lambda: Store(Path("baselines")).replace({path: b"new", path.with_name("more.yaml"): b"new"}),
    "report": lambda: save_report(path, REPORT),
}[sys.argv[3]]()
"""
WRITES = {"baseline": "baselines/x/area.yaml", "report": "reports/report-x.json", "output": "report.html"}
ROOT = str(Path(__file__).parents[2])


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    subprocess.run(["git", "init", "--quiet"], check=True)
    return tmp_path


def staged() -> str:
    subprocess.run(["git", "add", "--all"], check=True)
    return subprocess.run(["git", "ls-files"], check=True, capture_output=True, text=True).stdout


def kill(kind: str, at: str) -> None:
    env = {**os.environ, "PYTHONPATH": ROOT}
    done = subprocess.run([sys.executable, "-c", KILLED, WRITES[kind], at, kind], env=env, check=False)
    assert done.returncode == -9


def write(kind: str) -> None:
    path = Path(WRITES[kind])
    if kind == "baseline":
        Store(Path("baselines")).replace({path: b"new"})
    elif kind == "report":
        save_report(path, REPORT)
    else:
        write_atomically(path, b"new")


@pytest.mark.parametrize("at", ["mkdtemp", "fsync"])
def test_a_write_that_fails_names_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", *(["a folder of its own"] if at == "mkdtemp" else []))

    monkeypatch.setattr(tempfile if at == "mkdtemp" else os, at, full)
    with pytest.raises(OSError, match="No space left") as told:
        write_atomically(tmp_path / "report.html", b"new")
    assert told.value.filename == str(tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("kind", "at"), [("baseline", "fsync"), ("baseline", "replace"), ("report", "replace")])
def test_git_takes_nothing_of_a_killed_write_and_the_next_clears_it(repository: Path, kind: str, at: str) -> None:
    kill(kind, at)
    folder = Path(WRITES[kind]).parent
    left = {path for path in repository.rglob("*") if ".git" not in path.parts and path.is_file()}
    assert left  # it was killed in the middle
    assert staged() == ""
    write(kind)
    assert staged() == f"{WRITES[kind]}\n"
    assert left < set(repository.rglob("*"))  # another process may be at it this moment
    mine = folder / ".perfguard-notes.txt"
    mine.write_bytes(b"a person's")
    long_ago = time.time() - 3700
    for path in folder.iterdir():
        os.utime(path, (long_ago, long_ago))
    write(kind)
    assert {path.name for path in folder.iterdir()} == {Path(WRITES[kind]).name, mine.name}


@pytest.mark.parametrize("kind", WRITES)
def test_what_is_written_is_for_all_that_the_user_lets(repository: Path, kind: str) -> None:
    before = os.umask(0o027)
    try:
        write(kind)
    finally:
        os.umask(before)
    assert stat.S_IMODE(Path(WRITES[kind]).stat().st_mode) == 0o640
