"""Lets Triton interpret kernels on a machine without a GPU, unless the user has chosen otherwise.

Triton reads its variable when a kernel is defined, and its own functions are defined when it is imported. So the
variable is set when Triton is imported, before the user's module that imports it goes on.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from perfguard.measure.devices.vendors import all_vendors
from perfguard.model.config import read_settings
from perfguard.pytest_plugin.failures import usage_errors

VARIABLE = "TRITON_INTERPRET"
_LINE = f"perfguard: no GPU here: Triton's kernels are interpreted ({VARIABLE}=1)"


class WithoutGpu(importlib.abc.MetaPathFinder):
    """Registered as a plugin of a measuring run."""

    def __init__(self, config: pytest.Config) -> None:
        with usage_errors():
            option = config.known_args_namespace
            settings = read_settings(config.rootpath, device=option.perfguard_device)
        self._set = self._in_worker = False
        fixed = VARIABLE in os.environ or settings.device not in ("auto", "cpu") or settings.interpreter != "perfguard"
        if not fixed and "triton" not in sys.modules:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Set the variable when Triton is about to be imported. The other finders find it."""
        if name == "triton":
            self._remove()
            if VARIABLE not in os.environ and not has_gpu():
                os.environ[VARIABLE] = "1"
                self._set = True
        return None

    def _remove(self) -> None:
        sys.meta_path[:] = [each for each in sys.meta_path if each is not self]

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
        """Restore the finders and the variable."""
        self._remove()
        if self._set:
            os.environ.pop(VARIABLE, None)


def has_gpu(root: Path = Path("/")) -> bool:
    """Whether the driver of a GPU is loaded."""
    return any(vendor.driver and vendor.has_driver(root) for vendor in all_vendors())
