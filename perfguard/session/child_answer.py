"""A process that measures for another one: a fresh session of a run, or a worker of a process pair."""

from __future__ import annotations

import os
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from perfguard.measure.metrics import wall_time
from perfguard.measure.timers.interleaved import Interleaved
from perfguard.measure.timers.timing import renewed
from perfguard.model.records import Case, CaseResult
from perfguard.session.cold_start import Asked, asked
from perfguard.session.fresh_processes import REQUEST, TIMES_ONLY
from perfguard.session.pairing.worker import Worker
from perfguard.store.report_file import read_report

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device
    from perfguard.measure.timers.blocks import Collect

RIVALS = "rivals"  # file in a session's folder that requests the readings of rivals, too
UNREAD = "unread"  # file that lists the times that are not judged, one a line

Timers = Callable[[Case], Mapping[str, str]]


@dataclass(frozen=True)
class Answering:
    """Measurement settings of such a process.

    Attributes:
        timers: timers of the asking process, by case and metric.
        collect: collector of a case's blocks.
        numerics: whether results are also checked. The parent of a fresh session has already checked them.
        exact: whether exact metrics are also read.
        rivals: whether the methods that perfguard is compared with also read the cases.
        cold: the case whose first result alone is measured; None as a rule.
        unread: timed metrics to skip.
        interleaved: holds the meters for the later passes; None in a process pair, whose conductor decides when to
            measure.
    """

    timers: Timers
    collect: Callable[[Case], Collect | None]
    numerics: bool
    exact: bool
    rivals: bool
    interleaved: Interleaved | None
    cold: Asked | None = None
    unread: frozenset[str] = frozenset()

    @property
    def conducted(self) -> bool:
        """Whether another process decides when to measure. This one then waits inside its tests."""
        return self.interleaved is None

    def later_passes(self, results: Sequence[CaseResult]) -> list[CaseResult]:
        """Measure the later passes over all cases and return the results with all their blocks."""
        found = {} if self.interleaved is None else self.interleaved.finish()
        return [
            msgspec.structs.replace(
                result,
                readings=[
                    renewed(reading, found[_name(result.case), reading.metric])
                    if (_name(result.case), reading.metric) in found
                    else reading
                    for reading in result.readings
                ],
            )
            for result in results
        ]


def open_answering(folder: Path, device: Device, stored: Timers, worker: Worker | None) -> Answering:
    """Read the request in the session folder `folder`.

    Args:
        stored: timers of the baseline, for metrics that the asking process did not read.
        worker: this process as the worker of a process pair, if it is one.
    """
    known = _requested(folder, stored)
    if worker is not None:
        conducted = worker
        return Answering(
            # The base's timers become known only during the pair, so they are looked up when they are needed.
            timers=lambda case: ChainMap(conducted.timers(case), dict(known(case))),
            collect=conducted.collector,
            numerics=conducted.conducted.numerics,
            exact=conducted.conducted.exact,
            rivals=False,
            interleaved=None,
            unread=frozenset({wall_time.METRIC}),  # shown, never judged
        )
    interleaved = Interleaved(device, seed=os.getpid())
    return Answering(
        timers=known,
        collect=lambda case: interleaved.of(_name(case)),
        numerics=False,
        exact=not (folder / TIMES_ONLY).exists(),
        rivals=(folder / RIVALS).exists(),
        interleaved=interleaved,
        cold=asked(folder),
        unread=frozenset((folder / UNREAD).read_text().split()) if (folder / UNREAD).exists() else frozenset(),
    )


def _name(case: Case) -> str:
    return f"{case.suite} {case.key}"


def _requested(folder: Path, stored: Timers) -> Timers:
    """Timers of the parent's readings and, for metrics that it did not read, of the baseline."""
    known = {
        (result.case.suite, result.case.key): {
            reading.metric: reading.timer for reading in result.readings if reading.timer is not None
        }
        for result in read_report(folder / REQUEST).results
    }
    return lambda case: {**stored(case), **known.get((case.suite, case.key), {})}
