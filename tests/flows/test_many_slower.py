"""Changes that move many cases at once: the base, measured by turns on the same device, is what tells, so that no share
of a suite is too large to be accused."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections import Counter

import pytest

from perfguard import ExitStatus
from perfguard.model.records import Baseline, CaseBaseline, Entry, TimedEntry, Word
from perfguard.store.baseline_form import render
from tests.flows.conftest import Project
from tests.flows.test_unchanged import SPREAD, as_recorded

# Long kernels: the simulation costs time for every call that fits into a block.
KERNEL = """
from perfguard.testing import fake

FACTORS = {factors}

def double(x):
    fake.launch("double_kernel", us=20_000.0 * FACTORS.get(x.shape[0], {others}), host_us=5_000.0)
    return 2 * x
"""
TEST = """
import pytest
import torch
import kernel

@pytest.mark.parametrize("n", range({first}, {last}))
def test_{name}(perfguard, n):
    perfguard(kernel.double, torch.ones(n, 1), reference=lambda x: 2 * x)
"""


def write_kernel(project: Project, factors: dict[int, float], others: float = 1.0) -> None:
    """`factors`: by how much more of the base's time the case of so many rows takes."""
    (project.path / "kernel.py").write_text(KERNEL.format(factors=factors, others=others))


def suite(project: Project, cases: int, functions: int) -> list[str]:
    """A committed suite of so many cases; their names."""
    project.configure(case_seconds=0.02, extra_seconds=0)  # nothing of it is about results
    each = cases // functions
    parts = [TEST.format(name=f"double{n}", first=1 + n * each, last=1 + (n + 1) * each) for n in range(functions)]
    project.test_file("\n".join(parts))
    write_kernel(project, {})
    project.commit()
    return [f"double{n // each}[{n + 1}]/forward" for n in range(cases)]


def rows(key: str) -> int:
    return int(key.partition("[")[2].partition("]")[0])


MOST = (12, {n: 1.05 + 0.06 * n for n in range(5, 13)})  # each by a factor of its own
HALF = (8, {**dict.fromkeys(range(1, 5), 1.2), **dict.fromkeys(range(5, 9), 1 / 1.2)})


@pytest.mark.parametrize(
    ("cases", "factors"), [pytest.param(*MOST, id="most", marks=pytest.mark.nightly), pytest.param(*HALF, id="half")]
)
def test_whoever_moved_is_named_and_nobody_else(project: Project, cases: int, factors: dict[int, float]) -> None:
    names = suite(project, cases, 2)
    project.configure(pair_minutes=0)
    project.guard()
    project.baseline.parent.mkdir(parents=True)
    project.baseline.write_text(render(as_recorded(project.read())))
    project.configure(pair_minutes=10)
    project.commit()
    write_kernel(project, factors)
    result = project.guard("--junitxml=junit.xml")
    assert result.ret == ExitStatus.REGRESSED

    def word(key: str) -> str:
        factor = factors.get(rows(key), 1.0)
        return "SLOWER" if factor > 1 else "FASTER" if factor < 1 else "PASS"

    found = project.words("device_time_us")
    assert found == project.judged_again()
    moved = {key for key in names if rows(key) in factors}
    assert {key: found[key] for key in moved} == {key: {word(key)} for key in moved}
    # What nobody touched is acquitted, or at worst left open by a few process pairs; nobody accuses it.
    assert not {"SLOWER", "FASTER"} & {word for key in found.keys() - moved for word in found[key]}
    slower = {key for key in moved if word(key) == "SLOWER"}
    result.assert_outcomes(passed=cases - len(slower), failed=len(slower))
    # A test without a known cause is told once: its worst case, a few others, and their number.
    alone = re.findall(r"^SLOWER  (\S+)  device_time_us", result.stdout.str(), re.MULTILINE)
    block = r"^SLOWER  double\d .*, in (\d+) cases\n    worst:     (\S+)  device_time_us .*; also (.*)$"
    told = re.findall(block, result.stdout.str(), re.MULTILINE)
    assert len(alone) + sum(int(number) for number, *_ in told) == len(slower)
    named = re.findall(r"double\d\[\d+\]/forward", " ".join([*alone, *(text for each in told for text in each)]))
    assert set(named) <= slower
    root = ET.parse(project.path / "junit.xml").getroot()[0]
    assert {case.get("name") for case in root.iter("testcase") if case.find("failure") is not None} == slower
    result.stdout.fnmatch_lines([f"{len(slower)} SLOWER*"])
    if moved - slower:
        result.stdout.fnmatch_lines(["FASTER  double1?*?/forward  device_time_us *better*"])


def record(project: Project, names: list[str]) -> None:
    """What five sessions of each case would have stored: as one run reads the first of them."""
    project.configure(pair_minutes=0)
    project.guard("-k", "double0 and [1]")
    report = project.read()
    entries: dict[str, Entry] = {
        reading.metric: TimedEntry([reading.value * factor for factor in SPREAD], reading.timer or "")
        for reading in report.results[0].readings
        if reading.timed and reading.gated and isinstance(reading.value, float)
    }
    baseline = Baseline(
        "fake-gpu", "test_suite", {"": report.provenance}, {name: CaseBaseline(entries) for name in names}
    )
    project.baseline.parent.mkdir(parents=True)
    project.baseline.write_text(render(baseline))


@pytest.mark.nightly
def test_of_many_a_sample_is_red_in_its_time_and_the_rest_is_counted(project: Project) -> None:
    record(project, suite(project, 120, 4))  # of which 24 are paired at a time
    project.configure(pair_minutes=0.5)
    write_kernel(project, {}, others=1.2)
    result = project.guard()
    assert result.ret == ExitStatus.REGRESSED
    words = project.words("device_time_us")
    assert words == project.judged_again()
    counts = Counter(word for found in words.values() for word in found)
    assert counts.keys() == {"SLOWER", "UNRESOLVED"}
    assert {key.partition("[")[0] for key, found in words.items() if found == {"SLOWER"}} == {
        f"double{n}" for n in range(4)
    }
    left = counts["UNRESOLVED"]  # how many depends on this machine
    inconclusive = f"inconclusive: {left} of 120 timed cases *: UN*: the 0.5 minutes *; raise it, or: *"
    result.stdout.fnmatch_lines(
        [
            "perfguard: 120 times in question: measured beside * by turns (*)",
            "perfguard: process pair 1: 24 of 120 times in question",
            *([inconclusive] if left else []),
            f"{counts['SLOWER']} SLOWER, {counts['UNRESOLVED']} UNRESOLVED; *",
        ]
    )
    verdicts = [verdict for result in project.read().results for verdict in result.verdicts]
    open_ = [verdict.reason or "" for verdict in verdicts if verdict.word is Word.UNRESOLVED]
    over = "the 0.5 minutes for process pairs were over ([tool.perfguard] pair_minutes)"
    assert all(reason.startswith((f"UNPAIRED: {over}", f"UNDECIDED: {over}")) for reason in open_)
