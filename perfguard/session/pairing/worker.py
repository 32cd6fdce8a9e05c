"""A side of a process pair, in a live pytest process: it announces its meters, and measures when ordered to.

Several processes, each with another version of the code, share one device. Only the process that has the turn runs; the
others wait here. So none disturbs another that measures, autotunes or captures. A process that only answers for its
side has no turns; it returns the launches that it followed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from perfguard.measure import collector_paused
from perfguard.measure.binaries.call_binaries import OnTarget
from perfguard.measure.timers.blocks import Collect, checked, read_block
from perfguard.measure.timers.timing import Blocks, Meter
from perfguard.model.atomic_files import write_atomically
from perfguard.model.records import Case, CaseId, ReadingId
from perfguard.session.child import PairOptions, Request

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device


FOLLOWED = "followed.json"  # The launches of a child's cases on the targets, beside its report.
_MOST_TRIES = 3  # Blocks tried for a reading.
_PAD_STEP = 512  # bytes to which torch's allocators round


class Measure(Struct, frozen=True, tag=True):
    """The parent's order: measure one more block."""


class Go(Struct, frozen=True, tag=True):
    """The parent's order: go on to the first of `stops`, to the next test, or to the end, and wait there.

    Attributes:
        stops: times of the present test.
        timers: metric -> the base's timer in the case of `stops`, which the other sides use.
        tests: collected tests to run, sent with the first order, at which the device is opened.
    """

    stops: list[ReadingId] = []
    timers: dict[str, str] = {}
    tests: list[str] = []


class Ready(Struct, frozen=True, tag=True):
    """The tests are collected, and the device is untouched. `tests`: their node ids."""

    tests: list[str] = []


class Entered(Struct, frozen=True, tag=True):
    """A test is about to begin; the worker waits. If the process dies after this, it died in this test."""

    test: str


class Left(Struct, frozen=True, tag=True):
    """All tests have run, and the answer is written. Only the end of the process remains."""


class Announced(Struct, frozen=True, tag=True):
    """The meter of a time is ready; the worker waits. `foreign` names a module loaded from the user's checkout, and
    should be empty. `near`: the meter's `near`."""

    time: ReadingId
    timer: str
    foreign: str = ""
    near: float = 0.0


class Measured(Struct, frozen=True, tag=True):
    """One block's time, µs per call, and the mean clock of the device's processors in it; None if the block was
    rejected, or the clock is unknown."""

    us: float | None
    mhz: float | None = None


Message = Ready | Entered | Announced | Measured | Left
Order = Measure | Go


