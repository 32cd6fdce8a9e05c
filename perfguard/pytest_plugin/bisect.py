"""`perfguard bisect GOOD [-- pytest arguments]`: the commit, or the release of a package, that made cases slower,
heavier or wrong."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from perfguard.model.config import find_project, read_settings
from perfguard.model.errors import ExitStatus, UsageError
from perfguard.model.records import CaseId, Word
from perfguard.render.words import one_line
from perfguard.session.child import add_pytest_arguments, environment
from perfguard.session.pairing.worktrees import Repository, find_repository, lock_in
from perfguard.store.report_file import read_report

_PREFIX = "perfguard-bisect-"
_BAD = (Word.WRONG, Word.SLOWER, Word.CHANGED)
_FOLDER = "bisect"  # Folder of logs and reports below that of the reports.
# -P: a worktree with a perfguard of its own is judged by this one.
_PERFGUARD = [sys.executable, "-P", "-m", "perfguard"]


@dataclass(frozen=True)
class Step:
    """The comparison of one commit, or release, with the good one.

    Attributes:
        answer: `skipped` if it could not be compared.
        text: the reason, for one line of output.
        failures: case and metric of each failing verdict.
    """

    answer: Literal["good", "bad", "skipped"]
    text: str
    failures: frozenset[tuple[CaseId, str]] = frozenset()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `perfguard bisect`."""
    parser.description = (
        "Finds the first commit after GOOD whose cases are slower, heavier or wrong beside GOOD: a bisection in which "
        "`perfguard compare GOOD` judges each commit, in a worktree of its own. With --over: the release of a package."
    )
    parser.add_argument("good", metavar="GOOD", nargs="?", help="a commit that is known to be good")
    parser.add_argument("bad", metavar="BAD", nargs="?", default="HEAD", help="a commit that is not (default: HEAD)")
    parser.add_argument(
        "--over",
        metavar="PACKAGE==V1,V2,…",
        help="instead of commits: releases of a package, oldest first, each beside the installed one",
    )
    add_pytest_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Print each step, then the first bad commit beside its parent; status 0 if it, or nothing to find, is found.

    Raises:
        UsageError: no such commit, no common history, or BAD itself cannot be compared.
    """
    here = Path.cwd()
    project = find_project(here)
    folder = project / read_settings(project).reports / _FOLDER
    if options.over:
        return _over(options, here, folder)
    if not options.good:
        raise UsageError("name a commit that is known to be good: perfguard bisect GOOD -- tests/test_norm.py")
    repository = find_repository(here)
    good, bad = (_commit(repository, name) for name in (options.good, options.bad))
    if repository.git("merge-base", good, bad) != good:
        raise UsageError(f"{options.good}: is no ancestor of {options.bad}; name an earlier commit of its history")
    repository.remove_abandoned(_PREFIX)
    parent = Path(tempfile.mkdtemp(prefix=_PREFIX)).resolve()
    with lock_in(parent):
        try:
            repository.add_worktree(parent / "tree", bad)
            tree = Repository(parent / "tree")
            start = tree.root / here.resolve().relative_to(repository.root.resolve())
            return _search(_Commits(tree, start, folder, options), good, bad)
        finally:
            repository.remove_worktrees(parent)


def _commit(repository: Repository, name: str) -> str:
    commit = repository.commit(name)
    if commit is None:
        step = "git fetch --unshallow" if repository.is_shallow else "git log names those that there are"
        raise UsageError(f"{name}: no commit of {repository.root}; {step}")
    return commit


@dataclass(frozen=True)
class _Commits:
    """Compares commits in a worktree.

    Attributes:
        tree: the worktree.
        start: the folder in it that corresponds to the user's.
        folder: for logs and reports.
    """

    tree: Repository
    start: Path
    folder: Path
    options: argparse.Namespace

    def check_out(self, commit: str) -> str:
        """Check out a commit; returns why it cannot be built, with its log."""
        self.tree.git("-c", "core.hooksPath=/dev/null", "checkout", "--quiet", "--force", "--detach", commit)
        if not self.options.setup:
            return ""
        log = self.folder / f"{commit[:12]}.setup.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as file:
            done = subprocess.run(self.options.setup, shell=True, cwd=self.tree.root, stdout=file, stderr=file)
        return f"--setup ends with status {done.returncode}: {log}" if done.returncode else ""

    def compared(self, commit: str, good: str) -> Step:
        """The cases of `commit` beside `good`."""
        problem = self.check_out(commit)
        if problem:
            return Step("skipped", problem)
        return _compared(self._line(good), self.start, self.folder, commit[:12])

    def shown(self, commit: str, good: str) -> None:
        """Run the comparison with its whole output on the terminal."""
        self.check_out(commit)
        subprocess.run(self._line(good), cwd=self.start, env=environment())

    def _line(self, good: str) -> list[str]:
        setup = ["--setup", self.options.setup] if self.options.setup else []
        return [*_PERFGUARD, "compare", good, *setup, "--", *self.options.pytest_arguments]


def _compared(line: list[str], here: Path, folder: Path, name: str) -> Step:
    """The step of one `perfguard compare`, whose output and report are kept in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    log, report = folder / f"{name}.log", folder / f"{name}.json"
    report.unlink(missing_ok=True)
    at = line.index("--")
    with log.open("wb") as file:
        done = subprocess.run(
            [*line[:at], "--json", str(report), *line[at:]], cwd=here, env=environment(), stdout=file, stderr=file
        )
    results = read_report(report).results if report.is_file() else []
    if not results and done.returncode != ExitStatus.PASSED:  # Otherwise only documentation differs.
        return Step("skipped", f"no case was compared, status {done.returncode}: {log}")
    verdicts = [(result, verdict) for result in results for verdict in result.verdicts]
    bad = [(result, verdict) for result, verdict in verdicts if verdict.word in _BAD]
    unclear = [(result, verdict) for result, verdict in verdicts if verdict.word.unguarded or verdict.word.fails]
    for result, verdict in [*bad, *unclear][:1]:
        text = f"{result.case.key} {verdict.word} {one_line(verdict)}".rstrip()
        more = f"; and {len(bad) - 1} more" if len(bad) > 1 else ""
        failures = frozenset((each.id, which.metric) for each, which in bad)
        return Step("bad" if bad else "skipped", text + more, failures)
    return Step("good", f"{len(results)} cases pass")


