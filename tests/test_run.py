"""A run's own bookkeeping: tests whose verdict began to fail after they had passed."""

from __future__ import annotations

from pathlib import Path

import msgspec

from perfguard.config import Config, Settings
from perfguard.hardware.fake import FakeDevice
from perfguard.records import Case, CaseResult, Reading, Verdict, Word
from perfguard.run import Run, open_run
from perfguard.units import Unit


def run_of(tmp_path: Path, **settings: object) -> Run:
    config = Config(root=tmp_path, settings=msgspec.convert(settings, Settings), measure=True)
    return open_run(config, FakeDevice(seed=1), ["suite"], "0")


def result(name: str) -> CaseResult:
    case = Case("suite", name, "forward", f"test_suite.py::test_{name}")
    return CaseResult(case, readings=[Reading("launches", Unit.COUNT, 1)])


def turn(run: Run, taken: CaseResult, word: Word) -> None:
    """What judging at the end may make of a case."""
    verdicts = [Verdict(word, "launches")]
    run.results[taken.case.suite, taken.case.key] = msgspec.structs.replace(taken, verdicts=verdicts)


def test_what_fails_after_its_test_had_passed_is_late(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    slow, fine = (run.take(result(name)) for name in ("slow", "fine"))
    assert run.late == []
    turn(run, slow, Word.SLOWER)
    turn(run, fine, Word.UNRESOLVED)
    assert run.late == [slow.case.nodeid]


def test_a_test_that_failed_at_once_is_not_late(tmp_path: Path) -> None:
    run = run_of(tmp_path, strict=True)
    new = run.take(result("new"))  # NEW fails under strict
    turn(run, new, Word.SLOWER)
    assert run.late == []


def test_a_result_knows_its_device(tmp_path: Path) -> None:
    """Beside it lie the fresh processes of the same device, by the same number."""
    run = open_run(Config(root=tmp_path, measure=True), FakeDevice(seed=1, index=1), ["suite"], "0")
    assert run.take(result("a")).device == run.device.identity.index == 1
