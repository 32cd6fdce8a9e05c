"""A child: a pytest process that measures for this one. It has one request, one command and one answer.

Parent and child share a folder. The parent writes its request there and starts pytest in the same way as it was
started. The child answers with a report that grows while it measures, so the measurements of a child that dies remain.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import functools
import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

import perfguard
from perfguard.model.atomic_files import write_atomically
from perfguard.model.errors import UsageError
from perfguard.model.orphans import end_with
from perfguard.model.records import Case, CaseResult, Doubt, Report
from perfguard.store.report_file import read_report

REQUEST, ANSWER = "request.json", "answer.json"
SESSION_OPTION, DEVICE_OPTION = "--perfguard-session", "--perfguard-device"

# The child imports perfguard first, from PYTHONPATH. pytest later puts the paths of its `pythonpath` setting before all
# others; if the repository is perfguard itself, they hold another perfguard.
_PYTEST = "import perfguard.session.child; perfguard.session.child.run_pytest()"
_IN_WORKTREE = (
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # The child has already imported perfguard.
    *("-p", "no:randomly"),  # Both sides must run the same tests in the same order.
    "--continue-on-collection-errors",  # A broken file affects only its own cases.
)
# Variables set inside git's own hooks, which would point every git command at another repository, index or folder.
_OF_GIT = {"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY"}

Timers = dict[str, dict[str, dict[str, str]]]  # suite -> case key -> metric -> timer


class Cold(Struct, frozen=True):
    """The case to start cold, and the start of its process in s on the machine's monotonic clock. `layers`: number of
    layers of the candidate to use instead of the case's own."""

    suite: str
    name: str
    started: float
    layers: int | None = None

    def wants(self, case: Case) -> bool:
        """Whether this case's first result is measured."""
        return (case.suite, case.name) == (self.suite, self.name)


class PairOptions(Struct, frozen=True):
    """How a child takes part in a process pair, as a worker whose parent decides when it measures.

    Attributes:
        handle: file descriptor of the socket to the parent, inherited by the worker.
        pad_bytes: memory to take before the first case, so that no two processes have the same layout.
        preheats: whether the worker heats the device before its first case. One side does, the last to come to its
            first case, since all share one device.
    """

    handle: int
    pad_bytes: int = 0
    preheats: bool = False


class Request(Struct, frozen=True, omit_defaults=True):
    """The measurements that a child has to make.

    Attributes:
        slug: hardware that the answer must be of; empty if unknown.
        timers: timers to use again.
        tests: node ids of the tests to run, in this order; missing ones are left out. None: the tests that pytest's
            arguments select.
        shuffle: whether only guarded tests run, in an order that the child draws. Orders differ, so that after-effects
            of a case on the next one (clocks, heat, caches) differ from process to process.
        alone: whether torch's compiler forgets all code before each observed test. Otherwise the order of tests would
            decide which of them compiles a shared function.
        numerics: whether results are also checked against their references.
        exact: whether exact metrics are also read.
        times: whether times are read.
        follow: architectures on which launches are followed, and returned beside the report; None: they are not.
        kernels: node id of an observed test -> kernels whose time a process pair measures in it.
        cold: the case whose first result alone is measured.
        profiled: the case of which one warm call alone is made, for the profiler that has started the child.
        pair: how the child takes part in a process pair; None: it takes no part in one.
        worktree: the checkout whose code the child runs, which may be another commit; empty: the user's.
        original: the user's checkout: code loaded from there would be measured in place of the worktree's.
        ranks: number of ranks of the launch that the child is one of (perfguard/ranks); 0: it is alone.
        parent: number of the process that starts the child, which ends with it.
        measure: whether ranks read metrics, besides checking results.
        doubts: suite -> name of a case, without its pass -> faults that the child, which runs a base, is asked about.
    """

    slug: str = ""
    timers: Timers = {}
    tests: list[str] | None = None
    shuffle: bool = False
    alone: bool = False
    numerics: bool = False
    exact: bool = True
    times: bool = True
    follow: list[str] | None = None
    kernels: dict[str, list[str]] = {}
    cold: Cold | None = None
    profiled: Case | None = None
    pair: PairOptions | None = None
    worktree: str = ""
    original: str = ""
    ranks: int = 0
    parent: int = 0
    measure: bool = False
    doubts: dict[str, dict[str, list[Doubt]]] = {}

    @property
    def beside(self) -> bool:
        """Whether derived inputs and configurations are checked. A process of a base only answers."""
        return self.numerics and not self.worktree

    def doubts_about(self, case: Case) -> Sequence[Doubt]:
        """The faults of a case that the child is asked about; it derives no other inputs then."""
        return self.doubts.get(case.suite, {}).get(case.name, ())

    def timers_for(self, case: Case) -> dict[str, str]:
        """The timers of a case, by metric."""
        return self.timers.get(case.suite, {}).get(case.key, {})


