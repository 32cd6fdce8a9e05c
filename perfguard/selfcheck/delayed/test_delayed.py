"""The delays as an ordinary guarded suite: pytest -c FOLDER/pyproject.toml --rootdir FOLDER <this file> --perfguard

FOLDER holds the plan written by `python -m perfguard.selfcheck.delayed FOLDER DEVICE`.
"""

from __future__ import annotations

from typing import Any

import pytest

from perfguard.selfcheck.delayed import Delay, read_plan
from perfguard.selfcheck.delayed.call import CACHE, delayed, expected, inputs, runs_on


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each delay of the plan."""
    plan = read_plan(metafunc.config.rootpath)
    metafunc.parametrize("delay", plan, ids=[delay.name for delay in plan])


def test_delayed(perfguard: Any, delay: Delay) -> None:
    """Guard the call with this delay."""
    if not runs_on(perfguard.device):
        perfguard.unsupported("selfcheck's kernel needs a GPU")
    x = inputs(perfguard.device)
    perfguard(delayed, x, delay.steps, delay.tail, reference=expected, cache=CACHE)
