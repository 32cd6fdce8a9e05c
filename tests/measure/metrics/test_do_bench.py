"""do_bench is read for selfcheck alone, on a real GPU alone, and gates nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from perfguard.measure.devices.fake import FakeDevice
from perfguard.measure.metrics import all_metrics, do_bench
from perfguard.measure.metrics.subject import Subject


class Gpu(FakeDevice):
    """A simulated GPU that says it is a real one."""

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cuda")


def run() -> None:
    """Nothing to do."""


def test_the_median_in_microseconds_and_never_gated(monkeypatch: pytest.MonkeyPatch) -> None:
    testing = pytest.importorskip("triton.testing")
    calls: list[dict[str, Any]] = []

    def answer(fn: object, **options: Any) -> float:
        assert fn is run
        calls.append(options)
        return 0.0625  # ms

    monkeypatch.setattr(testing, "do_bench", answer)
    subject = Subject(run, rivals=True)
    (reading,) = do_bench.read(subject, Gpu())
    assert (reading.metric, reading.value, reading.unit) == ("do_bench_us", 62.5, "us")
    assert not reading.timed
    assert not reading.gated
    assert calls == [{"return_mode": "median"}]
    assert do_bench.read(replace(subject, rivals=False), Gpu()) == []
    assert do_bench.read(replace(subject, timed=False), Gpu()) == []
    assert do_bench.read(subject, FakeDevice()) == []  # its events would come from the real driver
    assert len(calls) == 1


def test_it_comes_after_what_counts() -> None:
    metrics = all_metrics()
    assert do_bench in metrics
    assert all(metric.TIMED for metric in metrics[metrics.index(do_bench) :])