EVERYTHING = Request(numerics=True)  # What a process reads that measures for itself.


def timers_of(results: Iterable[CaseResult]) -> Timers:
    """The timers with which `results` were read."""
    by_suite: Timers = {}
    for result in results:
        timers = {reading.metric: reading.timer for reading in result.readings if reading.timer is not None}
        by_suite.setdefault(result.case.suite, {})[result.case.key] = timers
    return by_suite


def write_request(folder: Path, request: Request, worktree: Worktree | None = None) -> None:
    """Write the request into the folder of the next child of this process, which runs the code of a `worktree`."""
    whole = msgspec.structs.replace(request, parent=os.getpid())
    if worktree is not None:
        own, original = str(worktree.folder), str(worktree.original)
        whole = msgspec.structs.replace(whole, worktree=own, original=original)
    write_atomically(folder / REQUEST, msgspec.json.encode(whole))


def read_request(folder: Path) -> Request:
    """In the child: its request.

    Raises:
        UsageError: there is none.
    """
    try:
        return msgspec.json.decode((folder / REQUEST).read_bytes(), type=Request)
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(f"{SESSION_OPTION}={folder}: no request of perfguard ({error}); leave it out") from error


def run_pytest(begin: Callable[[], None] = lambda: None) -> None:
    """In the child: run pytest with the command line's arguments, after `begin`, and exit once all exit functions have
    run.

    The interpreter is not finalized after them: with torch loaded that takes half a second of processor time, for which
    the next process pair waits.
    """
    status = 3  # pytest's internal error, unless it returns.

    def leave() -> None:  # The first exit function registered is the last that runs.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)

    atexit.register(leave)
    begin()
    import pytest

    status = int(pytest.main())


def end_with_parent(folder: str) -> None:
    """In the child: end with the process that started it. Without a request it goes on."""
    with contextlib.suppress(UsageError):
        end_with(read_request(Path(folder)).parent)


def read_answer(folder: Path, slug: str) -> Report | None:
    """A child's answer; None if it measured nothing.

    Args:
        slug: hardware that it had to measure; empty if unknown.

    Raises:
        UsageError: it measured another device; the message lacks its subject, the process.
    """
    try:
        report = read_report(folder / ANSWER)
    except UsageError:
        return None
    there = report.hardware.slug
    if slug not in ("", there):
        raise UsageError(f"measured {there}, this run {slug}; name the device: {DEVICE_OPTION}")
    return report


@dataclass(frozen=True)
class Worktree:
    """A checkout that a child measures in place of the user's. `folder` and `original` are their top folders."""

    folder: Path
    original: Path

    def moved(self, text: str) -> str:
        """An argument with a path in the user's checkout, changed to the same path in this one."""
        option, equals, value = text.partition("=")
        path = value if equals and option.startswith("-") else text
        for root in {str(self.original), str(self.original.resolve())}:
            if path == root or path.startswith(f"{root}{os.sep}"):
                moved = f"{self.folder}{path[len(root) :]}"
                return f"{option}={moved}" if path is value else moved
        return text

    def python_path(self, site: str = "") -> str:
        """The PYTHONPATH with which a child imports the worktree's code, and this perfguard.

        Args:
            site: a folder of packages that come before all others; empty: none.
        """
        inherited = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
        paths = [str(self._only_perfguard()), str(self.folder)]
        paths += [str(self.folder / "src")] * (self.folder / "src").is_dir()
        paths += [site] * bool(site)
        paths += [self.moved(str(Path(path).absolute())) for path in inherited]
        return os.pathsep.join(paths)

    def _only_perfguard(self) -> Path:
        """A folder with this perfguard alone, since code beside it must not be found. All worktrees share it."""
        folder = self.folder.parent / "only"
        folder.mkdir(exist_ok=True)
        with contextlib.suppress(FileExistsError):
            (folder / "perfguard").symlink_to(Path(perfguard.__file__).parent, target_is_directory=True)
        return folder


@dataclass(frozen=True)
class Packages:
    """The environment of a child. Create it with `own_packages` or `packages_at`.

    Attributes:
        python: its interpreter; empty: this process's.
        site: a folder of packages that come before those of the interpreter; empty: none.
        has_plugin: whether pytest finds perfguard's plugin there by itself. It does not if perfguard is on PYTHONPATH
            alone.
    """

    python: str = ""
    site: str = ""
    has_plugin: bool = True

    @property
    def plugin(self) -> tuple[str, ...]:
        """The arguments with which pytest finds perfguard's plugin."""
        return () if self.has_plugin else ("-p", "perfguard.plugin")


@functools.cache
def own_packages() -> Packages:
    """The environment of this process."""
    points = importlib.metadata.entry_points(group="pytest11")
    return Packages(has_plugin=any(each.value == "perfguard.plugin" for each in points))


