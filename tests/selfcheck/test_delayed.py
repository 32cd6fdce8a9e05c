"""The kernel that is made slower: its numerics, its tuning, and its judgement."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from perfguard.measure.devices import fake
from perfguard.measure.devices.fake import FakeDevice
from perfguard.model.atomic_files import write_atomically
from perfguard.model.errors import DeviceError, UsageError
from perfguard.model.records import Case, CaseResult, Reading, Report
from perfguard.selfcheck.delayed import __main__ as delayed_main
from perfguard.selfcheck.delayed.__main__ import Bench
from perfguard.selfcheck.delayed.call import delayed, expected, inputs
from perfguard.selfcheck.delayed.plan import PLAN, Delay, read_plan
from perfguard.selfcheck.delayed.tuning import Chain, alternate, calibrate, tune, tune_length, tune_tail
from perfguard.selfcheck.injection import judge_injected
from perfguard.store.report_file import save_report
from tests.selfcheck.simulated import simulated_sessions

INTERPRETED = """
import torch
from perfguard.selfcheck.delayed.call import expected, inputs
from perfguard.selfcheck.delayed.kernel import launch
x = inputs(torch.device("cpu"))[:300]
for steps, tail in [(0, 0), (1, 0), (0, 1), (3, 2), (1, 16), (30, 10)]:
    torch.testing.assert_close(launch(x, steps, tail), expected(x, steps, tail), rtol=0, atol=0)
