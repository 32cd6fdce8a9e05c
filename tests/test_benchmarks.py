"""The programs in benchmarks/ still find what they measure: they run by hand, rarely, and on lent machines."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.nursery import Nursery

ROOT = Path(__file__).parents[1]
PROGRAM = """
import importlib, pkgutil, benchmarks
for module in pkgutil.walk_packages(benchmarks.__path__, "benchmarks."):
    if ".test_" not in module.name and not module.name.endswith("__main__"):
        importlib.import_module(module.name)
from benchmarks import screen
assert len(screen.follow([])) > 5
"""


def test_every_benchmark_finds_what_it_measures(interpreting: Nursery) -> None:
    line = [interpreting.python, "-c", PROGRAM]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
