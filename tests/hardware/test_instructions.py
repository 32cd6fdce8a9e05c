"""Counting on the host: a counter of the kernel's own stands for the processor's, which few virtual machines have."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from perfguard.hardware import instructions
from perfguard.hardware.cpu import CpuDevice
from perfguard.hardware.fake import FakeDevice
from perfguard.metrics import host_instructions
from perfguard.metrics.subject import Subject

TASK_CLOCK = (1, 1)  # type software, ns that the thread ran: also where there are no hardware counters


@pytest.fixture
def clock() -> Iterator[Callable[[list[int]], instructions.Counters]]:
    opened = []

    def make(threads: list[int]) -> instructions.Counters:
        try:
            opened.append(instructions.Counters(threads, TASK_CLOCK))
        except OSError as error:
            pytest.skip(f"this kernel counts nothing for its users: {error}")
        return opened[-1]

    yield make
    for counters in opened:
        counters.close()


def burn(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_only_what_the_call_does_counts(clock: Any) -> None:
    counters = clock([0])
    burn(0.02)
    few, many = counters.count(lambda: None), counters.count(lambda: burn(0.02))
    assert few < 0.01e9
    assert 0.019e9 < many < 0.2e9


def test_threads_that_were_there_count(clock: Any) -> None:
    go, done = threading.Event(), threading.Event()

    def work() -> None:
        go.wait()
        burn(0.02)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    assert thread.native_id in instructions.threads_of_this_process()
    alone, both = clock([0]), clock(instructions.threads_of_this_process())

    def call() -> None:
        go.set()
        done.wait()

    counted = []
    assert alone.count(lambda: counted.append(both.count(call))) < 0.015e9
    assert counted[0] > 0.019e9
    thread.join()


def test_a_machine_that_allows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instructions.platform, "machine", lambda: "riscv128")
    with pytest.raises(OSError, match="no performance counters known here"):
        instructions.Counters([0])
    monkeypatch.setattr(instructions, "available", lambda: False)
    assert host_instructions.read(Subject(run=lambda: None), CpuDevice()) == []


class Counted:
    """Counters that say what the test wants; None is a count that others disturbed."""

    def __init__(self, counts: list[int | None]) -> None:
        self.counts = iter(counts)
        self.threads = torch.get_num_threads()

    def __call__(self, threads: list[int]) -> Counted:
        self.opened = threads
        return self

    def count(self, call: Callable[[], object]) -> int | None:
        call()
        self.threads = torch.get_num_threads()
        return next(self.counts)

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(("counts", "value"), [([300, None, 100, 200] + [150] * 6, [100]), ([None] * 10, [])])
def test_the_cheapest_call_counts(counts: list[int | None], value: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(counts)
    monkeypatch.setattr(instructions, "available", lambda: True)
    monkeypatch.setattr(instructions, "Counters", counted)
    monkeypatch.setattr(host_instructions, "_MOST_US", 1e12)
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)  # not 1, however many this process has
    try:
        found = host_instructions.read(Subject(run=lambda: None), CpuDevice())
        after = torch.get_num_threads()
    finally:
        torch.set_num_threads(before)
    assert [reading.value for reading in found] == value
    assert (counted.threads, after, counted.opened, counted.closed) == (1, before + 1, [0], True)
    assert host_instructions.read(Subject(run=lambda: None, timed=False), CpuDevice()) == []


def test_on_a_device_with_a_queue_all_threads_count(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted([5] * 10)
    monkeypatch.setattr(instructions, "available", lambda: True)
    monkeypatch.setattr(instructions, "Counters", counted)
    (reading,) = host_instructions.read(Subject(run=lambda: None), FakeDevice(seed=1))
    assert counted.opened == instructions.threads_of_this_process()
    assert (reading.details, reading.drifts, reading.tolerance, reading.floor) == ("host_time_us", True, 0.25, 50_000)
