"""Which guarded tests run which lines of `kernels/`: coverage's contexts, as a plugin of one plain run of the suites.

Jitted functions run in Python where Triton's interpreter runs them; of those that only compile for other chips the
lines are those of their whole function: whoever launches it, reaches it. Ranks are processes of pytest with the same
plugins: each process writes a file of its own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coverage
import pytest

#: the folder that this plugin writes to
WRITTEN = "PERFGUARD_REACHED"

Reached = dict[str, dict[int, list[str]]]  # file -> line -> tests


class Contexts:
    """Lines by test."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.coverage = coverage.Coverage(data_file=None, include=[str(root / "kernels" / "*")], config_file=False)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.coverage.switch_context(item.nodeid)
        return (yield)  # type: ignore[return-value]

    def pytest_runtest_teardown(self) -> None:
        self.coverage.switch_context("")

    def reached(self) -> Reached:
        data = self.coverage.get_data()
        found: Reached = {}
        for path in data.measured_files():
            lines = data.contexts_by_lineno(path)
            name = str(Path(path).relative_to(self.root))
            found[name] = {line: sorted(filter(None, tests)) for line, tests in lines.items() if any(tests)}
        return found


def pytest_configure(config: pytest.Config) -> None:
    contexts = Contexts(config.rootpath)
    contexts.coverage.start()
    contexts.coverage.switch_context("")
    config.pluginmanager.register(contexts, "perfguard-reached")


def pytest_unconfigure(config: pytest.Config) -> None:
    contexts: Any = config.pluginmanager.get_plugin("perfguard-reached")
    contexts.coverage.stop()
    Path(os.environ[WRITTEN], f"{os.getpid()}.json").write_text(json.dumps(contexts.reached()), encoding="utf-8")


def load(folder: Path) -> Reached:
    """What the processes of a run wrote."""
    found: dict[str, dict[int, set[str]]] = {}
    for path in sorted(folder.glob("*.json")):
        for file, lines in json.loads(path.read_text(encoding="utf-8")).items():
            for line, tests in lines.items():
                found.setdefault(file, {}).setdefault(int(line), set()).update(tests)
    return {file: {line: sorted(tests) for line, tests in lines.items()} for file, lines in found.items()}
