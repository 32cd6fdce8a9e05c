"""A heavier, a slower and a cold case as a user reads them: what came, where, and why."""

from __future__ import annotations

from perfguard import ExitStatus
from tests.flows.conftest import Project

READS = """
import torch
from perfguard.testing import fake

workspaces = []

def double(x):
    with fake.allocate(8 << 20):
        fake.launch("double_kernel", us=50.0)
        fake.launch("check_kernel", us=4.0)
        fake.current().synchronize()
    return x * 2
"""

# Slower than it was when the baselines were recorded, for base and working tree alike.
THROTTLED = """
import msgspec
from perfguard.testing import fake

def pytest_runtest_setup(item):
    device = fake.current()
    if device is not None:
        device.slowdown = 1.2
        device.state = msgspec.structs.replace(device.state, clock_mhz=800, throttle_reasons=["thermal"])
"""


def test_a_heavier_call_says_what_came_and_which_line_waits(recorded: Project) -> None:
    (recorded.path / "kernel.py").write_text(READS)
    result = recorded.guard("-k", "64")
    assert result.ret == ExitStatus.REGRESSED
    result.stdout.fnmatch_lines(
        [
            "E *Regression: double?64?/forward on fake-gpu: CHANGED syncs: 0 -> 1",
            "E *the host waits for the device: kernel.py:11 in double (synchronize)",
            "E *CHANGED launches: 1 -> 2 (+100.0 %)",
            "E *CHANGED peak_memory_bytes: 1 MiB -> 8 MiB*",
            "SLOWER  double?64?/forward  host_time_us *",  # by pairs: the host waits now
            # The base has told what ran there.
            "    because:   syncs 0 -> 1, launches 1 -> 2 *, kernels + check_kernel, *peak_memory_bytes 1 MiB -> 8*",
        ]
    )


def test_a_slower_time_names_launches_before_memory(recorded: Project) -> None:
    (recorded.path / "conftest.py").write_text(THROTTLED)
    recorded.commit()
    recorded.kernel(us=60.0, launches=2, allocate=4 << 20)
    result = recorded.guard("-k", "64")
    assert result.ret == ExitStatus.REGRESSED
    result.stdout.fnmatch_lines(
        [
            "* 800 MHz * throttled: thermal *",
            "SLOWER  double?64?/forward  device_time_us * µs -> 7* µs (+*",  # both sides are as throttled
            "    because:   launches 1 -> 2 (+100.0 %), kernels + copy_kernel, peak_memory_bytes 1 MiB -> 4 MiB*",
        ]
    )


def test_one_cause_in_several_cases_is_one_finding(recorded: Project) -> None:
    recorded.configure(pair_minutes=0)  # what is told of exact metrics needs no times
    recorded.kernel(launches=2)
    result = recorded.guard()
    assert result.ret == ExitStatus.REGRESSED
    result.stdout.fnmatch_lines(
        [
            "CHANGED  copy_kernel, in 2 cases: launches 1 -> 2",
            "    worst:     double?64?/forward  launches 1 -> 2 (+100.0 %); also double?96?/forward",
            "    reproduce: pytest --perfguard 'test_suite.py::test_double?64?'",
            "    accept:    pytest --perfguard --perfguard-update=changed --perfguard-reason 'why' "
            "'test_suite.py::test_double?64?' 'test_suite.py::test_double?96?'",
        ],
        consecutive=True,
    )
