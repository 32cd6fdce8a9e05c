"""Run one mutant by the guard's lane of all CPUs, on cases that reach its line, and say what noticed it."""

from __future__ import annotations

import ast
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.checkouts import HANGS, Ran, commit, copied, environment, run_pytest, share_binaries
from benchmarks.mutation.reaching import Reached
from benchmarks.mutation.sampling import ROOT, Mutant
from benchmarks.planting import Edit, failing, planted_in
from perfguard.model.errors import ExitStatus
from perfguard.store.baseline_files import Store

MINUTES = 4.0  # of one mutant in a lane of plain cases, after which it hangs
MOST_TESTS = 10  # of those that reach a line, the cheapest
SUITES = {
    "block_scaled": ("block_scaled",),
    "fp8": ("quantize", "fp8_grouped_mm"),
    "grouped": ("grouped_mm",),
    "layers": ("layers",),
    "moe": ("moe",),
    "operators": ("norms", "operators"),
    "parallel": ("layouts", "parallel", "pipelines", "vocab_parallel"),
}
#: Options of a lane that times nothing. What is the same on every CPU, compiled for one target ("sm_90"), or for all
#: ("cpu"). "known": as "sm_90", with the time for all derived inputs, whose order each commit changes. "all": as "cpu",
#: with every configuration of every case and the time for most derived inputs. "gpu": the GPU that is there.
LANES = {
    "sm_90": ("--perfguard-lane=cpu",),
    "known": ("--perfguard-lane=cpu",),
    "cpu": ("--perfguard-lane=cpu",),
    "all": ("--perfguard-lane=cpu", "--perfguard-all-configs"),
    "gpu": ("-p", "benchmarks.mutation.untimed"),
}
#: What a lane changes in [tool.perfguard].
_ONE = 'targets = ["sm_90"]\n'
SETTINGS = {"sm_90": _ONE, "known": f"{_ONE}extra_seconds = 20.0\n", "all": "extra_seconds = 8.0\n"}
_SECTION = "[tool.perfguard]\n"
#: What tells apart ways through one test function that share little code, in the tests' ids.
WAY = re.compile(r"interpreted|library|triton|b?float\d+\w*")
#: What a run of the lane ends with where it has found something.
FOUND = (ExitStatus.TESTS_FAILED, ExitStatus.REGRESSED, ExitStatus.WRONG)
#: or what is changed does not even import
NO_IMPORT = (ExitStatus.INTERRUPTED, ExitStatus.USAGE_ERROR)
#: Signals by which a process ends itself; that of a machine short of memory is another's.
DEADLY = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)


