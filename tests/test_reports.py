"""The public's reports: each has two versions of one text, and an input that tells them apart."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.reports import files
from benchmarks.reports.__main__ import line_of, tried

ROOT = Path(__file__).parents[1]
ALL = files.reports()


def test_every_fault_is_shown() -> None:
    line = [sys.executable, "-m", "benchmarks.reports", "--shows"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(ALL)} of {len(ALL)} reports" in done.stdout


def test_each_kind_has_a_report_and_each_report_a_known_kind_and_an_origin() -> None:
    number = Counter(report.kind for report in ALL)
    assert {*number} == {*files.KINDS}
    assert number["correct"] >= 5
    for report in ALL:
        assert re.fullmatch(r"handed(; as .+)?|[\w-]+/[\w.-]+#\d+", report.origin), report.id


@pytest.mark.parametrize("report", ALL, ids=lambda report: report.id)
def test_its_files_say_nothing_of_the_other_version(report: files.Report) -> None:
    good, bad = (report.files(bad=bad) for bad in (False, True))
    assert (good != bad) is report.has_two_versions
    assert report.has_two_versions or report.is_correct
    for text in (*good.values(), *bad.values()):
        ast.parse(text)
        assert not re.search("bad|benchmarks|shows", text)
    assert "perfguard" not in good["kernel.py"]
    assert "def test_" in good["test_kernel.py"]
    re.compile(report.words)


def test_a_file_without_its_form_is_named(tmp_path: Path) -> None:
    path = tmp_path / "90_x.py"
    path.write_text('"""X.\n\nkind: sizes\n"""\n')
    with pytest.raises(ValueError, match=r"90_x.py: has kind; needs kind, origin, shows and words"):
        files.read(path)
    with pytest.raises(ValueError, match="--only 99: no such report; there are 01 02"):
        files.reports(["99"])


@pytest.mark.nightly
def test_a_fault_is_caught_and_correct_code_is_not(tmp_path: Path) -> None:
    fault, correct = (tried(report, tmp_path / report.id) for report in files.reports(["46", "75"]))
    assert (fault["caught"], fault["named"], fault["accused"]) == (True, True, ""), line_of(fault)
    assert (correct["caught"], correct["accused"]) == (False, ""), line_of(correct)
