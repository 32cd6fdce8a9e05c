"""A run that is ended in the middle, however it is ended and whatever it is at: no process of it stays."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from perfguard.session.pairing.worktrees import find_repository
from tests.flows.conftest import PYTHON, TEST, Project
from tests.flows.test_base import IGNORED, STRIDES
from tests.flows.test_binaries import KERNEL as TRITON_KERNEL
from tests.flows.test_binaries import TEST as TRITON_TEST
from tests.flows.test_budget import left_behind

pytestmark = [
    pytest.mark.usefixtures("real_processes"),  # those of a nursery have another parent
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton"),
]

MARK, FOLDER = "TEST_OF_AN_ENDED_RUN", "TEST_OF_AN_ENDED_RUN_FOLDER"  # of the environment of a run and its processes
HANG = f"""
import os, sys, time

def hang():
    with open(os.path.join(os.environ["{FOLDER}"], str(os.getpid())), "w"):
        time.sleep(600)

"""
SESSION = "    if any('perfguard-session' in a for a in sys.argv): hang()\n"
RANKED = '\n@__import__("pytest").mark.perfguard(ranks=2)\ndef test_ranks():\n    hang()\n'


def rewrite(path: Path, *changes: tuple[str, str]) -> None:
    source = path.read_text()
    for before, after in changes:
        assert before in source
        source = source.replace(before, after)
    path.write_text(HANG + source)


def compiling(project: Project) -> tuple[int, list[str]]:
    """An import that hangs stands for a compilation."""
    following(project)
    rewrite(project.path / "kernel.py", ("x.is_cuda", "False"))
    with (project.path / "kernel.py").open("a") as file:
        file.write("\nif 'compile_worker' in sys.argv[0]:\n    hang()\n")
    return 1, ["--perfguard-lane=cpu", "--perfguard-update=new", "--perfguard-dirty"]


def following(project: Project) -> tuple[int, list[str]]:
    """On a simulated target, in a fork."""
    project.configure(device="cpu", targets=["sm_90"])
    (project.path / "kernel.py").write_text(TRITON_KERNEL)
    rewrite(
        project.path / "kernel.py",
        ("    out = torch.empty_like", "    if x.is_cuda: hang()\n    out = torch.empty_like"),
    )
    project.test_file(TRITON_TEST)
    return 1, ["--perfguard-lane=cpu"]


def asking(project: Project) -> tuple[int, list[str]]:
    """A base that hangs."""
    project.configure(extra_seconds=0.2)
    rewrite(project.path / "kernel.py", ("    return out", f"{SESSION}    return out"))
    project.commit()
    (project.path / "kernel.py").write_text(STRIDES.format(read=IGNORED))
    return 1, []


def pairing(project: Project) -> tuple[int, list[str]]:
    """All three sides hang as they collect."""
    rewrite(project.path / "test_suite.py")
    with (project.path / "test_suite.py").open("a") as file:
        file.write("\nif any('/pair-' in a for a in sys.argv):\n    hang()\n")
    project.commit()
    project.kernel(us=60.0)
    return 3, []


def recording(project: Project) -> tuple[int, list[str]]:
    """A fresh process that hangs."""
    rewrite(project.path / "kernel.py", ("    return out", f"{SESSION}    return out"))
    shutil.rmtree(project.path / "baselines")
    return 1, ["--perfguard-update", "--perfguard-dirty"]


def workers(project: Project) -> tuple[int, list[str]]:
    """Of pytest-xdist."""
    project.configure(device="cpu")
    project.test_file(TEST)
    rewrite(project.path / "test_suite.py", ("    x = ", "    hang()\n    x = "))
    return 2, ["-n2", "--perfguard-lane=cpu"]


def ranks(project: Project) -> tuple[int, list[str]]:
    project.configure(device="cpu")
    rewrite(project.path / "test_suite.py", (TEST[TEST.index("@") :], RANKED))
    return 2, []


def alive(mark: str) -> list[int]:
    """The processes that have inherited the mark of a run."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in (path / "environ").read_bytes():  # empty of one that has ended
                found.append(int(path.name))
    return found


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def worktrees(project: Project) -> list[str]:
    """What is left of them, and of their folders."""
    return [each for each in left_behind(project) if "perfguard-locks" not in each]


PLACES = [compiling, following, asking, pairing, recording, workers, ranks]
ENDS = {"killed": signal.SIGKILL, "terminated": signal.SIGTERM, "interrupted": signal.SIGINT}
# Each starts Python and torch anew, most of them several times. Whoever is killed handles nothing.
DAILY = pairing, "killed"
CASES = [
    pytest.param(place, end, marks=[] if (place, end) == DAILY else pytest.mark.nightly, id=f"{place.__name__}-{end}")
    for place in PLACES
    for end in ENDS
]


@pytest.mark.parametrize(("place", "end"), CASES)
def test_nothing_of_it_stays_alive(
    recorded: Project,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: Callable[[Project], tuple[int, list[str]]],
    end: str,
) -> None:
    mark, folder = uuid.uuid4().hex, tmp_path / "hanging"
    folder.mkdir()
    monkeypatch.setenv(FOLDER, str(folder))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    count, arguments = place(recorded)
    said = tmp_path / "said.txt"
    with said.open("w") as file:
        run = subprocess.Popen(
            [PYTHON, "-m", "pytest", "--perfguard", *arguments], cwd=recorded.path,
            env=os.environ | {MARK: mark}, stdout=file, stderr=file,
        )  # fmt: skip
    try:
        assert wait_for(lambda: len(list(folder.iterdir())) >= count or run.poll() is not None, 120), said.read_text()
        assert len(list(folder.iterdir())) == count, said.read_text()
        assert len(alive(mark)) > count
    finally:
        run.send_signal(ENDS[end])
        run.wait(60)
    wait_for(lambda: not alive(mark), 30)
    left = alive(mark)
    for process in left:
        os.kill(process, signal.SIGKILL)
    assert left == [], said.read_text()
    if place in (asking, pairing):  # these two have worktrees
        if end == "killed":
            assert worktrees(recorded)
            find_repository(recorded.path).remove_abandoned("perfguard-pairs-")  # as the next one begins
        assert worktrees(recorded) == []