@dataclass(frozen=True)
class Judged:
    """What was seen of one mutant.

    Attributes:
        word: "WRONG", "CHANGED", "BROKEN" … of the verdict that failed, "hangs", "dies" where a signal ended the
            process (an access outside of its memory), "survived", "not reached", or "error" where the run itself
            failed.
        metric: that the verdict names.
        says: its first line.
        tests: how many were run.
        lane: that was run, of `LANES`.
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
    lane: str = "cpu"

    @property
    def killed(self) -> bool:
        return self.word not in ("survived", "not reached", "error")


class Cases:
    """Which tests could notice a change of a line, the cheapest first.

    Attributes:
        folders: of `baselines/`, whose records tell which tests launch or compile which kernels.
        most: tests of one mutant, the cheapest of those that reach its line.
    """

    def __init__(
        self,
        reached: Reached,
        seconds: dict[str, float],
        root: Path = ROOT,
        folders: str = "cpu",
        most: int = MOST_TESTS,
    ) -> None:
        self.reached, self.seconds, self.root, self.most = reached, seconds, root, most
        self.by_kernel = _tests_by_kernel(root, folders)

    def of(self, mutant: Mutant) -> list[str]:
        """Tests by their node ids: half of them run the line, half launch or compile a kernel that it belongs to.

        Signatures and attributes of a class run when they are imported: who runs the body, runs them. So do constants
        of a module: they are noticed by lines that name them.
        Coverage does not look into a GPU, nor into the guard's own processes that compile for other chips. There a
        line belongs to the kernels that its function is or names, or else to those of files that name the function, or
        of its own file. Where no test is known, it belongs to those of the package.
        """
        lines = self.reached.get(mutant.file, {})
        source = (self.root / mutant.file).read_text()
        at, function = _around(source, mutant.line)
        running = {test for line in at for test in lines.get(line, ())} or self._using(_constants(source, mutant.line))
        launching = (
            self._launching(function, mutant.package)
            or self._launching(self._users(mutant, function), mutant.package)
            or self._launching(source, mutant.package)
        )
        if not running and not launching:
            return self._of_package(mutant.package)
        some = self._cheapest(running, self.most - min(sum(map(len, launching)), self.most // 2))
        for tests in launching:  # one for each kernel, before a second one of any
            some += self._cheapest(tests, 1) if not tests & {*some} and len(some) < self.most else []
        return some + self._cheapest(set().union(*launching) - {*some}, self.most - len(some))

    def _using(self, names: set[str]) -> set[str]:
        """Who runs a line that holds one of the names."""
        found: set[str] = set()
        for file, lines in self.reached.items() if names else ():
            texts = (self.root / file).read_text().splitlines()
            for line, tests in lines.items():
                if names & {*re.findall(r"\w+", texts[line - 1])}:
                    found.update(tests)
        return found

    def _users(self, mutant: Mutant, function: str) -> str:
        """The other files of the package that name a function."""
        name = re.search(r"^def (\w+)", function, re.MULTILINE)
        own = self.root / mutant.file
        others = [path.read_text() for path in sorted(own.parent.glob("*.py")) if path != own] if name else []
        return "\n".join(text for text in others if name and re.search(rf"\b{name[1]}\b", text))

    def _launching(self, source: str, package: str) -> list[set[str]]:
        """For each kernel that the source names, who launches it: those of its own package, if there are any."""
        names = {*re.findall(r"\b[A-Za-z_]\w*\b", source)} & self.by_kernel.keys()
        found = []
        for name in sorted(names):
            own = {test for test in self.by_kernel[name] if _guards(test, package)}
            found.append((own or self.by_kernel[name]) & self.seconds.keys())
        return [tests for tests in found if tests]

    def _of_package(self, package: str) -> list[str]:
        """The cheapest test of each test function."""
        functions: dict[str, list[str]] = {}
        for test in self.seconds:
            if _guards(test, package):
                functions.setdefault(test.partition("[")[0], []).append(test)
        return self._cheapest({self._cheapest(set(tests), 1)[0] for tests in functions.values()}, self.most)

    def _cheapest(self, tests: set[str], most: int) -> list[str]:
        """One of each test function before a second one of any, and then of another way (`WAY`) before the same one
        again: they differ in more than shape."""
        known = sorted((test for test in tests if test in self.seconds), key=lambda test: (self.seconds[test], test))
        in_way = _turns(known, lambda test: (test.partition("[")[0], *WAY.findall(test.partition("[")[2])))
        known.sort(key=lambda test: in_way[test])
        in_function = _turns(known, lambda test: test.partition("[")[0])
        return sorted(known, key=lambda test: (in_function[test], self.seconds[test], test))[:most]


class Workplace:
    """A clone in which mutants are run one after the other.

    Attributes:
        python: what runs pytest there.
        cache: what is compiled there is kept in; clones share it.
        clean: tests that were run on the tree as it is, and whether they pass; clones share it, too.
    """

    def __init__(self, folder: Path, cache: Path, lane: str = "cpu", clean: dict[str, bool] | None = None) -> None:
        self.lane, self.python = lane, sys.executable
        self.path = copied(folder / "clone")
        settings = self.path / "pyproject.toml"
        settings.write_text(settings.read_text().replace(_SECTION, _SECTION + SETTINGS.get(lane, "")))
        # The base is asked about a mutant: it has everything but the mutant. Nothing is asked of the tree as it is.
        commit(self.path)
        share_binaries(self.path, cache)
        self.clean = {} if clean is None else clean

    def passing(self, tests: Sequence[str]) -> list[str]:
        """Those that the tree as it is passes: what fails anyhow notices nothing. What they compile is cached then."""
        new = [test for test in tests if test not in self.clean]
        if new and self.run(new, 10 * MINUTES).status == 0:
            self.clean |= dict.fromkeys(new, True)
        for test in new:
            if test not in self.clean:
                self.clean[test] = self.run([test], 10 * MINUTES).status == 0
        return [test for test in tests if self.clean[test]]

    def run(self, tests: Sequence[str], minutes: float | None = None) -> Ran:
        """The lane on some tests, until one fails."""
        (self.path / ".perfguard" / "cache" / "turns.json").unlink(missing_ok=True)
        options = [*LANES[self.lane], "--perfguard-base=HEAD", "-x", "-q", "-p", "no:cacheprovider"]
        return run_pytest(
            self.path, "--perfguard", *options, *tests, python=self.python, variables=environment(),
            minutes=minutes or MINUTES * (4 if self.lane == "all" else 1),
        )  # fmt: skip

    def judge(self, mutant: Mutant, tests: Sequence[str]) -> Judged:
        """Change the file, run the lane, and put the file back."""
        tests = self.passing(tests)
        before, after = mutant.change(self.path)
        kept = (mutant.file, mutant.line, mutant.operator, mutant.group, before, after)
        if not tests:
            return Judged(*kept, word="not reached")
        started = time.monotonic()
        whole = Edit(mutant.file, (self.path / mutant.file).read_text(), mutant.source(self.path))
        word, metric, says = found(self.planted(whole, tests))
        return Judged(*kept, word, metric, says, len(tests), round(time.monotonic() - started, 1), self.lane)

    def planted(self, edit: Edit, tests: Sequence[str]) -> Ran:
        """The tests where the edit is made; it is undone."""
        with planted_in(self.path, edit):
            return self.run(tests)


def found(ran: Ran) -> tuple[str, str, str]:
    """Word, metric and reason, as in `Judged`."""
    if ran.status == HANGS:
        return "hangs", "", ""
    if -ran.status in DEADLY:
        return "dies", "", signal.Signals(-ran.status).name
    if ran.status == 0:
        return "survived", "", ""
    for _, worst in failing(ran.report):
        return str(worst.word), worst.metric, next(iter((worst.reason or "").splitlines()), "")[:200]
    error = re.search(r"^E +([\w.]*(?:Error|Exception|Failed)\b.*)", ran.output, re.MULTILINE)
    if error and (ran.status in FOUND or (ran.status in NO_IMPORT and "kernels/" in ran.output)):
        return "BROKEN", "", error[1][:200]
    return "error", "", ran.output[-300:]


def _turns(tests: Sequence[str], kind: Callable[[str], Hashable]) -> dict[str, int]:
    """How many of its kind come before each test."""
    seen: Counter[Hashable] = Counter()
    found = {}
    for test in tests:
        found[test] = seen[kind(test)]
        seen[kind(test)] += 1
    return found


def _guards(test: str, package: str) -> bool:
    """Whether a test is of the package's suites; what lies beside the packages serves all of them."""
    return package == "kernels" or any(f"test_{suite}_guarded.py::" in test for suite in SUITES.get(package, ()))


