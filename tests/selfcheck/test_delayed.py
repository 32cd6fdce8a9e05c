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
from perfguard.model.errors import DeviceError, UsageError
from perfguard.model.records import Case, CaseResult, Report
from perfguard.selfcheck.delayed import AIMS, LENGTHS_US, PLAN, Delay, read_plan
from perfguard.selfcheck.delayed.__main__ import block_on, main, slowdown, tune
from perfguard.selfcheck.delayed.call import delayed, expected, inputs
from perfguard.selfcheck.planting import judge_planted
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


def test_the_call_is_timed_on_a_device() -> None:
    device = FakeDevice(session_noise=0, block_noise=0, launch_noise=0)
    x = inputs(device.torch_device)
    assert torch.equal(delayed(x, 1000, 500), expected(x, 1000, 500))
    assert torch.equal(delayed(x, 1000, 500), x)  # a long chain ends at x
    block = block_on(device)
    assert block(50_000, 0) == pytest.approx(102, rel=0.02)
    assert slowdown(block, 50_000, 1_530) == pytest.approx(0.03, rel=0.05)


def test_alternation_cancels_drift() -> None:
    calls = iter(range(10_000))
    assert slowdown(lambda _, tail: (1.0 + 0.02 * (tail > 0)) * 1.001 ** next(calls), 0, 1) == pytest.approx(0.02)


@given(
    st.floats(0.5, 5),
    st.floats(1e-4, 0.01),
    st.sampled_from([3.0, 30.0, 1000.0, 10_000.0]),
    st.sampled_from([0.5, 1.0, 2.0]),
)
def test_lengths_and_slowdowns_are_met(empty_us: float, link_us: float, length_us: float, cost: float) -> None:
    """Also where the links of a tail cost more or less than those of the chain."""
    chance = random.Random(1)
    asked: set[tuple[int, int]] = set()

    def block(steps: int, tail: int) -> float:
        asked.add((steps, tail))
        return (empty_us + link_us * (steps + cost * tail)) * chance.gauss(1, 0.0005)

    aims = [0.0, 0.01, 0.03, 0.1]
    delays = tune(block, [length_us], aims)
    assert [delay.aimed for delay in delays] == aims
    assert delays[2].name == f"{length_us:g}us-3pct"
    assert len(asked) <= 2 + len(aims)  # each is warmed up and captured
    for delay in delays:
        alone_us = empty_us + link_us * delay.steps
        assert delay.steps == 0 if length_us < empty_us else alone_us == pytest.approx(length_us, rel=0.05)
        true = link_us * cost * delay.tail / alone_us
        assert true == pytest.approx(delay.aimed, rel=0.1, abs=link_us * cost / alone_us)


def test_the_tuner_s_process_settles_as_those_that_measure_do_and_writes_the_plan(tmp_path: Path) -> None:
    main(tmp_path, "fake")
    device = fake.current()
    assert device is not None
    assert device.settled
    plan = read_plan(tmp_path)
    assert [(delay.length_us, delay.aimed) for delay in plan] == [(us, aimed) for us in LENGTHS_US for aimed in AIMS]
    for delay in plan:  # 2 µs and 2 ns a link
        assert delay.tail / (delay.steps + 1000) == pytest.approx(delay.aimed, abs=0.003)


def delayed_report(report: Report, plan: list[Delay]) -> Report:
    """A session of the delays: each the simulated time of its length, made slower as planned."""
    lengths = list(dict.fromkeys(delay.length_us for delay in plan))
    results = []
    for delay in plan:
        time = report.results[lengths.index(delay.length_us)].readings[1]
        assert isinstance(time.value, float)
        slower = msgspec.structs.replace(time, value=time.value * (1 + delay.aimed))
        name = Case("delayed", f"delayed[{delay.name}]", "forward")
        results.append(CaseResult(name, inputs=f"links {delay.tail}", readings=[slower]))
    return msgspec.structs.replace(report, results=results)


def test_a_delayed_kernel_is_judged_as_a_change_of_the_one_without(tmp_path: Path) -> None:
    lengths = [3.0, 10.0, 30.0, 100.0, 300.0, 1000.0]
    plan = [Delay(us, aimed, 1, 1) for us in lengths for aimed in (0.0, 0.03, 0.1)]
    (tmp_path / PLAN).write_bytes(msgspec.json.encode(plan))
    for number, report in enumerate(simulated_sessions(13, len(lengths), noise=0.0012), 1):
        if number == 10:
            assert judge_planted(tmp_path, 20)[0] == []  # three pairs need nine sessions beside the pilot
        save_report(tmp_path / f"session-{number:02d}.json", delayed_report(report, plan))
    planted, at_promise = judge_planted(tmp_path, 20)
    assert [(one.length_us, one.aimed) for one in planted] == [(delay.length_us, delay.aimed) for delay in plan]
    assert (at_promise.hits, at_promise.trials) == (120, 120)
    for one in planted:
        assert (one.found.value, one.found.trials) == (1.0 if one.aimed else 0.0, 20)
        assert one.slowdown == pytest.approx(one.aimed, abs=1e-9)
        assert one.error < 1e-9  # base and delay have the same noise here
        assert one.pairs >= (3 if one.aimed else 2)


def test_a_plan_is_read_or_refused(tmp_path: Path) -> None:
    assert read_plan(tmp_path) == []
    (tmp_path / PLAN).write_text('[{"length_us": "long"}]')
    with pytest.raises(UsageError, match=r"plan.json: no plan of delays \(.*remove it and run perfguard selfcheck"):
        read_plan(tmp_path)
