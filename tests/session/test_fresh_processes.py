"""Fresh processes: their answers in order; crashes and hangs are told."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import msgspec

from perfguard.session.child import ChildCommand, Request
from perfguard.session.child_process import measure_fresh, session_of
from perfguard.store.report_file import save_report
from tests.store.test_report_file import READINGS, REPORT


class Scripted(ChildCommand):
    """Runs a Python script in place of pytest; the child's folder is its only argument."""

    def line(self, folder: Path) -> list[str]:
        return [sys.executable, "-c", self.arguments[0], str(folder)]


def measure(script: str, folder: Path, minutes: float = 1.0):  # type: ignore[no-untyped-def]
    save_report(folder / "report.json", REPORT)
    prologue = "import pathlib, shutil, sys, time\nfolder = pathlib.Path(sys.argv[1])\n"
    answer = f"shutil.copy({str(folder / 'report.json')!r}, folder / 'answer.json')"
    said: list[str] = []
    script = prologue + script.replace("ANSWER", answer)
    request = Request(REPORT.hardware.slug, tests=["a", "b"])
    reports, problem = measure_fresh(Scripted((script,), folder), request, 2, minutes=minutes, progress=said.append)
    return reports, problem, said


def test_answers_are_collected_in_order(tmp_path: Path) -> None:
    reports, problem, said = measure("assert (folder / 'request.json').exists(); ANSWER", tmp_path)
    assert problem == ""
    assert said[0] == "fresh process 1 of 2: 2 tests"
    assert re.fullmatch(r"fresh process 2 of 2: 2 tests, 0:\d\d elapsed, about 0:\d\d to go", said[1])
    assert len(said) == 2
    assert len(reports) == 2
    session = session_of(reports[0].results, 0)  # what judging again needs
    assert session.device == REPORT.hardware.index
    assert [each.value for each in session.results[0].readings] == [each.value for each in READINGS]
    assert all(not reading.blocks for reading in session.results[0].readings)


def test_an_answer_of_another_device_is_refused(tmp_path: Path) -> None:
    other = msgspec.structs.replace(REPORT, hardware=msgspec.structs.replace(REPORT.hardware, slug="cpu-other"))
    save_report(tmp_path / "other.json", other)
    reports, problem, _ = measure(f"shutil.copy({str(tmp_path / 'other.json')!r}, folder / 'answer.json')", tmp_path)
    assert reports == []
    assert problem == (
        f"the fresh process measured cpu-other, this run {REPORT.hardware.slug}; name the device: --perfguard-device"
    )


def test_a_crash_keeps_what_it_measured_and_is_told(tmp_path: Path) -> None:
    reports, problem, said = measure("ANSWER; print('last words'); sys.exit(7)", tmp_path)
    assert len(reports) == 1
    assert len(said) == 1
    assert "status 7" in problem
    assert "last words" in problem


def test_a_hanging_process_is_stopped(tmp_path: Path) -> None:
    started = time.monotonic()
    _, problem, _ = measure("time.sleep(600)", tmp_path, minutes=0.02)
    assert "longer than 0.02 minutes" in problem
    assert time.monotonic() - started < 60
