"""A run's own bookkeeping: tests whose verdict began to fail after they had passed."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch

from perfguard.baselines.writing import render
from perfguard.call import Call
from perfguard.config import Config, Settings
from perfguard.errors import UsageError
from perfguard.hardware.cpu import CpuDevice
from perfguard.hardware.fake import FakeDevice
from perfguard.records import (
    Baseline,
    Case,
    CaseBaseline,
    CaseResult,
    Provenance,
    Reading,
    TimedEntry,
    Verdict,
    Word,
)
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


def test_a_lane_of_any_cpu_reads_nothing_of_this_one(tmp_path: Path) -> None:
    """Nor does it ask for what is remembered of this very processor."""
    device = CpuDevice()
    key, inputs = "double/forward", "float32[64]"
    held = {device.identity.slug: TimedEntry([5.0] * 5, "wall-u1"), "targets/cpu": 1}
    for folder, entry in held.items():
        metric = "device_time_us" if isinstance(entry, TimedEntry) else "operators"
        baseline = Baseline(folder, "suite", Provenance(), {key: CaseBaseline({metric: entry}, inputs)})
        path = tmp_path / "baselines" / folder / "suite.yaml"
        path.parent.mkdir(parents=True)
        path.write_text(render(baseline))
    call = Call(lambda x: x * 2, (torch.ones(64),), lambda x: 2 * x)
    case = Case("suite", "double", "forward", "test_suite.py::test_double")
    words = {}
    for lane in ("cpu", device.identity.slug):
        config = Config(root=tmp_path, settings=Settings(targets=(), case_seconds=0.01), measure=True, lane=lane)
        run = open_run(config, device, ["suite"], "0")
        (found,) = run.guard(call, case)
        words[lane] = {verdict.metric: verdict.word for verdict in found.verdicts}
        assert run.report.exact_only is (lane == "cpu")
        assert run.report.lane == lane
        assert all(reading.portable for reading in found.readings) is (lane == "cpu")
    assert words["cpu"]["operators"] is Word.PASS
    assert {"device_time_us", "peak_memory_bytes"}.isdisjoint(words["cpu"])
    assert {"device_time_us", "peak_memory_bytes"} <= set(words[device.identity.slug])


@pytest.mark.parametrize("lane", ["cpu", "nvidia-h200"])
def test_a_run_is_no_lane_of_other_hardware(tmp_path: Path, lane: str) -> None:
    with pytest.raises(UsageError, match=rf"--perfguard-lane={lane}: this run is on fake-gpu; look at the runner"):
        open_run(Config(root=tmp_path, measure=True, lane=lane), FakeDevice(seed=1), ["suite"], "0")
