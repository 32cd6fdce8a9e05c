"""Every kernel with the oldest Triton that pyproject.toml allows: compiled for Hopper, and its addresses.

Its compiler takes less than the newest one's, and Hopper's kernels are those that ask the most of it: one of them could
not be compiled by it for a day, and only a GPU with that Triton told.
"""

from __future__ import annotations

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
