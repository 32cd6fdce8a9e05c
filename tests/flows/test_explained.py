"""A heavier, a slower and a cold case as a user reads them: what came, where, and why."""

from __future__ import annotations

import re

import pytest

from perfguard import ExitStatus
from tests.flows.conftest import Project

READS = """
import torch
from perfguard.hardware import fake

workspaces = []

def double(x):
    with fake.allocate(8 << 20):
        fake.launch("double_kernel", us=50.0)
        fake.launch("check_kernel", us=4.0)
        fake.current().synchronize()
    return x * 2
"""

# The recorded clock is the one that the simulated device shows; this one is throttled.
THROTTLED = """
import msgspec
from perfguard.hardware import fake

def pytest_runtest_setup(item):
    device = fake.current()
    if device is not None:
        device.slowdown = 1.2
        device.state = msgspec.structs.replace(device.state, clock_mhz=800, throttle_reasons=["thermal"])
"""

# The same kind of device; another one of it, or the very one.
ON_BOARD = """
from perfguard.hardware import fake

def pytest_runtest_setup(item):
    device = fake.current()
    if device is not None:
        device.board = "gpu-{name}"
"""

COLD = """
import time
import kernel

def test_double(perfguard):
    import torch
    x = torch.randn(64, 16)
    perfguard(kernel.double, x, reference=lambda x: 2 * x, cold_start=True)
"""


def test_a_heavier_call_says_what_came_and_which_line_waits(recorded: Project) -> None:
    (recorded.path / "kernel.py").write_text(READS)
    result = recorded.guard("-k", "64")
    assert result.ret == ExitStatus.REGRESSED
    result.stdout.fnmatch_lines(
        [
            "*CHANGED launches: 1 -> 2 (+100.0 %)",
            "*kernels + check_kernel",
            "*CHANGED peak_memory_bytes: 1 MiB -> 8 MiB*",
            "*workspace_bytes 1 MiB -> 8 MiB*",
            "*CHANGED syncs: 0 -> 1",
            "*the host waits for the device: kernel.py:11 in double (synchronize)",
        ],
        consecutive=False,
    )


def test_a_slower_time_names_launches_before_memory_and_the_clocks(recorded: Project) -> None:
    assert re.search(r"clock_mhz: 1000\b", recorded.baseline.read_text())
    recorded.kernel(us=60.0, launches=2, allocate=4 << 20)
    (recorded.path / "conftest.py").write_text(THROTTLED)
    result = recorded.guard("-k", "64")
    assert result.ret == ExitStatus.REGRESSED
    result.stdout.fnmatch_lines(
        [
            "*because: launches 1 -> 2 (+100.0 %), kernels + copy_kernel, peak_memory_bytes 1 MiB -> 4 MiB*"
            "; the machine moved too: clocks 1000 -> 800 MHz, throttled: thermal"
        ]
    )


def test_a_baseline_of_another_board_says_so(project: Project) -> None:
    (project.path / "conftest.py").write_text(ON_BOARD.format(name="a"))
    assert project.guard("--perfguard-update").ret == ExitStatus.PASSED
    assert re.search(r"board: gpu-a\b", project.baseline.read_text())
    project.guard("-k", "64").stdout.fnmatch_lines(["PASS  1 case"])
    (project.path / "conftest.py").write_text(ON_BOARD.format(name="b"))
    result = project.guard("-k", "64")
    assert result.ret == ExitStatus.PASSED
    told = "    recorded on another board, and too few other cases tell how far it lies; `perfguard compare` needs no *"
    result.stdout.fnmatch_lines(["UNRESOLVED  1 case: too noisy to judge*", "    double?64?/forward: *", told])


@pytest.mark.usefixtures("real_processes")
def test_a_cold_start_is_read_in_a_process_of_its_own(project: Project) -> None:
    project.test_file(COLD)
    assert project.guard().ret == ExitStatus.PASSED
    (result,) = project.report()["results"]
    readings = {reading["metric"]: reading for reading in result["readings"]}
    assert readings["compiled_kernels"]["value"] == 0  # the simulated GPU compiles nothing
    assert 1e5 < readings["cold_start_us"]["value"] < 3e8  # Python, torch and pytest were started for it
    assert readings["cold_start_us"]["timer"] == "process"
    assert project.words("cold_start_us") == {"double/forward": {"NEW"}}
