"""Capturable or not, and why not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from perfguard.hardware import fake
from perfguard.hardware.fake import FakeDevice
from perfguard.metrics.capture import read
from perfguard.metrics.subject import Subject
from perfguard.records import Better


def kernel() -> None:
    fake.launch("kernel")


def waits() -> None:
    fake.launch("kernel")
    device = fake.current()
    assert device is not None
    device.synchronize()


@pytest.mark.parametrize(("run", "answer", "reason"), [(kernel, "yes", ""), (waits, "no", "stream is capturing")])
def test_answer_and_reason(run: Callable[[], object], answer: str, reason: str) -> None:
    (reading,) = read(Subject(run), FakeDevice(seed=1))
    assert (reading.metric, reading.value, reading.better, reading.gated) == ("capturable", answer, Better.SAME, True)
    assert reason in reading.note
    assert bool(reading.note) is (answer == "no")


def test_the_first_copy_is_asked_where_there_are_copies() -> None:
    """A backward pass can only be captured where its forward pass ran, so the subject's own one cannot."""
    (reading,) = read(Subject(waits, copies=lambda count: [kernel] * count), FakeDevice(seed=1))
    assert reading.value == "yes"


def test_no_reading_where_nothing_is_captured() -> None:
    class Plain(FakeDevice):
        captures = False

    assert read(Subject(kernel), Plain(seed=1)) == []
