"""Finds out how a test is guarded: by a fixture, by being observed, or by the mark."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from perfguard.model.config import CompareOptions, settings_above
from perfguard.model.errors import UsageError
from perfguard.model.records import Case
from perfguard.model.suite_names import name_of, suite_of

MARK = "perfguard"
FIXTURES = ("perfguard", "benchmark")
_ARGUMENTS = ("ranks", "layout")  # The arguments of the mark.
BESIDE = pytest.StashKey[CompareOptions]()  # In the config: how `perfguard compare` judges.
OBSERVED = pytest.StashKey[tuple[Path, ...]]()  # In the config: folders and files whose tests are observed.


def is_guarded(item: pytest.Item) -> bool:
    """Whether a test uses a fixture that perfguard guards, or is observed."""
    return has_fixture(item) or is_observed(item)


def has_fixture(item: pytest.Item) -> bool:
    """Whether a test uses a fixture that perfguard guards."""
    return any(name in getattr(item, "fixturenames", ()) for name in FIXTURES)


def is_observed(item: pytest.Item) -> bool:
    """Whether a test without a guarded fixture is observed, by its mark or by its path."""
    if has_fixture(item):
        return False
    mark = item.get_closest_marker(MARK)
    if mark is not None:
        return not mark.kwargs  # With arguments the test runs on several ranks.
    return _is_below(item.path, item.config.stash.get(OBSERVED, ()))


@functools.cache
def _is_below(path: Path, folders: tuple[Path, ...]) -> bool:
    """Whether a path is in one of the folders, which have no symbolic links: a repository may be reached by several
    paths."""
    return any(path.resolve().is_relative_to(folder) for folder in folders)


def observed_paths(given: str | Iterable[str], folder: Path) -> tuple[Path, ...]:
    """The paths that `--perfguard-observe` or `[tool.perfguard] observe` names, relative to `folder`.

    Raises:
        UsageError: one of them does not exist.
    """
    names = given.split(",") if isinstance(given, str) else given
    paths = tuple((folder / name).resolve() for name in names)
    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        raise pytest.UsageError(
            f"--perfguard-observe: {', '.join(missing)}: no such path; name folders and files, separated by commas"
        )
    return paths


def case_of(item: pytest.Item) -> Case:
    """The case of a test: that of an observed test, or the forward case of a guarded call."""
    return Case(
        suite=suite_of(item.path, item.config.rootpath),
        name=name_of(item.nodeid),
        direction="test" if is_observed(item) else "forward",
        nodeid=item.nodeid,
    )


def check_names(items: Sequence[pytest.Item]) -> None:
    """Refuse two guarded tests of one id in different files: their verdicts and baselines would be confused. Packages
    with settings of their own have such tests if pytest takes one package for the root. The tests of another package
    are refused as well, since they would have this one's settings and baselines.

    Raises:
        UsageError: there are two, or a test of another package.
    """
    paths: dict[str, Path] = {}
    for item in items:
        first = paths.setdefault(item.nodeid, item.path)
        if first != item.path:
            raise UsageError(
                f"{item.nodeid}: both {first} and {item.path} have a test of this id; run each package by itself, or "
                f"pass --rootdir={os.path.commonpath((first, item.path))}, under which their ids differ"
            )
    for path, root in {item.path: item.config.rootpath for item in items}.items():
        other = None if path.is_relative_to(root) else settings_above(path)
        if other is not None and not root.is_relative_to(other):
            raise UsageError(
                f"{path}: belongs to {other}, and this run has the settings and baselines of {root}; run each package "
                f"by itself, or pass --rootdir={os.path.commonpath((root, other))}"
            )


def in_order(items: Iterable[pytest.Item], tests: Iterable[str]) -> list[pytest.Item]:
    """The collected ones of `tests`, node ids, in the order of these."""
    known = {item.nodeid: item for item in items}
    return [known[test] for test in tests if test in known]


def body_of(item: pytest.Item) -> str:
    """A hash of the test's own function, `body 1a2b3c4d`, without decorators, comments and docstrings; empty if there
    is none, as for a doctest. An edited test is another measurement."""
    function = getattr(item, "obj", None)
    digest = _hash_of(getattr(function, "__func__", function)) if callable(function) else ""
    return f"body {digest}" if digest else ""


@functools.cache  # Tests with parameters, or of an inherited class, share a function.
def _hash_of(function: Callable[..., object]) -> str:
    from perfguard.measure.binaries.source_hash import hash_of_function

    return hash_of_function(inspect.unwrap(function))


@dataclass(frozen=True)
class Mark:
    """The arguments of the mark; 0 for one that it lacks.

    Attributes:
        ranks: number of processes that run the test in lock step.
        layout: number of simulated ranks, of which the test's process is one.
    """

    ranks: int = 0
    layout: int = 0


def mark_of(item: pytest.Item) -> Mark:
    """The item's mark; of several, the one closest to the test.

    Raises:
        UsageError: the mark has another argument, both of them, or a number below 1.
    """
    mark = item.get_closest_marker(MARK)
    if mark is None:
        return Mark()
    written = f"{item.nodeid}: @pytest.mark.perfguard"
    if mark.args:
        raise pytest.UsageError(f"{written}{mark.args!r}: give the number by its name: ranks=2, or layout=64")
    unknown = [word for word in mark.kwargs if word not in _ARGUMENTS]
    if unknown:
        raise pytest.UsageError(f"{written}({unknown[0]}=…): no such argument; known: {', '.join(_ARGUMENTS)}")
    if len(mark.kwargs) > 1:
        raise pytest.UsageError(
            f"{written}(ranks=…, layout=…): a test runs on real ranks or as one of a layout; leave one out"
        )
    for word, number in mark.kwargs.items():
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise pytest.UsageError(f"{written}({word}={number!r}): give a number of ranks, 1 or more")
    return Mark(**mark.kwargs)
