"""`python -m perfguard.selfcheck.delayed FOLDER DEVICE`: tune the delays on the device and write the plan.

A chain's time is linear in its links, so two lengths determine all others. Short tails are off that line, so the
slowdown of each tail is measured, and its length corrected once. What the tail costs in truth, the sessions show.
"""

from __future__ import annotations

import functools
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from perfguard.measure.devices import Device, open_device
from perfguard.measure.gc_pause import collector_paused
from perfguard.measure.timers import prepare_device_time
from perfguard.measure.timers.timing import Meter, Workload
from perfguard.model.atomic_files import write_atomically
from perfguard.model.errors import MeasurementError, PerfguardError
from perfguard.selfcheck.delayed import AIMS, LENGTHS_US, PLAN, Delay
from perfguard.selfcheck.delayed.call import CACHE, delayed, inputs, runs_on

Block = Callable[[int, int], float]  # of steps and tail: the median of one block, µs per call

_SHORT, _LONG = 8_000, 64_000  # links; at a few cycles a link, much longer than a launch
_MOST_STEPS = 2**28
_MOST_CORRECTION = 4.0
_QUADS = 4
_PREHEAT_US = 1e6  # clocks ramp up from idle
_PREHEAT_STEPS = 100_000
_PATIENCE = 3  # unreadable blocks in a row
_MOST_METERS = 4  # a captured graph holds memory; two delays alternate at most


def tune(block: Block, lengths_us: Sequence[float], aims: Sequence[float]) -> list[Delay]:
    """One delay for each length and target slowdown (0: no tail)."""
    short_us, long_us = (statistics.median(block(steps, 0) for _ in range(3)) for steps in (_SHORT, _LONG))
    link_us = max((long_us - short_us) / (_LONG - _SHORT), 1e-6)
    empty_us = short_us - _SHORT * link_us
    delays = []
    for length_us in lengths_us:
        steps = max(0, min(round((length_us - empty_us) / link_us), _MOST_STEPS))
        for aimed in aims:
            tail = math.ceil(aimed * (empty_us / link_us + steps))
            if tail:
                correction = aimed / max(slowdown(block, steps, tail), aimed / _MOST_CORRECTION)
                tail = max(1, round(tail * max(correction, 1 / _MOST_CORRECTION)))
            delays.append(Delay(length_us, aimed, steps, tail))
    return delays


def slowdown(block: Block, steps: int, tail: int) -> float:
    """How much slower the call is with the tail, from blocks in ABBA order, in which drift linear in time cancels."""
    order = (False, True, True, False) * _QUADS
    logs = [math.log(block(steps, tail)) if delayed else -math.log(block(steps, 0)) for delayed in order]
    return math.expm1(sum(logs) / (2 * _QUADS))


def block_on(device: Device) -> Block:
    """Measures blocks of the delayed call, with the last used meters kept."""
    x = inputs(device.torch_device)

    @functools.lru_cache(maxsize=_MOST_METERS)
    def meter(steps: int, tail: int) -> Meter:
        return prepare_device_time(Workload(functools.partial(delayed, x, steps, tail), CACHE), device)

    def block(steps: int, tail: int) -> float:
        for _ in range(_PATIENCE):
            block_us = meter(steps, tail).block()
            if block_us is not None:
                return block_us
        raise MeasurementError(f"selfcheck: a kernel of {steps} + {tail} links could not be timed; close other work")

    return block


def main(folder: Path, name: str) -> None:
    """Tune and write."""
    device = open_device(name)
    if not runs_on(device.torch_device):
        raise MeasurementError(f"selfcheck: {device.identity.name} is no GPU; its kernel needs one")
    device.settle()
    with collector_paused():
        block, started = block_on(device), device.now_us()
        while device.now_us() - started < _PREHEAT_US:
            block(_PREHEAT_STEPS, 0)
        delays = tune(block, LENGTHS_US, AIMS)
    write_atomically(folder / PLAN, msgspec.json.format(msgspec.json.encode(delays), indent=1))


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), sys.argv[2])
    except PerfguardError as error:
        sys.exit(str(error))