def _around(source: str, line: int) -> tuple[range, str]:
    """The lines of the innermost statement, or of the body whose signature or attribute it is, and the text of the
    outermost function that holds it."""
    at, function, lines = range(line, line + 1), "", source.splitlines()
    for node in ast.walk(ast.parse(source)):  # what is further inside comes later
        if not isinstance(node, ast.stmt) or node.end_lineno is None:
            continue
        decorators = node.decorator_list if isinstance(node, ast.FunctionDef | ast.ClassDef) else []
        begin = min([node.lineno, *(each.lineno for each in decorators)])
        if not begin <= line <= node.end_lineno:
            continue
        if isinstance(node, ast.FunctionDef) and not function:
            function = "\n".join(lines[begin - 1 : node.end_lineno])
        if isinstance(node, ast.ClassDef):
            attributes = [each for each in node.body if not hasattr(each, "body")]
            if any(each.lineno <= line <= (each.end_lineno or 0) for each in attributes):
                return range(node.lineno, node.end_lineno + 1), function
        if isinstance(node, ast.FunctionDef) and line < node.body[0].lineno:
            at = range(line, node.end_lineno + 1)
        elif not hasattr(node, "body"):
            at = range(node.lineno, node.end_lineno + 1)
    return at, function


def _constants(source: str, line: int) -> set[str]:
    """The names that a module's own statement on this line assigns."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.lineno <= line <= (node.end_lineno or 0):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            return {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}
    return set()


def _tests_by_kernel(root: Path, folders: str) -> dict[str, set[str]]:
    """Whose calls launch or compile a kernel, by what is remembered of them."""
    found: dict[str, set[str]] = {}
    store = Store(root / "baselines")
    for path in store.root.glob(f"{folders}/*.yaml"):
        suite = path.stem.removeprefix("kernels.")
        baseline = store.load(path.parent.relative_to(store.root).as_posix(), path.stem)
        assert baseline is not None
        for key, case in baseline.cases.items():
            test = f"tests/kernels/test_{suite}.py::test_{re.split('[/:](?![^[]*])', key)[0]}"
            code = case.entries.get("code")
            for kernel in code if isinstance(code, dict) else ():
                found.setdefault(re.split("[@/ ]", kernel)[0], set()).add(test)
    return found