"""


def test_the_kernel_computes_its_chain_in_tritons_interpreter() -> None:
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    subprocess.run([sys.executable, "-c", INTERPRETED], check=True, env=environment)


def test_a_cpu_has_nothing_to_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake, "_current", None)
    with pytest.raises(DeviceError, match="needs a GPU"):
        delayed(torch.ones(4), 1, 0)


def test_the_simulated_kernel_has_the_same_results_and_takes_its_time() -> None:
    device = FakeDevice(session_noise=0, block_noise=0, launch_noise=0)
    x = inputs(device.torch_device)
    start, end = device.event(), device.event()
    device.sleep(1000)  # the host gets ahead
    start.record()
    out = delayed(x, 1000, 500)
    end.record()
    device.synchronize()
    assert torch.equal(out, expected(x, 1000, 500))
    assert torch.equal(out, x)  # a long chain ends at x
    assert start.elapsed_us(end) == pytest.approx(2 + 0.002 * 1500)


def simulated_block(noise: float, empty_us: float = 1.7, link_us: float = 0.0023, seed: int = 1):  # type: ignore[no-untyped-def]
    chance = random.Random(seed)
    return lambda steps, tail: (empty_us + link_us * (steps + tail)) * chance.gauss(1, noise)


@given(st.floats(0.5, 5), st.floats(1e-4, 0.01), st.sampled_from([3.0, 30.0, 1000.0, 10_000.0]))
def test_lengths_are_met(empty_us: float, link_us: float, length_us: float) -> None:
    block = simulated_block(0.0, empty_us, link_us)
    steps, now_us = tune_length(block, calibrate(block), length_us)
    assert now_us == block(steps, 0)
    assert steps == 0 if length_us < empty_us else abs(now_us / length_us - 1) < 0.05


def test_a_chain_is_the_line_through_two_lengths() -> None:
    chain = calibrate(simulated_block(0.0, empty_us=1.7, link_us=0.0023))
    assert (chain.empty_us, chain.link_us) == pytest.approx((1.7, 0.0023))
    assert [chain.steps(us) for us in (1.0, 1.7, 4.0, 24.7)] == [0, 0, 1_000, 10_000]


def test_a_length_off_the_line_is_corrected_once() -> None:
    """Short chains of which the first 200 links cost nothing, as where a launch takes longer than they do."""
    asked = []

    def block(steps: int, tail: int) -> float:
        asked.append(steps)
        return 2.0 + 0.002 * max(0, steps - 200)

    steps, now_us = tune_length(block, Chain(2.0, 0.002), 3.0)
    assert asked == [500, 700]
    assert (steps, now_us) == (700, 3.0)


@pytest.mark.parametrize("cost", [0.3, 1.0, 2.5])
def test_a_tail_off_the_line_is_corrected_once(cost: float) -> None:
    noise = simulated_block(0.0005, empty_us=1.0, link_us=0.0)
    asked = []

    def block(steps: int, tail: int) -> float:
        asked.append(tail)
        return (100 + 0.01 * cost * tail) * noise(0, 0)

    found = tune_tail(block, Delay(100.0, 0.05, 1_000), call_links=10_000)
    assert len({tail for tail in asked if tail}) == (1 if cost == 1.0 else 2)
    assert found.tail == pytest.approx(500 / cost, rel=0.05)
    truth = 1e-4 * cost * found.tail
    assert found.slowdown == pytest.approx(truth, abs=4 * found.error)
    assert 0 < found.error < 0.002


def test_tuning_prepares_few_calls() -> None:
    """Each is warmed up and captured: one for each delay, and one more only where it is corrected."""
    lengths, aims = [3.0, 100.0, 10_000.0], [0.0, 0.01, 0.02, 0.1]
    asked = []

    def block(steps: int, tail: int) -> float:
        asked.append((steps, tail))
        return simulated_block(0.0)(steps, tail)

    tune(block, lengths, aims)
    assert len(set(asked)) <= 2 + len(lengths) * len(aims)


def test_delays_are_what_was_aimed_at_and_verified_with_an_honest_error() -> None:
    delays = tune(simulated_block(0.002), [3.0, 1000.0], [0.0, 0.01, 0.03, 0.1])
    assert [delay.name for delay in delays[:3]] == ["3us-0pct", "3us-1pct", "3us-3pct"]
    exact = simulated_block(0.0)
    for delay in delays:
        truth = exact(delay.steps, delay.tail) / exact(delay.steps, 0) - 1
        assert truth == pytest.approx(delay.aimed, abs=max(0.002, 0.15 * delay.aimed))
        assert abs(truth - delay.slowdown) <= 4 * delay.error
        assert delay.aimed == 0 or 0 < delay.error < 0.002


def test_alternation_cancels_drift() -> None:
    calls = iter(range(10_000))
    drifting = lambda steps, tail: 100.0 * (1.0 + 0.02 * (tail > 0)) * 1.001 ** next(calls)  # noqa: E731
    slowdown, error = alternate(drifting, (0, 0), (0, 1), 6)
    assert slowdown == pytest.approx(0.02, abs=1e-9)
    assert error == pytest.approx(0, abs=1e-9)


def test_the_bench_times_the_call_on_a_device() -> None:
    device = FakeDevice(session_noise=0, block_noise=0, launch_noise=0)
    bench = Bench(device)
    assert bench.block(50_000, 0) == pytest.approx(102, rel=0.02)
    slowdown, _ = alternate(bench.block, (50_000, 0), (50_000, 1_530), 2)
    assert slowdown == pytest.approx(0.03, rel=0.05)


def test_the_tuner_s_process_settles_as_those_that_measure_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settled = []

    def tuned(block: object, lengths_us: object, aims: object) -> list[Delay]:
        device = fake.current()
        settled.append(device is not None and device.settled)
        return []

    monkeypatch.setattr(delayed_main, "tune", tuned)
    monkeypatch.setattr(delayed_main.Bench, "preheat", lambda bench: None)
    assert delayed_main.main(tmp_path, "fake") == 0
    assert settled == [True]


def delayed_report(report: Report, plan: list[Delay], case: int = 0) -> Report:
    """A session of the delays: each the simulated time of its length, made slower as planned."""
    results = []
    for delay in plan:
        plain = next(reading for reading in report.results[case].readings if reading.timed)
        if delay.aimed == plan[-1].aimed:
            case += 1
        blocks = [block * (1 + delay.slowdown) for block in plain.blocks]
        reading = Reading(plain.metric, plain.unit, blocks[2], timer=plain.timer, blocks=blocks)
        name = Case("delayed", f"delayed[{delay.name}]", "forward")
        results.append(CaseResult(name, inputs=f"links {delay.tail}", readings=[reading]))
    return msgspec.structs.replace(report, results=results)


def test_a_delayed_kernel_is_judged_as_a_change_of_the_one_without(tmp_path: Path) -> None:
    lengths = [3.0, 10.0, 30.0, 100.0, 300.0, 1000.0]
    plan = [Delay(us, aimed, 1, 1, aimed, 1e-4) for us in lengths for aimed in (0.0, 0.03, 0.1)]
    write_atomically(tmp_path / PLAN, msgspec.json.encode(plan))
    reports = simulated_sessions(13, len(lengths) + 1, noise=0.0012)
    for number, report in enumerate(reports[:9], 1):
        save_report(tmp_path / f"session-{number:02d}.json", delayed_report(report, plan))
    assert judge_injected(tmp_path) == []  # three pairs need nine sessions beside the pilot
    for number, report in enumerate(reports[9:], 10):
        save_report(tmp_path / f"session-{number:02d}.json", delayed_report(report, plan))
    found = judge_injected(tmp_path)
    assert len(found) == len(plan)
    for one in found:
        assert one.found.trials == 12  # without the pilot
        assert one.found.value == (1.0 if one.aimed else 0.0)
        assert one.found.high - one.found.low > 0.9  # twelve sessions hold little more than one run of three pairs
        assert 0.01 < one.smallest < 0.02
        assert one.pairs >= (3 if one.aimed else 2)


def test_a_plan_is_read_or_refused(tmp_path: Path) -> None:
    assert read_plan(tmp_path) == []
    (tmp_path / PLAN).write_text('[{"length_us": "long"}]')
    with pytest.raises(UsageError, match=r"plan.json: no plan of delays \(.*remove it and run perfguard selfcheck"):
        read_plan(tmp_path)
