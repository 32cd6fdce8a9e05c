"""`python -m perfguard.selfcheck.delayed FOLDER DEVICE`: tune the delays on the device and write the plan.

This runs in a separate process, so that the selfcheck's main process holds no device while others measure on it.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import msgspec

from perfguard.measure.devices import Device, open_device
from perfguard.measure.gc_pause import collector_paused
from perfguard.measure.timers import prepare_device_time
from perfguard.measure.timers.timing import Meter, Workload
from perfguard.model.atomic_files import write_atomically
from perfguard.model.errors import ExitStatus, MeasurementError, PerfguardError
from perfguard.selfcheck.delayed.call import CACHE, delayed, inputs, runs_on
from perfguard.selfcheck.delayed.plan import AIMS, LENGTHS_US, PLAN
from perfguard.selfcheck.delayed.tuning import tune

_PREHEAT_US = 1e6  # clocks ramp up from idle
_PREHEAT_STEPS = 100_000
_PATIENCE = 3  # unreadable blocks in a row
_MOST_METERS = 4  # a captured graph holds memory; two delays alternate at most


class Bench:
    """Measures blocks of the call and keeps the last used meters."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._x = inputs(device.torch_device)
        self._meters: dict[tuple[int, int], Meter] = {}

    def block(self, steps: int, tail: int) -> float:
        """The median of one block, µs per call.

        Raises:
            MeasurementError: the timer cannot read the call.
        """
        meter = self._meters.pop((steps, tail), None) or self._prepare(steps, tail)
        self._meters[steps, tail] = meter  # moved to the end: last used
        for old in list(self._meters)[:-_MOST_METERS]:
            del self._meters[old]
        for _ in range(_PATIENCE):
            block_us = meter.block()
            if block_us is not None:
                return block_us
        raise MeasurementError(f"selfcheck: a kernel of {steps} + {tail} links could not be timed; close other work")

    def _prepare(self, steps: int, tail: int) -> Meter:
        return prepare_device_time(Workload(partial(delayed, self._x, steps, tail), CACHE), self._device)

    def preheat(self) -> None:
        """Keep the device busy for a second."""
        started = self._device.now_us()
        while self._device.now_us() - started < _PREHEAT_US:
            self.block(_PREHEAT_STEPS, 0)


def main(folder: Path, name: str) -> int:
    """Tune, verify, write."""
    device = open_device(name)
    if not runs_on(device.torch_device):
        raise MeasurementError(f"selfcheck: {device.identity.name} is no GPU; its kernel needs one")
    device.settle()
    with collector_paused():
        bench = Bench(device)
        bench.preheat()
        delays = tune(bench.block, LENGTHS_US, AIMS)
    write_atomically(folder / PLAN, msgspec.json.format(msgspec.json.encode(delays), indent=1))
    return int(ExitStatus.PASSED)


if __name__ == "__main__":
    try:
        sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
    except PerfguardError as error:
        sys.exit(str(error))
