"""What a run says while it lasts: a line that leaves pytest's own alone, on a terminal of any height; few in a log."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfguard.pytest_plugin import progress as module
from perfguard.pytest_plugin.progress import Progress
from tests.nursery import Nursery


class Screen:
    """As much of a terminal as is written to here: text, lines, and the escapes of `progress`."""

    def __init__(self, height: int) -> None:
        self.rows = [""] * height
        self.row = self.column = 0
        self._saved = (0, 0)

    def write(self, text: str) -> None:
        for part in re.findall(r"\x1b\[[AB]|\x1b\[K|\x1b[D78]|[^\x1b]", text):
            self._one(part)

    def _one(self, part: str) -> None:
        if part in ("\n", "\x1bD"):
            self.column = 0 if part == "\n" else self.column
            self.row += 1
            if self.row == len(self.rows):
                self.rows = [*self.rows[1:], ""]
                self.row -= 1
        elif part in ("\x1b[A", "\x1b[B"):
            self.row = min(max(0, self.row + (1 if part == "\x1b[B" else -1)), len(self.rows) - 1)
        elif part == "\x1b[K":
            self.rows[self.row] = self.rows[self.row][: self.column]
        elif part == "\x1b7":
            self._saved = (self.row, self.column)
        elif part == "\x1b8":
            self.row, self.column = self._saved
        elif part == "\r":
            self.column = 0
        else:
            line = self.rows[self.row].ljust(self.column)
            self.rows[self.row] = line[: self.column] + part + line[self.column + 1 :]
            self.column += 1

    @property
    def shown(self) -> list[str]:
        return [row.rstrip() for row in self.rows if row.strip()]


class Terminal:
    """pytest's reporter, terminal writer and configuration in one, on a screen or on a log."""

    def __init__(self, *, live: bool, height: int = 5, **options: Any) -> None:
        self.screen = Screen(height)
        self.isatty = live
        self.fullwidth = 60
        self.pluginmanager = SimpleNamespace(get_plugin=lambda name: self)
        self._options = {"capture": "fd", **options}
        self._reading, self.stderr = pty.openpty() if live else os.pipe()

    def getoption(self, name: str, default: Any = None) -> Any:
        return self._options.get(name, default)

    def get_terminal_writer(self) -> Terminal:
        return self

    @property
    def width_of_current_line(self) -> int:
        return self.screen.column

    def ensure_newline(self) -> None:
        if self.screen.column:
            self.screen.write("\n")

    def write_line(self, text: str) -> None:
        self.update()  # was written before
        self.screen.write(f"{text}\n")

    def flush(self) -> None:
        pass

    def update(self) -> list[str]:
        """The screen with what was written to stderr since."""
        while select.select([self._reading], [], [], 0)[0]:
            self.screen.write(os.read(self._reading, 65536).decode().replace("\r\n", "\n"))
        return self.screen.shown


