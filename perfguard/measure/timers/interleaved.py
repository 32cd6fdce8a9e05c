"""Blocks of many cases in shuffled passes. A case's blocks are spread over time, so no single moment decides."""

from __future__ import annotations

import random
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from perfguard.measure.gc_pause import collector_paused
from perfguard.measure.timers.blocks import MOST_REJECTED, budget_us, checked, collect, read_block
from perfguard.measure.timers.timing import Blocks, Meter

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device
    from perfguard.measure.timers.blocks import Collect

PASSES = 3
_SHARE_OF_MEMORY = 4  # kept meters take at most a quarter of the device's memory; cases need the rest


@dataclass
class _Kept:
    """A meter between its passes, with the times read so far."""

    meter: Meter
    most_us: float  # for one pass
    times: list[float] = field(default_factory=list)
    rejected: int = 0

    def blocks(self, metric: str) -> Blocks:
        return checked(metric, self.meter, self.times, self.rejected)


class Interleaved:
    """Collects the blocks of a session: a first pass when a case runs, two more at the end over all cases.

    Meters stay alive until then, as long as together they hold no more than a quarter of the device's memory. A meter
    that does not fit gets all its blocks at once. Use::

        session = Interleaved(device)
        ...  # subject.collect = session.of(case) for each case
        for (case, metric), blocks in session.finish().items():
            reading = renewed(reading, blocks)
    """

    def __init__(self, device: Device, *, seed: int = 0) -> None:
        """`seed`: of the order in the later passes."""
        self._device = device
        self._random = random.Random(seed)
        self._kept: dict[tuple[Hashable, str], _Kept] = {}
        self._free_bytes = (device.identity.memory_bytes or 0) // _SHARE_OF_MEMORY

    def of(self, case: Hashable) -> Collect:
        """A function that collects the blocks of `case`, by any name that no other case has."""

        def first_pass(metric: str, meter: Meter, device: Device, seconds: float) -> Blocks:
            if meter.bytes > self._free_bytes:
                return collect(metric, meter, device, seconds)
            kept = _Kept(meter, budget_us(device, seconds) / PASSES)
            self._read(kept)
            blocks = kept.blocks(metric)
            if kept.rejected < MOST_REJECTED:
                self._free_bytes -= meter.bytes
                self._kept[case, metric] = kept
            return blocks

        return first_pass

    def finish(self) -> dict[tuple[Hashable, str], Blocks]:
        """Run the later passes over all kept meters and release these; returns their blocks by case and metric."""
        for _ in range(1, PASSES):
            order = list(self._kept.values())
            self._random.shuffle(order)
            for kept in order:
                self._read(kept)
        found = {key: kept.blocks(key[1]) for key, kept in self._kept.items()}
        self._kept.clear()
        return found

    def _read(self, kept: _Kept) -> None:
        """Read one pass: usually three blocks, fewer if they take too long."""
        started = self._device.now_us()
        wanted = len(kept.times) + kept.meter.in_pass
        with collector_paused():
            while len(kept.times) < wanted and kept.rejected < MOST_REJECTED:
                block_us = read_block(kept.meter, self._device, kept.times)
                if block_us is None:
                    kept.rejected += 1
                else:
                    kept.times.append(block_us)
                    if self._device.now_us() - started > kept.most_us:
                        return
