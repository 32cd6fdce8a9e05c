"""A process that has imported what takes seconds, and forks itself for every run of pytest that it is asked for.

    python -m tests.corpus.nursery

Reads one JSON request a line (folder, arguments, environment, minutes), answers one JSON line with the run's status.
Each run is a process of its own, with modules, hooks and memory that no other run has touched; it imports the
project's files anew, since none of them is imported here. What a run prints goes to `output.txt` in its folder.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import tempfile
import time
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


def live(request: dict[str, Any]) -> None:
    """The child: becomes the run. Does not return."""
    status = 3
    try:
        os.setsid()
        os.chdir(request["folder"])
        os.environ.update(request["environment"])
        tempfile.tempdir = None  # is asked of the environment once and kept
        output = os.open(OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(output, stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.path[:] = [path for path in sys.path if path]

        import pytest

        status = int(pytest.main(request["arguments"]))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def wait(child: int, minutes: float) -> int:
    """The child's status; whatever it started ends with it."""
    deadline = time.monotonic() + 60 * minutes
    ended, code = os.waitpid(child, os.WNOHANG)
    while not ended and time.monotonic() < deadline:
        time.sleep(0.01)
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
        request = json.loads(line)
        sys.stdout.flush()
        child = os.fork()
        if not child:
            live(request)
        print(json.dumps({"status": wait(child, request["minutes"])}), flush=True)


if __name__ == "__main__":
    main()