@pytest.fixture(autouse=True)
def person(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("CI", raising=False)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


@pytest.mark.parametrize("height", [2, 5])  # at the lower end of the screen, and above it
def test_the_line_stands_below_pytest_s_and_goes_again(height: int) -> None:
    terminal = Terminal(live=True, height=height)
    progress = Progress(terminal, terminal.stderr)  # type: ignore[arg-type]
    terminal.screen.write("collected 3 items\ntest_a.py .")
    progress.look("test_b[64] (2 of 3): timing, at kernel.py:3 in double", 11.0)
    below = ["test_a.py .", "perfguard: 0:11 test_b[64] (2 of 3): timing, at kernel.py:3"]
    assert terminal.update()[-2:] == below  # cut to the width
    progress.look("test_b[64] (2 of 3): hard inputs", 12.0)
    assert terminal.update()[-1] == "perfguard: 0:12 test_b[64] (2 of 3): hard inputs"
    progress.clear()
    terminal.update()
    terminal.screen.write(".F")
    assert terminal.update()[-1] == "test_a.py ..F"


def test_after_the_tests_what_passes_is_one_line_and_the_rest_stays(clock: list[float]) -> None:
    terminal = Terminal(live=True)
    progress = Progress(terminal, terminal.stderr)  # type: ignore[arg-type]
    terminal.screen.write("test_a.py ..")
    with progress.after_tests():
        progress("3 cases in doubt: asking 1a2b3c")
        clock[0] += 12
        progress._again()
        asked = ["test_a.py ..", "perfguard: 3 cases in doubt: asking 1a2b3c"]
        assert terminal.update() == [*asked, "perfguard: 0:12 3 cases in doubt: asking 1a2b3c"]
        for number in (1, 2):
            progress(f"process pair {number}: 4 times in question", passing=True)
            assert terminal.update() == [*asked, f"perfguard: process pair {number}: 4 times in question"]
        progress("1 case is heavier")
    assert terminal.update() == [*asked, "perfguard: 1 case is heavier"]


def test_in_a_log_what_passes_is_told_at_once_and_then_every_30_seconds(clock: list[float]) -> None:
    terminal = Terminal(live=False, height=20)
    progress = Progress(terminal, terminal.stderr)  # type: ignore[arg-type]
    terminal.screen.write("test_a.py ..")
    with progress.after_tests():
        progress("asking 1a2b3c")
        for number in range(1, 8):
            progress(f"process pair {number}", passing=True)
            clock[0] += 10
            progress._again()
        clock[0] += 25
        progress._again()
    assert terminal.update() == [
        "test_a.py ..",
        "perfguard: asking 1a2b3c",
        *(f"perfguard: process pair {number}" for number in (1, 4, 7)),
        "perfguard: 0:35 process pair 7",
    ]


@pytest.mark.parametrize(
    ("options", "variables"), [({"capture": "no"}, {}), ({}, {"CI": "true"}), ({}, {"TERM": "dumb"})]
)
def test_no_line_is_renewed_where_tests_write_or_nobody_watches(
    options: dict[str, str], variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    terminal = Terminal(live=True, **options)
    progress = Progress(terminal, terminal.stderr)  # type: ignore[arg-type]
    assert progress.every == 30.0
    terminal.screen.write("test_a.py .")
    progress.look("test_b: timing", 30.0)
    assert terminal.update() == ["test_a.py .", "perfguard: 0:30 test_b: timing"]


def test_a_debugger_has_the_terminal_to_itself() -> None:
    terminal = Terminal(live=True)
    progress = Progress(terminal, terminal.stderr)  # type: ignore[arg-type]
    progress.quiet = True
    progress.look("test_b: timing", 30.0)
    assert terminal.update() == []


TEST = """
import os, time, torch

def double(x):
    while not os.path.exists("seen"):
        time.sleep(0.01)
    return 2 * x

def test_double(perfguard):
    perfguard(double, torch.ones(64), reference=lambda x: 2 * x, timed=False, hard=False)
"""


def test_a_run_on_a_terminal_names_the_test_that_takes_long(tmp_path: Path, nursery: Nursery) -> None:
    """It goes on once its name was seen."""
    (tmp_path / "pyproject.toml").write_text('[tool.perfguard]\ndevice = "fake"\n')
    (tmp_path / "conftest.py").write_text("from perfguard.session import watchdog\nwatchdog._FIRST_SECONDS = 0.0\n")
    (tmp_path / "test_long.py").write_text(TEST)
    reading, terminal = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    environment |= {"TMPDIR": str(tmp_path), "COLUMNS": "100"}
    line = [nursery.python, "-m", "pytest", "--perfguard", "-p", "no:cacheprovider", "--color=no"]
    with subprocess.Popen(line, cwd=tmp_path, env=environment, stdin=terminal, stdout=terminal, stderr=terminal) as run:
        os.close(terminal)
        said, end = "", time.monotonic() + 240
        while select.select([reading], [], [], max(0.0, end - time.monotonic()))[0]:
            try:
                said += os.read(reading, 65536).decode()
            except OSError:  # the other end is closed
                break
            if re.search(r"perfguard: 0:\d\d test_double \(1 of 1\): .*, at test_long.py:\d+ in double", said):
                (tmp_path / "seen").touch()
        run.kill()
    assert (tmp_path / "seen").exists(), said
    assert "1 passed" in said