# -- over commits ------------------------------------------------------------------------------------------------------


def first_bad(repository: Repository, good: str, bad: str, compared: Callable[[str], Step]) -> list[str]:
    """The first bad commit after `good`, then those before it that could not be compared; empty if `bad` is not bad.

    Args:
        compared: a commit -> its step. A commit is bad if it fails where `bad` fails, and is asked once.

    Raises:
        UsageError: `bad` cannot be compared.
    """
    last = compared(bad)
    if last.answer == "skipped":
        raise UsageError(f"{bad[:12]} cannot be compared with {good[:12]}: {last.text}")
    if last.answer == "good":
        return []
    goods, skipped = [good], set[str]()
    while True:
        listed = repository.git("rev-list", "--bisect-all", bad, *(f"^{each}" for each in goods)).splitlines()
        commits = [line.split()[0] for line in listed]  # The one that halves the rest comes first.
        left = [commit for commit in commits if commit != bad and commit not in skipped]
        if not left:
            return [bad, *(commit for commit in commits if commit in skipped)]
        step = compared(left[0])
        if step.answer == "skipped":
            skipped.add(left[0])
        elif step.failures & last.failures:
            bad = left[0]
        else:
            goods.append(left[0])


def _search(commits: _Commits, good: str, bad: str) -> int:
    subjects: dict[str, str] = {}

    def compared(commit: str) -> Step:
        subjects[commit] = commits.tree.git("log", "-1", "--format=%h %an, %ad: %s", "--date=short", commit)
        print(f"perfguard: {subjects[commit]}", flush=True)
        step = commits.compared(commit, good)
        print(f"perfguard:   {step.answer}: {step.text}", flush=True)
        return step

    culprits = first_bad(commits.tree, good, bad, compared)
    if not culprits:
        print(f"perfguard: nothing is worse than at {good[:12]}")
        return int(ExitStatus.PASSED)
    first, *unclear = culprits
    print(f"perfguard: first bad commit: {subjects[first]}")
    for commit in unclear:
        print(f"perfguard: not excluded, since it could not be compared: {subjects[commit]}")
    print("perfguard: beside its parent:", flush=True)
    commits.shown(first, f"{first}^")
    return int(ExitStatus.PASSED)


# -- over releases -----------------------------------------------------------------------------------------------------


def _over(options: argparse.Namespace, here: Path, folder: Path) -> int:
    """Compare the installed release of a package with each of the named ones, in the same code."""
    package, equals, listed = options.over.partition("==")
    releases = [release.strip() for release in listed.split(",") if release.strip()]
    if not package or not equals or not releases:
        raise UsageError(f"--over {options.over}: name a package and its releases, as in triton==3.6.0,3.7.0")
    arguments = [each for each in (options.good, *options.pytest_arguments) if each]
    steps: dict[str, Step] = {}
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as name:
        for release in releases:
            packages = Path(name, release)
            install = ["pip", "install", "--quiet", "--no-deps", "--target", str(packages), f"{package}=={release}"]
            done = subprocess.run([sys.executable, "-m", *install], capture_output=True, text=True)
            if done.returncode:
                why = next(reversed(done.stderr.split("\n")[:-1]), f"pip ends with status {done.returncode}")
                raise UsageError(f"{package}=={release}: {why}; name a release that pip finds")
            line = [*_PERFGUARD, "compare", "HEAD", "--base-python", str(packages), "--", *arguments]
            steps[release] = _compared(line, here, folder, f"{package}-{release}")
            print(f"perfguard: the installed {package} beside {release}: {steps[release].text}", flush=True)
    worse = [release for release in releases if steps[release].answer == "bad"]
    if not worse:
        print(f"perfguard: the installed {package} is worse than none of them")
    else:
        later = releases[releases.index(worse[-1]) + 1 :]
        print(
            f"perfguard: it became worse after {package} {worse[-1]}, in {later[0] if later else 'the installed one'}"
        )
    return int(ExitStatus.PASSED)
