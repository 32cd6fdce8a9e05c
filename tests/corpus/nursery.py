"""A process that has imported what takes seconds, and forks itself for every run of pytest that it is asked for.

    python -m tests.corpus.nursery

Reads one JSON request a line (folder, arguments, environment, minutes), answers one JSON line with the run's status.
Each run is a process of its own, with modules, hooks and memory that no other run has touched; it imports the
project's files anew, since none of them is imported here. What a run prints goes to `output.txt` in its folder.

The fresh processes that a run measures in come from here too: forked from what has imported alone, as the run itself,
they share nothing that it did. Cold starts are started as ever, since what they import counts.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.kernels.quickening import quicken_interpreter

OUTPUT = "output.txt"
TOO_LONG = 124  # status of a run that was ended

# Nothing of the project's own, and nothing that starts a thread: threads do not survive a fork.
SLOW = (
    "numpy", "scipy.stats", "torch", "torch._dynamo", "torch.utils._python_dispatch", "triton", "triton.language",
    "pytest", "perfguard.guard", "perfguard.hooks", "perfguard.metrics", "perfguard.hardware.cpu",
    "perfguard.hardware.fake", "perfguard.render.terminal",
)  # fmt: skip


def live(request: dict[str, Any], nursery: socket.socket) -> None:
    """The child: becomes the run. Does not return."""
    status = 3
    try:
        os.setsid()
        os.chdir(request["folder"])
        os.environ.update(request["environment"])
        tempfile.tempdir = None  # is asked of the environment once and kept
        output = os.open(request.get("output", OUTPUT), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(output, stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.path[:] = [path for path in sys.path if path]
        fork_fresh_processes(request, nursery)

        import pytest

        status = int(pytest.main(request["arguments"]))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def fork_fresh_processes(request: dict[str, Any], nursery: socket.socket) -> None:
    """In the run: its fresh processes are asked for of the nursery, over the run's line to it."""
    from perfguard import sessions

    start = sessions.run_fresh

    def forked(line: list[str], folder: Path, minutes: float, environment: Mapping[str, str] | None = None) -> str:
        if line[:3] != [sys.executable, "-m", "pytest"] or environment is not None:
            return start(line, folder, minutes, environment)
        output = Path(tempfile.mkstemp(prefix="fresh-")[1])
        asked = {"folder": str(folder), "arguments": line[3:], "output": str(output), "minutes": minutes}
        nursery.sendall(json.dumps(request | asked).encode() + b"\n")
        status = json.loads(nursery.makefile("r").readline())["status"]
        if status in (0, 1):
            return ""
        last = "\n".join(output.read_text(errors="replace").strip().splitlines()[-15:])
        return f"a fresh process ended with status {status}:\n{last}"

    sessions.run_fresh = forked


def raise_child(request: dict[str, Any]) -> int:
    """Fork a run, and its fresh processes when it asks for them; its status. Whatever it started ends with it."""
    here, there = socket.socketpair()
    sys.stdout.flush()
    child = os.fork()
    if not child:
        here.close()
        live(request, there)
    there.close()
    with here:
        return wait(child, 60 * request["minutes"], here)


def wait(child: int, seconds: float, line: socket.socket) -> int:
    """Until the child ends by itself, or has taken too long."""
    deadline = time.monotonic() + seconds
    ended, code = os.waitpid(child, os.WNOHANG)
    while not ended and time.monotonic() < deadline:
        asked = line.recv(1 << 20) if select.select([line], [], [], 0.01)[0] else b""
        if asked:
            while not asked.endswith(b"\n"):
                asked += line.recv(1 << 20)
            request = json.loads(asked)
            left = (deadline - time.monotonic()) / 60
            status = raise_child(request | {"minutes": min(request["minutes"], left)})
            line.sendall(json.dumps({"status": status}).encode() + b"\n")
        ended, code = os.waitpid(child, os.WNOHANG)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    if not ended:
        os.waitpid(child, 0)
        return TOO_LONG
    return os.waitstatus_to_exitcode(code)


def main() -> None:
    for name in SLOW:
        importlib.import_module(name)
    if os.environ.get("TRITON_INTERPRET"):
        quicken_interpreter()
    os.environ.pop("TRITON_INTERPRET", None)  # was for Triton's own functions; the suites say when kernels are
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps({"status": raise_child(json.loads(line))}), flush=True)


if __name__ == "__main__":
    main()
