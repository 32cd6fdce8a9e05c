"""Run one mutant by the guard's lane of all CPUs, on cases that reach its line, and say what noticed it."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from benchmarks.mutation.reaching import Reached
from benchmarks.mutation.sampling import ROOT, Mutant
from perfguard.errors import ExitStatus
from perfguard.records import Word, load_report

SECONDS = 240.0  # of one mutant, after which it hangs
MOST_TESTS = 8  # of those that reach a line, the cheapest
SUITES = {
    "fp8": ("quantize", "fp8_grouped_mm"),
    "grouped": ("grouped_mm",),
    "layers": ("layers",),
    "moe": ("moe",),
    "operators": ("operators",),
}
LANE = "--perfguard-lane=cpu"
#: What a run of the lane ends with where it has found something.
FOUND = (ExitStatus.TESTS_FAILED, ExitStatus.REGRESSED, ExitStatus.WRONG)
#: or what is changed does not even import
NO_IMPORT = (ExitStatus.INTERRUPTED, ExitStatus.USAGE_ERROR)


@dataclass(frozen=True)
class Judged:
    """What was seen of one mutant.

    Attributes:
        word: "WRONG", "CHANGED", "BROKEN" … of the verdict that failed, "hangs", "survived", "not reached", or "error"
            where the run itself failed.
        metric: that the verdict names.
        says: its first line.
        tests: how many were run.
    """

    file: str
    line: int
    operator: str
    group: str
    before: str
    after: str
    word: str
    metric: str = ""
    says: str = ""
    tests: int = 0
    seconds: float = 0.0

    @property
    def killed(self) -> bool:
        return self.word not in ("survived", "not reached", "error")


class Cases:
    """Which tests could notice a change of a line, the cheapest first."""

    def __init__(self, reached: Reached, seconds: dict[str, float], root: Path = ROOT) -> None:
        self.reached, self.seconds, self.root = reached, seconds, root
        self.by_kernel = _tests_by_kernel(root)

    def of(self, mutant: Mutant) -> list[str]:
        """Tests by their node ids; of a jitted function half of them compile it for other chips.

        Where no test is known to run a line, tests of the package are: launchers run in the guard's own processes that
        compile for other chips, where coverage does not look.
        """
        lines = self.reached.get(mutant.file, {})
        first, last, name, jitted = _around((self.root / mutant.file).read_text(), mutant.line)
        running = {test for line in range(first, last + 1) for test in lines.get(line, ())}
        compiling: set[str] = set()
        if jitted:
            names = [name] if name in self.by_kernel else _jitted((self.root / mutant.file).read_text())
            compiling = {test for each in names for test in self.by_kernel.get(each, ())}
        if not running | compiling:
            return self._of_package(mutant.package)
        some = self._cheapest(running, MOST_TESTS - min(len(compiling), MOST_TESTS // 2))
        return some + self._cheapest(compiling - set(some), MOST_TESTS - len(some))

    def _of_package(self, package: str) -> list[str]:
        """The cheapest test of each test function."""
        functions: dict[str, list[str]] = {}
        for test in self.seconds:
            if any(f"test_{suite}_guarded.py::" in test for suite in SUITES.get(package, ("",))):
                functions.setdefault(test.partition("[")[0], []).append(test)
        return self._cheapest({self._cheapest(set(tests), 1)[0] for tests in functions.values()}, MOST_TESTS)

    def _cheapest(self, tests: set[str], most: int) -> list[str]:
        known = [test for test in tests if test in self.seconds]
        return sorted(known, key=lambda test: (self.seconds[test], test))[:most]


class Workplace:
    """A clone in which mutants are run one after the other; what is compiled there is kept in `cache`."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.path = folder / "clone"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(self.path)], check=True)
        cache.mkdir(parents=True, exist_ok=True)
        (self.path / ".perfguard").mkdir()
        (self.path / ".perfguard" / "cache").symlink_to(cache.resolve())
        unset = ("PYTEST_", "GIT_", "PYTHONDONTWRITEBYTECODE")  # each run imports the same hundreds of modules
        environment = {name: value for name, value in os.environ.items() if not name.startswith(unset)}
        self.environment = environment | {"OMP_NUM_THREADS": "1"}
        self._clean: dict[str, bool] = {}  # tests that were run on the tree as it is, and whether they pass

    def passing(self, tests: Sequence[str]) -> list[str]:
        """Those that the tree as it is passes: what fails anyhow notices nothing. What they compile is cached then."""
        for test in tests:
            if test not in self._clean:
                self._clean[test] = self.run([test], 10 * SECONDS)[0] == 0
        return [test for test in tests if self._clean[test]]

    def run(self, tests: Sequence[str], seconds: float = SECONDS) -> tuple[int, str]:
        """The lane on some tests, until one fails; the exit status, -1 where it hangs, and what it printed."""
        for report in (self.path / ".perfguard").glob("report-*.json"):
            report.unlink()
        line = [sys.executable, "-m", "pytest", "--perfguard", LANE, "-x", "-q", "-p", "no:cacheprovider", *tests]
        try:
            done = subprocess.run(
                line, cwd=self.path, env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                timeout=seconds, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return -1, ""
        return done.returncode, done.stdout + done.stderr

    def judge(self, mutant: Mutant, tests: Sequence[str]) -> Judged:
        """Change the file, run the lane, and put the file back."""
        tests = self.passing(tests)
        before, after = mutant.change(self.path)
        kept = (mutant.file, mutant.line, mutant.operator, mutant.group, before, after)
        if not tests:
            return Judged(*kept, word="not reached")
        started = time.monotonic()
        word, metric, says = self.noticed(mutant.file, mutant.source(self.path), tests)
        return Judged(*kept, word, metric, says, len(tests), round(time.monotonic() - started, 1))

    def noticed(self, file: str, source: str, tests: Sequence[str]) -> tuple[str, str, str]:
        """Word, metric and reason (as in `Judged`) of the tests where a file holds `source`; the file is put back."""
        path = self.path / file
        original = path.read_text()
        try:
            path.write_text(source)
            return self._found(*self.run(tests))
        finally:
            path.write_text(original)

    def _found(self, status: int, output: str) -> tuple[str, str, str]:
        if status == -1:
            return "hangs", "", ""
        if status == 0:
            return "survived", "", ""
        reports = sorted((self.path / ".perfguard").glob("report-*.json"))
        results = load_report(reports[0].read_bytes()).results if reports else []
        order = list(Word)
        failing = [verdict for result in results for verdict in result.verdicts if verdict.word.fails]
        if failing:
            worst = min(failing, key=lambda verdict: order.index(verdict.word))
            return str(worst.word), worst.metric, (worst.reason or "").splitlines()[0][:200] if worst.reason else ""
        error = re.search(r"^E +([\w.]*(?:Error|Exception|Failed)\b.*)", output, re.MULTILINE)
        if error and (status in FOUND or (status in NO_IMPORT and "kernels/" in output)):
            return "BROKEN", "", error[1][:200]
        return "error", "", output[-300:]


def _around(source: str, line: int) -> tuple[int, int, str, bool]:
    """The lines of the innermost statement, the outermost function that holds it, and whether that is jitted."""
    first, last, name, jitted = line, line, "", False
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.stmt) or node.end_lineno is None or not node.lineno <= line <= node.end_lineno:
            continue
        if isinstance(node, ast.FunctionDef) and not name:
            name, jitted = node.name, _is_jitted(node)
        simple = not hasattr(node, "body")
        if simple:
            first, last = node.lineno, node.end_lineno
    return first, last, name, jitted


def _is_jitted(node: ast.FunctionDef) -> bool:
    return any("jit" in ast.unparse(decorator) for decorator in node.decorator_list)


def _jitted(source: str) -> list[str]:
    return [node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef) and _is_jitted(node)]


def _tests_by_kernel(root: Path) -> dict[str, set[str]]:
    """Whose calls launch a kernel, by what is remembered of them for other chips."""
    found: dict[str, set[str]] = {}
    for path in (root / "baselines" / "targets").glob("*/*.yaml"):
        suite = path.stem.removeprefix("kernels.")
        for key, case in yaml.safe_load(path.read_text())["cases"].items():
            test = f"tests/kernels/test_{suite}.py::test_{re.split('[/:](?![^[]*])', key)[0]}"
            for kernel in case.get(f"{path.parent.name}.configuration", {}):
                found.setdefault(kernel.partition("@")[0], set()).add(test)
    return found
