"""What docs/reference.md says of `perfguard.testing`, run as it is written."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.nursery import Nursery

ROOT = Path(__file__).parents[2]


def test_the_page_s_example_passes_and_its_time_is_recorded(tmp_path: Path, nursery: Nursery) -> None:
    page = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    found = re.search(r"## Testing them\n.*?```python\n(.*?)```", page, re.DOTALL)
    assert found is not None
    (tmp_path / "test_double.py").write_text(found[1])
    (tmp_path / "pyproject.toml").write_text("[tool.perfguard]\ncase_seconds = 0.01\n")
    line = [nursery.python, "-m", "pytest", "--perfguard", "--perfguard-device", "fake", "--perfguard-update=new"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "2 passed" in done.stdout, f"{done.stdout}\n{done.stderr}"
    (stored,) = (tmp_path / "baselines" / "fake-gpu").glob("*.yaml")
    times = re.findall(r"device_time_us: .*sessions: \[([\d.]+)", stored.read_text())
    assert [float(us) for us in times] == [pytest.approx(10.0, rel=0.03)]
