"""Kernels with the oldest Triton that pyproject.toml allows: compiled for Hopper, and in its interpreter.

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

from tests.interpreter.table import OPERATIONS
from tests.kernels import elsewhere

ROOT = Path(__file__).parents[2]
OLDEST = ROOT / ".venv" / "oldest-triton"


pytestmark = pytest.mark.skipif(
    not OLDEST.is_dir(), reason="scripts/setup puts the oldest Triton into a .venv that it makes itself"
)


# By day each of Hopper's own kernels once: the oldest compiler failed at one of these.
HOPPER = ("colwise_per_group", "transpose_3d_atomic short", "rows fast", "groups fast", "wgrad")


@pytest.mark.parametrize("cases", [HOPPER, pytest.param((), marks=pytest.mark.nightly)], ids=["Hopper's own", "every"])
def test_kernels_compile(cases: tuple[str, ...]) -> None:
    asked = subprocess.run(
        [sys.executable, ROOT / "scripts" / "versions", "--list", "oldest"], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    (there,) = (each.version for each in metadata.distributions(path=[str(OLDEST)]) if each.name == "triton")
    assert any(line.startswith(f"triton=={there.rpartition('.')[0]}.*") for line in asked)
    compiled = elsewhere.compiled_by(OLDEST, "targets", "every", "sm_90", *cases)
    own = {each["kernel"] for each in compiled if each["gluon"]}
    assert own == {"zero_words", "quantize_ring", "quantize_panels", "multiply_rows", "multiply_groups"}


def test_its_interpreter() -> None:
    """Its descriptors and its rewriter differ from those of later ones."""
    suite = ROOT / "tests" / "kernels" / "test_grouped_mm_guarded.py"
    asked = f"""
import pytest
pytest.main(["-q", "-p", "no:cacheprovider", "-k", "descriptors and interpreted", {str(suite)!r}])
from perfguard.interpreter.entry import interpreting
from tests.interpreter.table import OPERATIONS, cell
import torch
with interpreting():
    for name in OPERATIONS:
        print(name, *sorted({{cell(name, dtype) for dtype in (torch.float32, torch.bfloat16, torch.int32)}} - {{"–"}}))
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(OLDEST), str(ROOT))), "TRITON_INTERPRET": "1"}
    line = [sys.executable, "-c", asked]
    done = subprocess.run(line, check=True, capture_output=True, text=True, env=env, cwd=ROOT).stdout.splitlines()
    assert {row.rpartition(" ")[2] for row in done[-len(OPERATIONS) :]} == {"right"}, done
    assert re.search(r"^[1-9]\d* passed, ", done[-len(OPERATIONS) - 1]), done
