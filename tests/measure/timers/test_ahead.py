"""The proof that the host was ahead, and what happens without it."""

from __future__ import annotations

import pytest

from perfguard.measure.devices import fake
from perfguard.measure.devices.fake import FakeDevice
from perfguard.measure.timers.filled_queue import FilledQueue, event_grid_us


def quiet(**options: object) -> FakeDevice:
    return FakeDevice(session_noise=0, block_noise=0, launch_noise=0, seed=1, **options)  # type: ignore[arg-type]


class StallingHost:
    """Enqueues kernels; the host stalls once for so many µs when told to."""

    def __init__(self, device: FakeDevice) -> None:
        self.device = device
        self.stalls: list[float] = []

    def __call__(self, count: int) -> int:
        if self.stalls:
            self.device.host_us += self.stalls.pop(0)
        for _ in range(count):
            fake.launch("kernel", us=1, host_us=10)
        return count


def test_batch_ahead_of_the_device() -> None:
    device = quiet()
    enqueue = StallingHost(device)
    queue = FilledQueue(device, enqueue, size=32, smallest=4)
    batch = queue.run(enqueue)
    assert batch is not None
    assert (batch.result, batch.size) == (32, 32)
    assert batch.host_us == pytest.approx(320)


def test_stalled_batch_is_dropped_and_the_sleep_doubles() -> None:
    device = quiet()
    enqueue = StallingHost(device)
    queue = FilledQueue(device, enqueue, size=32, smallest=4)
    before = queue.sleep_us
    enqueue.stalls = [5_000.0, 0.0]
    batch = queue.run(enqueue)
    assert batch is not None
    assert batch.host_us == pytest.approx(320)  # of the second batch, not of the stalled one
    assert batch.size == 32
    assert queue.sleep_us == 2 * before


def test_batch_halves_when_no_sleep_is_long_enough() -> None:
    device = quiet(queue_depth=20)
    enqueue = StallingHost(device)
    queue = FilledQueue(device, enqueue, size=32, smallest=4)
    batch = queue.run(enqueue)
    assert batch is not None
    assert batch.size == 16
    # a sleep as long as a batch of 16 needs, not the longest one that the batch of 32 was tried with
    assert queue.sleep_us == pytest.approx(2 * 16 * 10)


def test_gives_up_below_the_smallest_batch() -> None:
    device = quiet(queue_depth=3)
    enqueue = StallingHost(device)
    assert FilledQueue(device, enqueue, size=32, smallest=4).run(enqueue) is None


@pytest.mark.parametrize("sleepless", [True, False])
def test_naive_pair_reads_the_host_where_the_proof_fails(sleepless: bool) -> None:
    """What the proof protects from: the same pair, with and without the queue filled."""
    device = quiet()
    guard, start, end = device.event(), device.event(), device.event()
    if not sleepless:
        device.sleep(1000)
    guard.record()
    start.record()
    for _ in range(3):
        fake.launch("kernel", us=1, host_us=20)
    end.record()
    proven = not guard.query()
    device.synchronize()
    assert proven is not sleepless
    assert (start.elapsed_us(end) > 60) is sleepless


def test_grid_of_a_clock_without_one_is_small() -> None:
    assert 0 < event_grid_us(quiet()) < 0.02


def test_the_grid_is_probed_once_for_each_device() -> None:
    first, second = quiet(), quiet()
    for device in (first, second):
        grid_us, after_probe_us = event_grid_us(device), device.host_us
        assert after_probe_us > 1_000
        assert event_grid_us(device) == grid_us
        assert device.host_us == after_probe_us
