"""Shows the current step of a measuring run: on a terminal in one line that is renewed, in a log now and then.

pytest's own dots show tests that have ended, but neither the step of a long test nor the work after the last test:
questions to bases, process pairs, fresh processes.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

import pytest

from perfguard.model.units import format_minutes
from perfguard.pytest_plugin.ending import is_verbose
from perfguard.session.watchdog import watched

if TYPE_CHECKING:
    from perfguard._compat.pytest_internals import TerminalReporter

_RENEWED_SECONDS, _SPARSE_SECONDS = 1.0, 30.0  # Seconds between two updates: on a terminal, and elsewhere.

# _BELOW writes on the line below that of pytest, and returns; going down and up first makes room at the lower end of
# the screen. After the last test pytest's line is complete, and _HERE writes on the next one.
_BELOW, _HERE = "\x1bD\x1b[A\x1b7\r\x1b[B\x1b[K{}\x1b8", "\r\x1b[K{}\r"


class Progress:
    """Shows the current step of the run. A worker of pytest-xdist writes seldom, to the common stderr.

    Args:
        stderr: file descriptor of the process's own stderr, behind pytest's capture.
    """

    def __init__(self, config: pytest.Config, stderr: int) -> None:
        self.quiet = False  # Set while a debugger has the terminal.
        self._config = config
        self._stderr = stderr
        self._worker = str(getattr(config, "workerinput", {}).get("workerid", ""))
        self._lock = threading.RLock()  # Shared by the run's thread and the watchdog's.
        self._place = _BELOW
        self._drawn = False
        self._printed = -math.inf  # When the last passing message was printed, s on the monotonic clock.
        self._at, self._since = "", 0.0  # The current step after the last test, and when it began.

    def __call__(self, text: str, *, passing: bool = False, detail: bool = False) -> None:
        """Show the step that begins now.

        Args:
            passing: whether the step matters only while it lasts: a terminal renews it, a log seldom shows it.
            detail: whether it is shown only under -v.
        """
        if detail and not is_verbose(self._config):
            return
        with self._lock:
            self._at, self._since = text, time.monotonic()
            if passing:
                self._show(text, due=self._since - self._printed >= _SPARSE_SECONDS)
            elif self._reporter is not None:
                self.clear()
                self._print(text)

    @contextlib.contextmanager
    def after_tests(self) -> Iterator[None]:
        """Inside this block, show the last step again and again, with the time that it has taken."""
        if self._reporter is not None:
            self._new_line(self._reporter)
        if self._worker:  # There may be many workers.
            self._printed = time.monotonic()
        self._place = _HERE
        try:
            with watched(math.inf, lambda step: None, self.every, lambda step, seconds: self._again()):
                yield
        finally:
            self.clear()
            self._place = _BELOW

    def look(self, text: str, seconds: float) -> None:
        """Show the step of a test that has run for `seconds`."""
        with self._lock:
            if not self._worker:  # pytest-xdist shows many tests at once; --durations shows slow ones.
                self._show(f"{format_minutes(seconds)} {text}", due=True)

    def clear(self) -> None:
        """Take the line off the terminal before something else is written."""
        with self._lock:
            if self._drawn:
                self._write(self._place.format(""))
                self._drawn = False

    @cached_property
    def every(self) -> float:
        """Seconds between two updates."""
        return _RENEWED_SECONDS if self._is_live else _SPARSE_SECONDS

    @cached_property
    def _is_live(self) -> bool:
        """Whether a line can be renewed: on a terminal, to which nothing but pytest writes."""
        reporter = self._reporter
        return (
            reporter is not None and bool(reporter.isatty) and os.isatty(self._stderr)
            and self._config.getoption("capture", "no") != "no"  # Without capture, tests write anywhere on it.
            and os.environ.get("TERM", "dumb") != "dumb" and "CI" not in os.environ
        )  # fmt: skip

    @property
    def _reporter(self) -> TerminalReporter | None:
        reporter: TerminalReporter | None = self._config.pluginmanager.get_plugin("terminalreporter")
        return reporter

    def _again(self) -> None:
        with self._lock:
            now = time.monotonic()
            if self._at:
                due = now - max(self._printed, self._since) >= _SPARSE_SECONDS
                self._show(f"{format_minutes(now - self._since)} {self._at}", due=due)

    def _show(self, text: str, *, due: bool) -> None:
        if self.quiet:
            return
        if self._is_live:
            width = self._config.get_terminal_writer().fullwidth - 1
            self._write(self._place.format(f"perfguard: {text}"[:width]))
            self._drawn = True
        elif due:
            self._printed = time.monotonic()
            if self._place is _HERE and self._reporter is not None:
                self._print(text)
            elif self._worker or self._reporter is not None:
                self._write(f"\nperfguard: {f'{self._worker} ' * bool(self._worker)}{text}\n")

    def _print(self, text: str) -> None:
        reporter = self._reporter
        assert reporter is not None
        self._new_line(reporter)
        reporter.write_line(f"perfguard: {text}")
        reporter.flush()  # A log is read while it grows.

    def _new_line(self, reporter: TerminalReporter) -> None:
        reporter.ensure_newline()
        if self._config.get_terminal_writer().width_of_current_line:  # Under -q pytest counts no line.
            reporter.write_line("")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # The terminal may be gone.
            os.write(self._stderr, text.encode(errors="replace"))
