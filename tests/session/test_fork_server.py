"""A fork server's children are as if they had started themselves."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from multiprocessing.connection import Pipe
from pathlib import Path

import pytest

from perfguard.session.child import ChildCommand, Request, Worktree
from perfguard.session.child_process import Child
from perfguard.session.fork_server import ForkServer, _reap

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")

TEST = """
import os, sys, time
import perfguard

def test_told():
    variables = {name: os.environ[name] for name in os.environ if not name.startswith("PYTEST_")}
    signals = [line for line in open("/proc/self/status") if line.startswith(("SigB", "SigI", "SigC"))]
    print("told", os.getcwd(), sys.path, sys.argv, variables, signals, os.getpgid(0) == os.getpid(), perfguard.__file__)
    print("torch", "torch" in sys.modules, "triton", "triton" in sys.modules)
    assert "torch" not in sys.modules or not sys.modules["torch"].cuda.is_initialized()
    if os.path.exists("dies"):
        os.kill(os.getpid(), 11)
    while os.path.exists("hangs"):
        time.sleep(0.01)
"""


def started(at: Path, server: ForkServer | None) -> Child:
    return Child.start("the child", command(at), at.with_suffix(".child"), Request(), server=server)


def command(folder: Path) -> ChildCommand:
    folder.mkdir(exist_ok=True)
    (folder / "test_told.py").write_text(TEST)
    worktree = Worktree(folder, folder.parent / "original")
    return ChildCommand(("-s", "-p", "no:cacheprovider"), worktree.original, worktree)


def test_a_forked_child_sees_what_a_new_process_sees_and_has_torch(tmp_path: Path) -> None:
    with ForkServer.launch(command(tmp_path / "base"), tmp_path) as server:
        for name in ("base", "work"):
            told = []
            for by in (server, None):
                with started(tmp_path / name, by) as child:
                    assert child.wait(1.0) == ""
                told.append((child.folder / "output.txt").read_text().partition("told ")[2].splitlines())
            assert told[0][:2] == [told[1][0], "torch True triton False"]


def test_how_a_forked_child_ends_is_told(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    with ForkServer.launch(command(a), tmp_path) as server, started(a, server) as one, started(b, server) as other:
        (a / "dies").touch(), (b / "hangs").touch()
        assert "was killed by SIGSEGV" in one.wait(1.0)
        server.control.close()
        assert "took longer than" in other.wait(0.05)  # A closed server stays until its last child has ended.
        os.killpg(server.process.pid, signal.SIGKILL)
        assert "was killed by SIGKILL" in other.wait(1.0)


def test_a_process_that_an_import_left_does_not_end_the_server():
    ours, theirs = Pipe()
    with ours, theirs, subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with contextlib.suppress(ChildProcessError):  # No other process is left.
            _reap({process.pid + 1: theirs}, os.WNOHANG)
        assert not ours.poll()


def test_the_child_of_a_server_that_died_reads_as_killed(tmp_path):
    with ForkServer.launch(command(tmp_path / "original"), tmp_path) as server, server.control:
        server.process.kill()
        server.process.wait()
        child = started(tmp_path / "original", server)
        assert child.process.wait(1.0) == -signal.SIGKILL
