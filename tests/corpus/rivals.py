"""The same mutants as others see them: `assert_close`, pytest-benchmark and do_bench, each with its usual gate."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from benchmarks.checkouts import ROOT
from benchmarks.planting import Append, Mutant, NotApplied
from tests.corpus.project import Corpus, Project, fingerprint

GATE = 0.05
NAMES = ("assert_close", "pytest-benchmark 5 %", "do_bench 5 %")
FAILED = re.compile(r"^\s*(\S.*?) \(\S+\) - Field 'median' has failed PercentageRegressionCheck: ([0-9.]+|inf)", re.M)


@dataclass(frozen=True)
class Seen:
    """What the rivals say of one run: the tests that fail, each with what it says; None where one was not asked."""

    close: Mapping[str, str]
    benchmark: Mapping[str, str]
    do_bench: Mapping[str, str] | None

    def of(self) -> tuple[Mapping[str, str] | None, ...]:
        """In the order of NAMES."""
        return self.close, self.benchmark, self.do_bench


def ask(corpus: Corpus, mutant: Mutant) -> Seen | None:
    """All rivals on one mutant, beside their own clean run of its suite; None where the mutant is none for them."""
    clean = _clean(corpus, mutant.suite)
    with corpus.project(mutant.suite) as project:
        _equip(project)
        shutil.copytree(clean / "benchmarks", project.path / "benchmarks")
        try:
            for change in (*mutant.given, *mutant.apply):
                change(project.path)
        except NotApplied:
            return None
        ran = project.run(
            "--benchmark-compare=0001", f"--benchmark-compare-fail=median:{GATE:.0%}", *_options(mutant), measure=False
        )
        noted = _noted(project.path)
    before = {each["test"]: each for each in json.loads((clean / "noted.json").read_text())}
    failing = {test for test, each in before.items() if each["close"]}  # on the clean tree as well: no word on this one
    close = {each["test"]: each["close"] for each in noted if each["close"] and each["test"] not in failing}
    benchmark = {name: f"+{float(change):.0f} %" for name, change in FAILED.findall(ran.output)}
    if not corpus.gpu:
        return Seen(close, benchmark, None)
    slower = {
        each["test"]: each["do_bench"] / before[each["test"]]["do_bench"] - 1
        for each in noted
        if each["test"] in before
    }
    return Seen(close, benchmark, {name: f"+{change:.0%}" for name, change in slower.items() if change > GATE})


def _options(mutant: Mutant) -> list[str]:
    return [each for each in mutant.arguments if not each.startswith("--perfguard")]


def _clean(corpus: Corpus, suite: str) -> Path:
    """What the rivals read of the clean suite."""
    folder = corpus.folder / f"rivals-{suite}-{fingerprint(suite)}"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            with corpus.project(suite, recorded=False) as project:
                _equip(project)
                ran = project.run("--benchmark-save=clean", measure=False)
                assert ran.status == 0, f"{suite}: the rivals cannot run the clean suite:\n{ran.output}"
                folder.mkdir()
                (folder / "noted.json").write_text(json.dumps(_noted(project.path)))
                shutil.copytree(project.path / "benchmarks", folder / "benchmarks")
    return folder


def _equip(project: Project) -> None:
    """The rivals' fixture in the place of perfguard's."""
    shutil.copy(ROOT / "tests" / "corpus" / "suites" / "_rivals.py", project.path / "rivals.py")
    Append("conftest.py", "from rivals import perfguard  # noqa: E402, F401")(project.path)
    options = '"-p", "no:perfguard", "--benchmark-storage=benchmarks", "--benchmark-max-time=0.2", '
    text = (project.path / "pyproject.toml").read_text()
    (project.path / "pyproject.toml").write_text(text.replace("addopts = [", f"addopts = [{options}"))


def _noted(root: Path) -> list[dict[str, Any]]:
    path = root / "rivals.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
