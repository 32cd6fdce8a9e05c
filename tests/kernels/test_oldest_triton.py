"""Every kernel with the oldest Triton that pyproject.toml allows: compiled for Hopper, its addresses, its interpreter.

Its compiler takes less than the newest one's, and Hopper's kernels are those that ask the most of it: one of them could
not be compiled by it for a day, and only a GPU with that Triton told.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from tests.kernels import elsewhere

ROOT = Path(__file__).parents[2]
OLDEST = ROOT / ".venv" / "oldest-triton"


pytestmark = pytest.mark.skipif(
    not OLDEST.is_dir(), reason="scripts/setup puts the oldest Triton into a .venv that it makes itself"
)


def test_all_kernels_compile() -> None:
    asked = subprocess.run(
        [sys.executable, ROOT / "scripts" / "versions", "--list", "oldest"], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    (there,) = (each.version for each in metadata.distributions(path=[str(OLDEST)]) if each.name == "triton")
    assert any(line.startswith(f"triton=={there.rpartition('.')[0]}.*") for line in asked)
    compiled = elsewhere.compiled_by(OLDEST, "targets", "every", "sm_90")
    assert {"quantize_ring", "multiply_rows", "multiply_groups"} <= {each["kernel"] for each in compiled}


@pytest.mark.nightly
def test_no_address_wraps() -> None:
    """Nor in what its compiler makes of the same lines."""
    launches = elsewhere.compiled_by(OLDEST, "addresses")
    assert launches
    assert {(*line, one["case"]) for one in launches for line in one["wraps"]} == set()


def test_its_interpreter() -> None:
    """Its descriptors and its rewriter differ from those of later ones."""
    asked = """
from perfguard.interpreter.entry import interpreting
from tests.interpreter.table import OPERATIONS, cell
import torch
with interpreting():
    for name in OPERATIONS:
        print(name, *sorted({cell(name, dtype) for dtype in (torch.float32, torch.bfloat16, torch.int32)} - {"–"}))
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(OLDEST), str(ROOT))), "TRITON_INTERPRET": "1"}
    table = subprocess.run([sys.executable, "-c", asked], check=True, capture_output=True, text=True, env=env)
    rows = table.stdout.splitlines()
    assert rows
    assert [row for row in rows if not row.endswith(" right")] == []
    suite = ROOT / "tests" / "kernels" / "test_grouped_mm_guarded.py"
    line = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-k",
        "descriptors and interpreted",
        str(suite),
    ]
    done = subprocess.run(line, check=False, capture_output=True, text=True, env=env, cwd=ROOT)
    assert re.search(r"^[1-9]\d* passed, ", done.stdout.splitlines()[-1]), done.stdout
