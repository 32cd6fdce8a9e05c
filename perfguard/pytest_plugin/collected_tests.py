"""An inventory of a run's test files before pytest filters them: a deselected test is not gone."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from perfguard.model.suite_names import name_of, suite_of
from perfguard.session.run import Collected

FIXTURES = ("perfguard", "benchmark")


def is_guarded(item: pytest.Item) -> bool:
    """Whether a test uses a fixture that perfguard guards."""
    return any(name in getattr(item, "fixturenames", ()) for name in FIXTURES)


class Inventory:
    """Notes the children of every collector before --lf, -k, node ids and other plugins choose among them."""

    def __init__(self) -> None:
        self._children: dict[pytest.Collector, list[pytest.Item | pytest.Collector]] = {}

    def note(self, collector: pytest.Collector, report: pytest.CollectReport) -> None:
        """Note the children that a collector returned. The list is copied, since --lf shortens the report's own."""
        if report.passed:
            self._children[collector] = list(report.result)

    def take(self, collected: Collected, items: Iterable[pytest.Item], root: Path) -> None:
        """Fill in the names of all guarded tests, and the suites whose tests are all known."""
        known = [child for children in self._children.values() for child in children if isinstance(child, pytest.Item)]
        for item in (*known, *items):
            if is_guarded(item):
                collected.names.setdefault(suite_of(item.path, root), set()).add(name_of(item.nodeid))
        # --lf returns no children for a file that it skips, so an empty file does not count as whole.
        files = [each for each, children in self._children.items() if isinstance(each, pytest.File) and children]
        collected.whole = {suite_of(file.path, root) for file in files if self._is_whole(file)}

    def _is_whole(self, collector: pytest.Collector) -> bool:
        """Whether all tests below it are known. Node ids can leave out classes, whose tests are then unknown."""
        children = self._children.get(collector)
        return children is not None and all(
            self._is_whole(child) for child in children if isinstance(child, pytest.Collector)
        )