_LOOK = """
import importlib.metadata, importlib.util, sys
needs = "msgspec numpy pytest rich scipy torch yaml filelock".split()
print(*[name for name in needs if importlib.util.find_spec(name) is None])
print(any(each.value == "perfguard.plugin" for each in importlib.metadata.entry_points(group="pytest11")))
"""


def packages_at(path: Path) -> Packages:
    """The environment that `--base-python` names: an interpreter, or a folder of site-packages for this one.

    Raises:
        UsageError: `path` is neither, or perfguard's requirements are not installed there.
    """
    python, site = (sys.executable, str(path.absolute())) if path.is_dir() else (str(path.absolute()), "")
    if not path.exists():
        raise UsageError(f"--base-python={path}: no such file; name an interpreter, or a folder of site-packages")
    variables = {**os.environ, "PYTHONPATH": site} if site else {**os.environ}
    try:
        line = [python, "-P", "-c", _LOOK]
        output = subprocess.run(line, capture_output=True, text=True, timeout=60, check=True, env=variables).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(f"--base-python={path}: does not run ({error}); name a Python of 3.11 or later") from error
    missing, has_plugin = output.splitlines()[:2]
    if missing:
        raise UsageError(f"--base-python={path}: {', '.join(missing.split())} is missing there; pip install it")
    return Packages(python, site, has_plugin == "True")


@dataclass(frozen=True)
class ChildCommand:
    """The command that starts pytest again as it was started before. Create it with `child_command`.

    The child itself drops the options not meant for it (`perfguard.pytest_plugin.start`).

    Attributes:
        arguments: pytest's arguments, without the program.
        folder: the working folder in which they were given.
        worktree: the checkout to measure; None: the user's.
        packages: the environment that it runs in.
        prefix: words before those of the interpreter: a program that starts it.
    """

    arguments: tuple[str, ...]
    folder: Path
    worktree: Worktree | None = None
    packages: Packages = field(default_factory=own_packages)
    prefix: tuple[str, ...] = ()

    @property
    def start(self) -> Path:
        """The child's working folder."""
        if self.worktree is None:
            return self.folder
        return self.worktree.folder / self.folder.resolve().relative_to(self.worktree.original.resolve())

    def line(self, folder: Path) -> list[str]:
        """The whole command of a child that finds its request in `folder`."""
        options = ["--color=no", f"{SESSION_OPTION}={folder}"]
        if self.worktree is None:
            return [sys.executable, "-m", "pytest", *self.arguments, *options]
        moved = [self.worktree.moved(argument) for argument in self.arguments]
        python = self.packages.python or sys.executable
        return [*self.prefix, python, "-P", "-c", _PYTEST, *self.packages.plugin, *moved, *_IN_WORKTREE, *options]

    def environment(self) -> dict[str, str]:
        """The child's environment."""
        if self.worktree is None:
            return environment()
        return environment() | {"PYTHONPATH": self.worktree.python_path(self.packages.site)}

    def popen(
        self, line: str | Sequence[str], variables: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[Any]:
        """Start `line`, the child's or a user's, in its folder and environment, at the head of a process group, so that
        `child_process.stop` ends all of it. `options`: Popen's for the output."""
        whole = {**self.environment(), **(variables or {})}
        return subprocess.Popen(
            line, cwd=self.start, env=whole, stdin=subprocess.DEVNULL, start_new_session=True, **options
        )


def child_command(arguments: Sequence[str], folder: Path, device: str) -> ChildCommand:
    """The command for children of a pytest with these `arguments`, given in `folder`, that measures on `device`."""
    return ChildCommand((*_expanded(arguments, folder), f"{DEVICE_OPTION}={device}"), folder)


def _expanded(arguments: Sequence[str], folder: Path) -> tuple[str, ...]:
    """pytest's arguments, with those in files (`@args.txt`, one argument a line) expanded.

    A checkout of another commit may lack the file. A missing file stays as it is, and pytest reports it.
    """
    expanded: list[str] = []
    for argument in arguments:
        try:
            lines = (folder / argument[1:]).read_text(encoding="utf-8").splitlines() if argument[:1] == "@" else None
        except OSError:
            lines = None
        expanded += [argument] if lines is None else _expanded(lines, folder)
    return tuple(expanded)


def add_pytest_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of a command that runs pytest in worktrees."""
    parser.add_argument("--setup", metavar="CMD", default="", help="run in each worktree first, to build extensions")
    parser.add_argument(
        "pytest_arguments", nargs="*", default=[], metavar="-- PYTEST ARGUMENTS", help="which tests; as after `pytest`"
    )


def environment() -> dict[str, str]:
    """This process's environment without the variables of git's hooks, of pytest-xdist's workers and of its test."""
    others = ("PYTEST_XDIST_", "PYTEST_CURRENT_TEST")
    return {name: value for name, value in os.environ.items() if name not in _OF_GIT and not name.startswith(others)}
