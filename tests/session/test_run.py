"""A run's own bookkeeping: what is judged before its tests end, what after them, and what a cut leaves open."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from perfguard.judge.case_verdicts import judge_case
from perfguard.measure.devices.vendors.cpu import CpuDevice
from perfguard.model.call import Call
from perfguard.model.config import Category, Config, Settings
from perfguard.model.errors import UsageError
from perfguard.model.records import (
    Baseline,
    BaseTree,
    Case,
    CaseBaseline,
    CaseResult,
    PairedCase,
    PairedTime,
    Pairing,
    PairReading,
    Reading,
    Report,
    TimedEntry,
    Verdict,
    Word,
)
from perfguard.model.units import Unit
from perfguard.session.child import ANSWER, ChildCommand, Request, read_request, write_request
from perfguard.session.open_run import lost_suites, open_run
from perfguard.session.run import Collected, Run
from perfguard.session.settle import settle
from perfguard.store.baseline_files import Store
from perfguard.store.baseline_form import render
from perfguard.store.report_file import read_report
from perfguard.testing.fake import FakeDevice


def run_of(tmp_path: Path, **settings: object) -> Run:
    config = Config(root=tmp_path, settings=msgspec.convert(settings, Settings), measure=True)
    return open_run(config, FakeDevice(seed=1), ["suite"])


def result(name: str, us: float = 50.0) -> CaseResult:
    case = Case("suite", name, "forward", f"test_suite.py::test_{name}")
    launches = Reading("launches", Unit.COUNT, 1)
    return CaseResult(case, readings=[launches, Reading("device_time_us", Unit.MICROSECONDS, us, timer="graph-u1")])


def test_a_doubt_convicts_here_and_is_an_answer_where_a_base_is_asked(tmp_path: Path) -> None:
    call = Call(lambda x: x * (3.0 if x.abs().amax() > 500 else 2.0), (torch.ones(4, 8),), lambda x: x * 2.0)
    case = result("double").case
    (found,) = run_of(tmp_path, case_seconds=0.05, extra_seconds=20.0).guard(call, case)
    (doubt,) = found.doubts
    (accused,) = [verdict for verdict in found.verdicts if verdict.word.fails]  # its test reports it
    assert accused.word is Word.WRONG
    assert accused.reason.startswith(f"{doubt.problem}\nno base was asked: {tmp_path}: not in a git repository")
    folder = tmp_path / "session"
    folder.mkdir()
    write_request(folder, Request(doubts={"suite": {"double": [doubt]}}))
    config = Config(root=tmp_path, session_folder=folder, settings=Settings(case_seconds=0.05))
    for right in (True, False):
        base = open_run(config, FakeDevice(seed=1), ["suite"], request=read_request(folder))
        base.guard(dataclasses.replace(call, fn=lambda x: x * 2.0) if right else call, case)
        (answered,) = read_report(folder / ANSWER).results
        assert [(each.name, each.problem == "") for each in answered.doubts] == [(doubt.name, right)]
        assert answered.verdicts == []


def paired(change: float, pairs: int) -> PairedTime:
    """As many process pairs, in each of which the working tree took e^change times as long."""
    noise = (0.001, -0.001, 0.0)
    readings = [
        PairReading(number + 1, change + noise[number % 3], -noise[number % 3], 50.0, 50.0 * math.exp(change))
        for number in range(pairs)
    ]
    return PairedTime("device_time_us", "graph-u1", readings)


def with_base(run: Run) -> Run:
    """A run whose working tree has changed since its base."""
    run.lane = dataclasses.replace(run.lane, base=BaseTree("0" * 40))
    return run


def words(run: Run, name: str) -> dict[str, Word]:
    return {verdict.metric: verdict.word for verdict in run.results["suite", f"{name}/forward"].verdicts}


def test_a_time_is_in_question_until_process_pairs_have_told(tmp_path: Path) -> None:
    run = with_base(run_of(tmp_path))
    for name in ("slow", "fine", "fast", "left"):
        assert {verdict.word for verdict in run.take(result(name)).verdicts} == {Word.SUSPECT}
    times = {"slow": 0.2, "fine": 0.0, "fast": -0.2}
    cases = [PairedCase("suite", f"{name}/forward", times=[paired(change, 4)]) for name, change in times.items()]
    run.pairings = [Pairing("0" * 40, cases, 4, "the time was over")]
    run.judge("not this")  # what pairs have read is kept
    assert {name: words(run, name)["device_time_us"] for name in ("slow", "fine", "fast")} == {
        "slow": Word.SLOWER, "fine": Word.PASS, "fast": Word.FASTER,
    }  # fmt: skip
    (left,) = [each for each in run.results["suite", "left/forward"].verdicts if each.metric == "device_time_us"]
    # No pair read it: that is said although nothing is recorded either.
    assert (left.word, left.reason) == (Word.UNRESOLVED, "UNPAIRED: the time was over")


@pytest.mark.parametrize("update", [None, frozenset({"new"})], ids=["guarded", "recorded"])
def test_a_case_is_judged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, update: frozenset[Category] | None
) -> None:
    """By its record, after the last test. Until then its report says that it is not judged."""
    judged: list[str] = []

    def counting(result: CaseResult, *rest: Any) -> list[Verdict]:
        judged.append(result.case.name)
        return judge_case(result, *rest)

    monkeypatch.setattr("perfguard.judge.run_verdicts.judge_case", counting)
    monkeypatch.setattr("perfguard.session.settle.measure_fresh", lambda *_, **__: ([], ""))
    run = open_run(Config(root=tmp_path, measure=True, update=update), FakeDevice(seed=1), ["suite"])
    for name in ("one", "other"):
        (unjudged,) = run.take(result(name)).verdicts
        assert unjudged.reason == "the run ended before the case was judged"
    assert judged == []
    settle(run, ChildCommand((), tmp_path), lambda *_, **__: None)
    run.finish(Collected(), {}, lambda _: None)
    assert sorted(judged) == ["one", "other"]
    assert words(run, "one")["launches"] is Word.NEW


def test_what_its_test_could_not_know_is_told_late(tmp_path: Path) -> None:
    """A metric that only waits for its record is none of it, not even under `strict`."""
    run = with_base(run_of(tmp_path, strict=True))
    for name in ("slow", "fine"):
        assert {verdict.word for verdict in run.failing(run.take(result(name)))} == {Word.SUSPECT}
    cases = [PairedCase("suite", f"{name}/forward", times=[paired(at, 4)]) for name, at in [("slow", 0.2), ("fine", 0)]]
    run.pairings = [Pairing("0" * 40, cases, 4)]
    run.judge()
    late = {name: run.judged_late(run.results["suite", f"{name}/forward"]) for name in ("slow", "fine")}
    told = {name: found and [(each.word, each.metric) for each in found.verdicts] for name, found in late.items()}
    assert told == {"slow": [(Word.SLOWER, "device_time_us")], "fine": None}


def test_a_result_knows_its_device(tmp_path: Path) -> None:
    """Beside it lie the fresh processes of the same device, by the same number."""
    run = open_run(Config(root=tmp_path, measure=True), FakeDevice(seed=1, index=1), ["suite"])
    assert run.take(result("a")).device == run.device.identity.index == 1


def test_a_lane_of_any_cpu_reads_nothing_of_this_one(tmp_path: Path) -> None:
    """Nor does it ask for what is remembered of this very processor."""
    device = CpuDevice()
    key, inputs = "double/forward", "float32[64]"
    held = {device.identity.slug: TimedEntry([5.0] * 5, "wall-u1"), "cpu": 1}
    for folder, entry in held.items():
        metric = "device_time_us" if isinstance(entry, TimedEntry) else "operators"
        baseline = Baseline(folder, "suite", cases={key: CaseBaseline({metric: entry}, inputs)})
        path = tmp_path / "baselines" / folder / "suite.yaml"
        path.parent.mkdir(parents=True)
        path.write_text(render(baseline))
    call = Call(lambda x: x * 2, (torch.ones(64),), lambda x: 2 * x)
    case = Case("suite", "double", "forward", "test_suite.py::test_double")
    found_words = {}
    for lane in ("cpu", device.identity.slug):
        config = Config(root=tmp_path, settings=Settings(targets=(), case_seconds=0.01), measure=True, lane=lane)
        run = open_run(config, device, ["suite"])
        (found,) = run.guard(call, case)
        run.judge()
        found_words[lane] = words(run, "double")
        assert run.report.exact_only is (lane == "cpu")
        assert run.report.lane == lane
        assert all(reading.portable for reading in found.readings) is (lane == "cpu")
    assert found_words["cpu"]["operators"] is Word.PASS
    assert {"device_time_us", "peak_memory_bytes"}.isdisjoint(found_words["cpu"])
    assert {"device_time_us", "peak_memory_bytes"} <= set(found_words[device.identity.slug])


@pytest.mark.parametrize("lane", ["cpu", "nvidia-h200"])
def test_a_run_is_no_lane_of_other_hardware(tmp_path: Path, lane: str) -> None:
    with pytest.raises(UsageError, match=rf"--perfguard-lane={lane}: this run is on fake-gpu; look at the runner"):
        open_run(Config(root=tmp_path, measure=True, lane=lane), FakeDevice(seed=1), ["suite"])


def test_a_long_report_is_not_written_anew_after_every_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """2,000 cases, each of which makes the report 0.1 ms dearer to write; a case itself takes 20 ms."""
    now, writing = 0.0, 0.0

    def save(path: Path, report: Report) -> None:
        nonlocal now, writing
        now += 1e-4 * len(report.results)
        writing += 1e-4 * len(report.results)

    monkeypatch.setattr("perfguard.session.run.save_report", save)
    monkeypatch.setattr("perfguard.session.run.time.monotonic", lambda: now)
    run = run_of(tmp_path)
    for number in range(2_000):
        now += 0.02
        run.take(result(str(number)))
    assert writing < 0.15 * now
    assert writing > 1.0  # it is written, though


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
