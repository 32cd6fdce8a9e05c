"""Processes that end with the one that started them. Whole runs that are ended: tests/flows/test_ended.py."""

from __future__ import annotations

import os
import subprocess
import sys

CHILD = "import sys; from perfguard.model.orphans import end_with; end_with(int(sys.argv[1])); print('alive')"


def told(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_script_between_parent_and_interpreter_ends_nothing() -> None:
    """As `--base-python` may name one: the process's own parent is the script."""
    line = f'"{sys.executable}" -c "{CHILD}" {os.getpid()}; exit $?'
    assert told("sh", "-c", line).stdout == "alive\n"


def test_a_process_whose_parent_is_gone_already_ends_at_once() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    found = told(sys.executable, "-c", CHILD, str(gone.pid))
    assert (found.returncode, found.stdout) == (-9, "")
