"""Lets Triton interpret kernels on a machine without a GPU, unless the user has chosen otherwise.

Triton reads its variable when a kernel is defined, and its own functions are defined when it is imported. So the
variable is set when Triton is imported, before the user's module that imports it goes on. Triton is corrected at the
same time, because modules query its driver and run kernels while they are imported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from perfguard.measure.devices.vendors import all_vendors
from perfguard.model.config import read_settings
from perfguard.model.errors import PerfguardError
from perfguard.model.modules import Awaited
from perfguard.pytest_plugin.failures import usage_errors

VARIABLE = "TRITON_INTERPRET"
_LINE = f"perfguard: no GPU here: Triton's kernels are interpreted ({VARIABLE}=1)"


class WithoutGpu:
    """Registered as a plugin of a measuring run."""

    def __init__(self, config: pytest.Config) -> None:
        with usage_errors():
            option = config.known_args_namespace
            settings = read_settings(config.rootpath, device=option.perfguard_device)
        self._set = self._in_worker = False
        self._restore: Callable[[], None] = lambda: None
        fixed = os.environ.get(VARIABLE) == "0" or settings.device not in ("auto", "cpu")
        waits = not fixed and "triton" not in sys.modules
        self._awaited = Awaited("triton", self._correct, self._set_variable) if waits else None

    def _set_variable(self) -> None:
        if VARIABLE not in os.environ and not has_gpu():
            os.environ[VARIABLE] = "1"
            self._set = True

    def _correct(self) -> None:
        from perfguard.interpreter.entry import interpret_here, is_interpreting

        if is_interpreting():
            with suppress(PerfguardError):  # The first guarded call raises the same error, and fails alone.
                self._restore = interpret_here()

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Generator[None, Any, Any]:
        """Skip a module if its import needs a GPU."""
        report: Any = yield
        failed = report.failed and getattr(report, "call", None)
        if failed and "triton" in sys.modules:
            from perfguard.interpreter.entry import interpreter_error

            error = interpreter_error(failed.excinfo.value)
            if error is not None:
                report.outcome, report.longrepr = "skipped", (str(collector.path), 1, f"Skipped: {error}")
        return report

    def pytest_report_collectionfinish(self) -> list[str]:
        """Print once that kernels are interpreted."""
        return [_LINE] if self._set else []

    @pytest.hookimpl(tryfirst=True)  # Before xdist sends the worker's output.
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Report it to the controlling process of xdist, whose workers print nothing."""
        if self._set and hasattr(session.config, "workeroutput"):
            session.config.workeroutput[VARIABLE] = True

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take the report of a worker."""
        self._in_worker |= getattr(node, "workeroutput", {}).get(VARIABLE, False)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print it once for all workers."""
        if self._in_worker:
            terminalreporter.write_line(_LINE)

    def pytest_unconfigure(self) -> None:
        """Restore the finders, Triton and the variable."""
        if self._awaited is not None:
            self._awaited.leave()
        self._restore()
        if self._set:
            os.environ.pop(VARIABLE, None)


def has_gpu(root: Path = Path("/")) -> bool:
    """Whether the driver of a GPU is loaded."""
    return any(vendor.driver and vendor.has_driver(root) for vendor in all_vendors())