@dataclass
class PairWorker:
    """This process as the worker of a process pair. Create it with `join`."""

    connection: Connection
    options: PairOptions
    request: Request
    _stops: Sequence[ReadingId] = ()  # The times at which this process waits, up to the next order.
    _base_timers: dict[CaseId, dict[str, str]] = field(default_factory=dict)  # Filled as they become known.
    _checked: set[str] = field(default_factory=set)  # Modules already checked.
    _pad: object = None
    _device: Device | None = None

    def begin(self, tests: list[str]) -> list[str]:
        """Announce the collected tests, and wait until the device may be opened. Return the tests to run, in order."""
        self.send(Ready(tests))
        order = self.receive()
        return order.tests if isinstance(order, Go) else []

    def leave(self) -> None:
        """Announce the end of the tests, so that no other side waits for the end of this process."""
        self.send(Left())

    def enter(self, test: str) -> None:
        """Announce the test that is about to begin, by its node id, and wait for the turn."""
        self._free()
        self.send(Entered(test))
        self.receive()

    def take_pad(self, device: Device) -> None:
        """Take memory, so that later allocations have other addresses in every process."""
        self._device = device
        self._pad = device.take_memory(_PAD_STEP * (self.options.pad_bytes // _PAD_STEP))

    def _free(self) -> None:
        """Free memory that torch keeps from earlier tests and the check, since three processes share the device."""
        if self._device is not None:
            self._device.free_memory()

    def timers(self, case: Case) -> dict[str, str]:
        """The base's timers of a case, metric -> id, filled in the course of the pair."""
        return self._base_timers.setdefault(case.id, {})

    def send(self, message: Message) -> None:
        try:
            self.connection.send_bytes(msgspec.json.encode(message))
        except OSError:
            raise _parent_gone() from None

    def receive(self) -> Order:
        try:
            order: Order = msgspec.json.decode(self.connection.recv_bytes(), type=Order)
        except (EOFError, OSError):
            raise _parent_gone() from None
        if isinstance(order, Go):
            self._stops = order.stops
            for time in order.stops if order.timers else ():
                self._base_timers.setdefault(time.case, {}).update(order.timers)
        return order

    def collector(self, case: Case) -> Collect:
        """The collector of a case's blocks, which the parent orders."""
        self._free()

        def collect(metric: str, meter: Meter, device: Device, seconds: float) -> Blocks:
            time = ReadingId(*case.id, metric)
            waits = time in self._stops
            if waits:
                self.send(Announced(time, meter.timer, self._foreign(), meter.near))
            times: list[float] = []
            rejected = 0
            with collector_paused():
                while waits and isinstance(self.receive(), Measure):
                    us = read_block(meter, device, times)
                    self.send(Measured(None) if us is None else Measured(us, meter.clock_mhz()))
                    rejected += us is None
                    times += [] if us is None else [us]
                for _ in range(_MOST_TRIES if not times else 0):  # The block is not compared, but a reading needs one.
                    if not times and (us := read_block(meter, device, times)) is not None:
                        times.append(us)
            return checked(metric, meter, times, rejected)

        return collect

    def _foreign(self) -> str:
        new = {name: module for name, module in list(sys.modules.items()) if name not in self._checked}
        self._checked |= new.keys()
        return foreign_module(new, Path(self.request.original), Path(self.request.worktree))


def join(request: Request) -> PairWorker:
    """Join the process pair of the parent that started this process."""
    options = request.pair
    assert options is not None
    os.set_inheritable(options.handle, False)
    worker = PairWorker(Connection(options.handle), options, request)
    # A forked child that outlives the worker must not keep the connection to the parent open.
    os.register_at_fork(after_in_child=worker.connection.close)
    return worker


def _parent_gone() -> KeyboardInterrupt:
    # This exception ends a pytest run in order, with its fixtures torn down; no more measurements are needed.
    return KeyboardInterrupt("the parent of this process pair has ended")


def foreign_module(modules: Mapping[str, ModuleType], original: Path, worktree: Path) -> str:
    """`name (file)` of the first of `modules` that was loaded from `original`; empty if none was.

    The worktree may be inside `original`, and so may the Python environment. Packages installed in it are shared by all
    sides, and so is perfguard itself.
    """
    own = (f"{worktree}{os.sep}", f"{sys.prefix}{os.sep}", f"{sys.base_prefix}{os.sep}")
    roots = tuple({f"{original}{os.sep}", f"{original.resolve()}{os.sep}"})
    for name, module in modules.items():
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or name.partition(".")[0] == "perfguard" or not file.startswith(roots):
            continue
        if not file.startswith(own) and not {"site-packages", "dist-packages"} & set(Path(file).parts):
            return f"{name} ({file})"
    return ""


# -- launches followed in a child --------------------------------------------------------------------------------------


class Followed(Struct, frozen=True):
    """Launches of a child's cases.

    Attributes:
        launches: suite -> case key -> its launches on each target.
        path: the child's sys.path, by which its kernels can be imported again.
        foreign: `name (file)` of a module that was loaded from the user's checkout; should be empty.
        uncollected: node id of a test file -> the reason why it could not be collected.
    """

    launches: dict[str, dict[str, list[OnTarget]]] = {}
    path: list[str] = []
    foreign: str = ""
    uncollected: dict[str, str] = {}

    def of(self, case: CaseId) -> list[OnTarget]:
        """The launches of a case; empty if it was not followed."""
        return self.launches.get(case[0], {}).get(case[1], [])

    def joined(self, later: Followed) -> Followed:
        """These launches with those of a later process of the same side."""
        suites = {*self.launches, *later.launches}
        launches = {suite: self.launches.get(suite, {}) | later.launches.get(suite, {}) for suite in suites}
        return Followed(launches, later.path or self.path, uncollected=self.uncollected | later.uncollected)


def write_followed(
    folder: Path, request: Request, launches: Mapping[CaseId, list[OnTarget]], uncollected: Mapping[str, str]
) -> None:
    """In the child: write the launches that it followed, and the files that it could not collect."""
    by_suite: dict[str, dict[str, list[OnTarget]]] = {}
    for (suite, key), on_targets in launches.items():
        by_suite.setdefault(suite, {})[key] = on_targets
    foreign = foreign_module(dict(sys.modules), Path(request.original), Path(request.worktree))
    write_atomically(
        folder / FOLLOWED, msgspec.json.encode(Followed(by_suite, list(sys.path), foreign, dict(uncollected)))
    )


def read_followed(folder: Path) -> Followed:
    """The launches that a child followed; empty if it ended early."""
    try:
        return msgspec.json.decode((folder / FOLLOWED).read_bytes(), type=Followed)
    except (OSError, msgspec.MsgspecError):
        return Followed()
