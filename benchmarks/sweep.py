"""Observes every test file of a foreign suite, unedited: what passes by itself, recorded, run again, and its price.

    python -m benchmarks.sweep liger FOLDER STATE [--steps N]      without a GPU: TRITON_INTERPRET=1

First each file runs alone without perfguard, at most a minute. Of its tests that passed, all are observed if they took
a few seconds, otherwise every n-th. A few files at a time are recorded, run again with another hash seed, run again
with every second test in reverse order, and run once without observation. STATE keeps what was found, and a further
call goes on; STATE/sweep.json is the result.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.observe import OBSERVE, SUITES, Checkout
from benchmarks.rows import write_rows

_ALONE = 60.0  # seconds of a file without perfguard
_PART = 4.0  # seconds of those of its tests that are observed
_TOGETHER = 4  # files in one run: many take less time than their imports


@dataclass(frozen=True)
class Test:
    outcome: str  # passed, failed or skipped
    seconds: float  # of the processor
    nodeid: str
    reason: str

    @property
    def file(self) -> str:
        return self.nodeid.partition("::")[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("state", type=Path, help="folder that keeps what was found")
    parser.add_argument("--path", action="append", default=[], help="folder for PYTHONPATH")
    parser.add_argument("--steps", type=int, default=10**6, help="of this call: a file alone, or a few observed")
    given = parser.parse_args()
    state, root = given.state.resolve(), str(Path(__file__).parents[1])
    copy = state / given.suite
    if not copy.exists():
        shutil.copytree(given.folder, copy, ignore=shutil.ignore_patterns(".git", "baselines", ".perfguard"))
    sweep = Sweep(Checkout(SUITES[given.suite], copy, [*given.path, root]), state)
    for _ in range(given.steps):
        if not sweep.step():
            break


class Sweep:
    """What is found of a suite; `state` is the folder that keeps it."""

    def __init__(self, checkout: Checkout, state: Path) -> None:
        self._checkout, self._state, self._json = checkout, state, state / "sweep.json"
        self._rows: dict[str, dict[str, Any]] = json.loads(self._json.read_text()) if self._json.exists() else {}
        found = checkout.folder.rglob("test_*.py")
        self._files = sorted(str(path.relative_to(checkout.folder)) for path in found)

    def step(self) -> bool:
        """Run the next file alone, or observe the next files; False if nothing is left to do."""
        for file in self._files:
            if not self._alone(file).exists():
                self._run(self._alone(file), [file], "-p", "no:perfguard", limit=_ALONE)
                return True
        for file in self._files:
            self._rows.setdefault(file, _outcomes(_read(self._alone(file))))
        left = [file for file in self._files if self._rows[file]["passed"] and "part" not in self._rows[file]]
        if left:
            self._observe(left[:_TOGETHER])
        write_rows(self._json, self._rows)
        return bool(left)

    def _alone(self, file: str) -> Path:
        return self._state / f"{file.replace('/', '-')}.txt"

    def _run(self, log: Path, tests: list[str], *options: str, limit: float | None = None, seed: int = 0) -> list[Test]:
        """Run tests, and return those that ended; `log` keeps them."""
        log.write_text("")
        variables = {"OUTCOMES": str(log), "PYTHONHASHSEED": str(seed)}
        plugin = ["-p", "benchmarks.outcomes", "-o", "log_cli=false"]
        try:
            done = self._checkout.run(*plugin, *options, *tests, variables=variables, limit=limit)
            log.with_suffix(".out").write_text(done.stdout + done.stderr)
        except subprocess.TimeoutExpired:
            pass
        return _read(log)

    def _observe(self, files: list[str]) -> None:
        """Record some files, run them again, and see what that costs."""
        parts = {file: _part(_read(self._alone(file))) for file in files}
        tests = [nodeid for part in parts.values() for nodeid in part]
        log = self._state / f"{files[0].replace('/', '-')}-observed.txt"
        self._run(log, tests, *OBSERVE, "--perfguard-update=all", "--perfguard-dirty")
        self._verdicts()
        observed = _seconds(self._run(log, tests, *OBSERVE, seed=1))
        again = self._verdicts()
        self._run(log.with_suffix(".half.txt"), tests[::-1][::2], *OBSERVE, seed=2)
        half = self._verdicts()
        plain = _seconds(self._run(log.with_suffix(".plain.txt"), tests, "-p", "no:perfguard", seed=1))
        for file in files:
            self._rows[file] |= {
                "part": len(parts[file]), "again": again.get(file, {}), "half": half.get(file, {}),
                "unstable": self._unstable(file), "plain": round(plain[file], 2), "observed": round(observed[file], 2),
            }  # fmt: skip

    def _verdicts(self) -> dict[str, dict[str, int]]:
        """File -> word -> tests of the last run."""
        found: dict[str, Counter[str]] = {}
        for path in (self._checkout.folder / ".perfguard").glob("report-*.json"):
            for result in json.loads(path.read_text())["results"]:
                words = {verdict["word"] for verdict in result["verdicts"]} - {"PASS"} or {"PASS"}
                found.setdefault(result["case"]["nodeid"].partition("::")[0], Counter()).update(words)
            path.unlink()
        return {file: dict(words) for file, words in found.items()}

    def _unstable(self, file: str) -> dict[str, int]:
        """Metric -> tests in which it differed between processes."""
        stem = file.removesuffix(".py").replace("/", ".")
        texts = [path.read_text() for path in (self._checkout.folder / "baselines").rglob(f"{stem}.yaml")]
        return dict(Counter(metric for text in texts for metric in re.findall(r'([\w.]+): "unstable"', text)))


def _read(log: Path) -> list[Test]:
    fields = [line.split("\t") for line in log.read_text().splitlines()]
    return [Test(outcome, float(seconds), nodeid, reason) for outcome, seconds, nodeid, reason in fields]


def _outcomes(tests: list[Test]) -> dict[str, Any]:
    """Outcomes of a file that ran alone, and the commonest reasons of tests that did not pass."""
    count = Counter(each.outcome for each in tests)
    reasons = Counter(f"{each.outcome}: {each.reason}" for each in tests if each.outcome != "passed")
    return {name: count[name] for name in ("passed", "failed", "skipped")} | {"reasons": dict(reasons.most_common(3))}


def _part(tests: list[Test]) -> list[str]:
    """The tests that are observed: all that passed, or every n-th of them."""
    passed, step = [each for each in tests if each.outcome == "passed"], 1
    while step < len(passed) and sum(each.seconds for each in passed[::step]) > _PART:
        step += 1
    return [each.nodeid for each in passed[::step]]


def _seconds(tests: list[Test]) -> dict[str, float]:
    """File -> processor seconds of its tests."""
    found: dict[str, float] = defaultdict(float)
    for each in tests:
        found[each.file] += each.seconds
    return found


if __name__ == "__main__":
    main()
