"""Cases whose device code is as recorded are not timed, but for controls; what did change is judged: by its record
where the controls are enough, else by process pairs."""

from __future__ import annotations

from collections import Counter

import pytest

from perfguard import ExitStatus
from perfguard.judge.screen import CONTROLS
from perfguard.model.records import (
    Baseline,
    CaseBaseline,
    CaseResult,
    Entry,
    Provenance,
    Report,
    TimedEntry,
)
from perfguard.store.baseline_form import render
from tests.flows.conftest import Project

CASES = CONTROLS + 4
SPREAD = (0.999, 1.0, 1.001, 1.002, 0.998)  # between five sessions

# Long kernels: the simulation costs time for every call that fits into a block.
KERNEL = """
from perfguard.testing import fake

def double(x):
    if x.shape[0] == 1:
        fake.launch("double_kernel", us={odd_us}, host_us=5_000.0, binary={odd_code!r})
    else:
        fake.launch("double_kernel", us=20_000.0, host_us=5_000.0, binary="one")
    return 2 * x
"""

TEST = f"""
import pytest
import torch
import kernel

@pytest.mark.parametrize("n", range(1, {CASES + 1}))
def test_double(perfguard, n):
    perfguard(kernel.double, torch.ones(n, 16), reference=lambda x: 2 * x)
"""


# A device of its own, which knows its name.
# A quiet one: else two sessions of it differ by more than a record may acquit beside, once in some ten.
ON_BOARD = """
import functools
from perfguard.testing import fake

fake.FakeDevice = functools.partial(fake.FakeDevice, session_noise=0.0005)

def pytest_runtest_setup(item):
    if fake.current() is not None:
        fake.current().board = "gpu-a"
"""


def write_kernel(project: Project, odd_us: float = 20_000.0, odd_code: str = "one") -> None:
    (project.path / "kernel.py").write_text(KERNEL.format(odd_us=odd_us, odd_code=odd_code))


def as_recorded(report: Report) -> Baseline:
    """What five sessions like the reported one would have stored."""

    def entry(value: object, timer: str | None) -> Entry:
        assert isinstance(value, int | float | str | list)
        if timer is None:
            return value
        assert isinstance(value, int | float)
        return TimedEntry(sessions=[value * factor for factor in SPREAD], timer=timer)

    def case(result: CaseResult) -> CaseBaseline:
        return CaseBaseline({read.metric: entry(read.value, read.timer) for read in result.readings}, result.inputs)

    tools = report.toolchain
    provenance = Provenance(torch=tools.torch, triton=tools.triton, driver=tools.driver, toolkit=tools.toolkit,
                            python=tools.python, power_limit_watts=300.0, board="gpu-a")  # fmt: skip
    return Baseline(
        "fake-gpu", "test_suite", {"": provenance}, {result.case.key: case(result) for result in report.results}
    )


@pytest.fixture
def known(project: Project) -> Project:
    """Cases of one kernel, known from five sessions."""
    project.configure(case_seconds=0.02)
    project.test_file(TEST)
    (project.path / "conftest.py").write_text(ON_BOARD)
    write_kernel(project)
    assert project.guard().ret == ExitStatus.PASSED
    project.baseline.parent.mkdir(parents=True)
    project.baseline.write_text(render(as_recorded(project.read())))
    project.commit()
    return project


def read_times(project: Project) -> list[str]:
    """Cases whose device time was read."""
    return [result.case.key for result in project.read().results if result.reading("device_time_us")]


def test_the_record_acquits_beside_enough_controls_and_pairs_catch_what_is_slower(known: Project) -> None:
    # Other code at the same speed: its record says so, since the unchanged cases show that board and day are its own.
    project, odd = known, "double[1]/forward"
    write_kernel(project, odd_code="two")
    for _ in range(4):  # by chance the record may leave it to the pairs
        same = project.guard()
        assert same.ret == ExitStatus.PASSED
        words = Counter(word for found in project.words("device_time_us").values() for word in found)
        assert words == {"UNCHANGED": CASES - 1, "PASS": 1}
        assert project.words("device_time_us")[odd] == {"PASS"}
        if "pairings" not in project.report():
            break
    else:
        pytest.fail("the record has not acquitted what is the same in four runs")
    timed = read_times(project)
    assert CONTROLS <= len(timed) < CASES
    same.stdout.fnmatch_lines([f"*{CASES - len(timed)} not timed, whose code on the device is as recorded*"])
    assert all(result.reading("host_time_us") for result in project.read().results)

    write_kernel(project, odd_us=22_000.0, odd_code="three")
    slower = project.guard()
    assert slower.ret == ExitStatus.REGRESSED, slower.stdout.str()
    slower.stdout.fnmatch_lines(["perfguard: process pair 1: 1 time in question", "SLOWER  double?1?/forward  *"])
    assert project.words("device_time_us")[odd] == {"SLOWER"}
    assert sum("UNCHANGED" in found for found in project.words("device_time_us").values()) == CASES - 1


def test_the_code_decides_and_what_is_unknown_or_recorded_is_timed(known: Project) -> None:
    project, few, odd = known, ("-k", "[1] or [2] or [3]"), "double[1]/forward"

    # The time moved, but the code says that it cannot have: the machine's doing, and nobody is accused.
    write_kernel(project, odd_us=22_000.0)
    assert project.guard(*few).ret == ExitStatus.PASSED
    assert project.words("device_time_us")[odd] == {"UNCHANGED"}

    # Code that nobody knows is measured beside the base, and passes.
    kernel = (project.path / "kernel.py").read_text()
    (project.path / "kernel.py").write_text(
        kernel.replace("binary='one'", "binary=None").replace("22000.0", "20_000.0")
    )
    assert project.guard(*few).ret == ExitStatus.PASSED
    assert project.words("device_time_us")[odd] == {"PASS"}
    assert project.words("fingerprint")[odd] == {"PASS"}

    # An update needs everything that it may write.
    write_kernel(project)
    assert project.guard("--perfguard-update=changed", *few).ret == ExitStatus.PASSED
    assert len(read_times(project)) == 3
