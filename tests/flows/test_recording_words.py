"""What a recording says: how far it is while it measures, and on one screen what it wrote."""

from __future__ import annotations

import re

import pytest

from perfguard import ExitStatus
from tests.flows.conftest import TEST, Project

CASES = 40
SCREEN = 50  # lines


@pytest.fixture
def large(project: Project) -> Project:
    """More cases than anybody reads line by line."""
    project.configure(case_seconds=0.02, extra_seconds=0)
    project.kernel(us=2000.0)  # the simulation costs time for every call that fits into a block
    project.test_file(TEST.replace("[64, 96]", f"range(1, {CASES + 1})"))
    return project


def test_a_large_recording_fits_a_screen_and_v_shows_the_rest(large: Project) -> None:
    run = large.guard("--perfguard-update=new")
    assert run.ret == ExitStatus.PASSED
    said = run.stdout.str().splitlines()
    assert len(said) <= SCREEN
    run.stdout.fnmatch_lines(
        [
            "perfguard: fresh process: 40 tests",
            "perfguard: update: new: fake-gpu test_suite: 40 cases, * values",
            "NEW  40 cases: recorded now, *",
            "written: baselines/fake-gpu/test_suite.yaml",
        ]
    )
    large.baseline.unlink()
    everything = large.guard("--perfguard-update=new", "-v").stdout.str()
    told = re.findall(
        r"^perfguard: update: new: fake-gpu test_suite (\S+): .*device_time_us ", everything, re.MULTILINE
    )
    assert sorted(told) == sorted(f"double[{n}]/forward" for n in range(1, CASES + 1))
