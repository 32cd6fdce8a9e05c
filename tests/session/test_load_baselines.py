"""Suites that are remembered though no file can be theirs any more."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfguard.measure.devices.fake import FakeDevice
from perfguard.session.load_baselines import lost_suites
from perfguard.store.baseline_files import Store


@pytest.mark.parametrize(
    ("file", "lost"),
    [
        ("tests/kernels/test_norm.py", []),
        ("kernels/test_norm.py", ["kernels.norm"]),  # another file, which has another suite
        ("tests/kernels/test_renamed.py", ["kernels.norm"]),
        ("tests/test_norm.py", ["kernels.norm"]),
        (None, ["kernels.norm"]),
    ],
)
def test_a_suite_without_a_file_is_lost(tmp_path: Path, file: str | None, lost: list[str]) -> None:
    stored = tmp_path / "baselines" / "fake-gpu" / "kernels.norm.yaml"
    other = tmp_path / "baselines" / "nvidia-h200" / "elsewhere.yaml"  # of hardware that is not looked at
    for path in (stored, other, *([tmp_path / file] if file else [])):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert lost_suites(Store(tmp_path / "baselines"), FakeDevice(seed=1), tmp_path) == lost
