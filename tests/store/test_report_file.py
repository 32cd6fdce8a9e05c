"""Reports are replaced whole or not at all, and unreadable ones are refused by name."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from perfguard.model.atomic_files import make_folder
from perfguard.model.errors import BaselineError, UsageError
from perfguard.model.records import SCHEMA, Case, CaseResult, Hardware, Reading, Report, Toolchain
from perfguard.model.units import Unit
from perfguard.store.baseline_files import Store
from perfguard.store.report_file import read_report, save_report

HARDWARE = Hardware(slug="fake-gpu", vendor="fake", name="Fake", architecture="fake_1")
CASE = Case("suite", "double[64]", "forward", "tests/test_suite.py::test_double[64]")
READINGS = [Reading("launches", Unit.COUNT, 1), Reading("device_time_us", Unit.MICROSECONDS, 5.0, timer="queue-cold")]
REPORT = Report(
    schema=SCHEMA,
    hardware=HARDWARE,
    toolchain=Toolchain(torch="2.13.0"),
    started="2026-11-21T00:00:00+00:00",
    results=[CaseResult(case=CASE, readings=READINGS)],
)


def test_what_is_saved_is_read(tmp_path: Path) -> None:
    save_report(tmp_path / "new" / "report.json", REPORT)
    assert read_report(tmp_path / "new" / "report.json") == REPORT


def test_a_folder_that_we_make_is_ignored_by_git_and_another_is_left_alone(tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "new")
    assert (tmp_path / "a" / "new" / ".gitignore").read_text() == "*\n"
    make_folder(tmp_path / "a")
    assert list((tmp_path / "a").iterdir()) == [tmp_path / "a" / "new"]


@pytest.fixture
def read_only() -> Iterator[Path]:
    """A folder in which this process can read, but cannot write. Root can always write, so it becomes another user."""
    folder = Path(tempfile.mkdtemp())
    (folder / "x").mkdir()
    for each in (folder / "x", folder):
        each.chmod(0o555)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield folder
    finally:
        if root:
            os.seteuid(0)
        folder.chmod(0o755)
        shutil.rmtree(folder)


@pytest.mark.parametrize("name", [".", "new"])
def test_a_folder_in_which_nothing_can_be_written_is_refused_before_a_run(read_only: Path, name: str) -> None:
    folder = read_only / name
    with pytest.raises(UsageError) as refused:
        make_folder(folder)
    assert str(refused.value) == (
        f"{folder}: nothing can be written there (Permission denied); mend its permissions or make room, or name "
        "another one: --perfguard-reports"
    )


@pytest.mark.parametrize("name", ["x", "new"])
def test_baselines_that_an_update_cannot_write_are_refused_before_a_run(read_only: Path, name: str) -> None:
    there = read_only / "x" if name == "x" else read_only
    with pytest.raises(BaselineError) as refused:
        Store(read_only).check_writable([name])
    assert str(refused.value) == (
        f"{there}: cannot write (Permission denied); make room or mend the permissions, then record again"
    )


def test_a_check_leaves_nothing(tmp_path: Path) -> None:
    make_folder(tmp_path)
    Store(tmp_path / "baselines").check_writable(["x", "y"])
    assert list(tmp_path.iterdir()) == []


def test_a_failing_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.json"
    save_report(path, REPORT)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(UsageError, match=r"cannot be written \(No space left on device\); make room"):
        save_report(path, REPORT)
    assert read_report(path) == REPORT
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.json"]


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"schema": 1}', b"\xff", b"[" * 100_000])
def test_no_report_is_refused_with_its_name(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=r"report.json: not a perfguard report.*pytest --perfguard"):
        read_report(path)


def test_another_schema_and_no_file(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    save_report(path, msgspec.structs.replace(REPORT, schema=SCHEMA + 1))
    with pytest.raises(UsageError, match=f"report schema {SCHEMA + 1}, this perfguard reads {SCHEMA}"):
        read_report(path)
    with pytest.raises(UsageError, match="no such report"):
        read_report(tmp_path / "none.json")
