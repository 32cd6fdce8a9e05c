"""A process that measures for another one: a fresh session of a run, or a worker of a process pair."""

from __future__ import annotations

import os
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from perfguard.coldstart import Asked, asked
from perfguard.metrics import wall_time
from perfguard.pairing.worker import Worker
from perfguard.records import Case, CaseResult
from perfguard.reports import read_report
from perfguard.sessions import REQUEST, TIMES_ONLY
from perfguard.timing.interleaved import Interleaved
from perfguard.timing.timing import renewed

if TYPE_CHECKING:
    from perfguard.hardware.device import Device
    from perfguard.timing.blocks import Collect

RIVALS = "rivals"  # a file of this name in a session's folder asks for the readings of rivals, too
UNREAD = "unread"  # one of this name holds the times that nobody will judge, one a line

Timers = Callable[[Case], Mapping[str, str]]


@dataclass(frozen=True)
class Answering:
    """How such a process measures.

    Attributes:
        timers: those that the asking process read with, by case and metric.
        collect: who gathers the blocks of a case.
        numerics: whether results are checked too; the parent of a fresh session has done so.
        exact: whether exact metrics are read too.
        rivals: whether methods that perfguard is compared with read the cases as well.
        cold: the case whose first result is wanted, and nothing else of anything; None as a rule.
        unread: timed metrics that are not read.
        interleaved: holds the meters for the later passes; None in a process pair, whose conductor says when.
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
        """Whether another process says when to measure, so that this one waits inside its tests."""
        return self.interleaved is None

    def later_passes(self, results: Sequence[CaseResult]) -> list[CaseResult]:
        """Measure the later passes over all cases; the results with all their blocks."""
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
    """Read what was asked for in `folder`, a session's.

    Args:
        stored: timers of the baseline, for what the asking process left unread.
        worker: this process as the worker of a process pair, if it is one.
    """
    known = _requested(folder, stored)
    if worker is not None:
        conducted = worker
        return Answering(
            # The base's timers become known while the pair comes along: they are looked up when they are needed.
            timers=lambda case: ChainMap(conducted.timers(case), dict(known(case))),
            collect=conducted.collector,
            numerics=conducted.conducted.numerics,
            exact=conducted.conducted.exact,
            rivals=False,
            interleaved=None,
            unread=frozenset({wall_time.METRIC}),  # it is only shown
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
    """A fresh process reads with the timers its parent read with, and what that left unread as it is stored."""
    known = {
        (result.case.suite, result.case.key): {
            reading.metric: reading.timer for reading in result.readings if reading.timer is not None
        }
        for result in read_report(folder / REQUEST).results
    }
    return lambda case: {**stored(case), **known.get((case.suite, case.key), {})}
