"""Every kernel compiled for Hopper with the oldest Triton that pyproject.toml allows.

Its compiler takes less than the newest one's, and Hopper's kernels are those that ask the most of it: one of them could
not be compiled by it for a day, and only a GPU with that Triton told.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.kernels.paths import VARIABLE

ROOT = Path(__file__).parents[2]
OLDEST = ROOT / ".venv" / "oldest-triton"


@pytest.mark.skipif(
    not OLDEST.is_dir(), reason="scripts/setup puts the oldest Triton into a .venv that it makes itself"
)
def test_all_kernels_compile() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    (bound,) = (each.partition(">=")[2].partition(";")[0] for each in extras["kernels"] if each.startswith("triton"))
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    environment["PYTHONPATH"] = str(OLDEST)
    python = [sys.executable, "-c", "import triton; print(triton.__version__)"]
    version = subprocess.run(python, check=True, capture_output=True, text=True, env=environment).stdout
    assert version.startswith(f"{bound}.")
    line = [sys.executable, "-m", "tests.kernels.targets", "every", "sm_90"]
    compiled = subprocess.run(line, capture_output=True, text=True, timeout=300, cwd=ROOT, env=environment, check=False)
    assert compiled.returncode == 0, compiled.stderr
    kernels = {each["kernel"] for each in map(json.loads, compiled.stdout.splitlines())}
    assert {"quantize_ring", "multiply_rows", "multiply_groups"} <= kernels
