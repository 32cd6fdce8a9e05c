"""The side of a comparison that runs inside a live pytest process: announces its meters, measures when told.

Several processes, each with another version of the code, share one device. Only the one that holds the turn
runs; the others wait here. So nothing that one of them measures, autotunes or captures is disturbed by another.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from perfguard.collector import collector_paused
from perfguard.records import Case
from perfguard.timing.blocks import Collect, checked, read_block
from perfguard.timing.timing import Blocks, Meter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from perfguard.hardware.device import Device

CONDUCTED = "conducted.json"
GO, MEASURE = b"go", b"measure"  # what a conductor says


class Conducted(Struct, frozen=True):
    """What the conductor laid into the session folder of one worker.

    Attributes:
        handle: file descriptor of the socket to the conductor, inherited by the process.
        worktree: the checkout whose code the worker is to measure.
        original: the user's checkout: code loaded from there would be measured in place of the worktree's.
        numerics: whether results are to be checked against their references too.
    """

    handle: int
    worktree: str
    original: str
    numerics: bool


class Ready(Struct, frozen=True, tag=True):
    """The tests are collected, the device is open, nothing runs on it yet."""


class Announced(Struct, frozen=True, tag=True):
    """A meter stands ready. `foreign` names a module loaded from the user's checkout; empty as it should be."""

    suite: str
    key: str
    metric: str
    timer: str
    floor_us: float
    foreign: str = ""


class Measured(Struct, frozen=True, tag=True):
    """One block's time, µs per call; None where the block was rejected."""

    median_us: float | None  # named as it was: the other side may be an older perfguard


Message = Ready | Announced | Measured


def read_message(data: bytes) -> Message:
    """A worker's message from its bytes."""
    message: Message = msgspec.json.decode(data, type=Message)
    return message


def read_conducted(folder: Path) -> Conducted | None:
    """What the conductor laid into `folder`; None where no conductor did."""
    path = folder / CONDUCTED
    return msgspec.json.decode(path.read_bytes(), type=Conducted) if path.is_file() else None


def checks_numerics(folder: Path) -> bool:
    """Whether the session that answers into `folder` also checks results. A run's own fresh processes do not:
    their parent has. The workers of a comparison have no such parent."""
    conducted = read_conducted(folder)
    return conducted is not None and conducted.numerics


def open_worker(folder: Path) -> Callable[[Case], Collect] | None:
    """Join the conductor that started this process, and wait for the first turn.

    Args:
        folder: the session folder.

    Returns:
        For each case how its blocks are gathered: when the conductor says so. None where `folder` holds no
        conductor, so that the process gathers its blocks by itself.
    """
    conducted = read_conducted(folder)
    if conducted is None:
        return None
    os.set_inheritable(conducted.handle, False)
    worker = _Worker(Connection(conducted.handle), conducted)
    # A forked child that outlives the worker must not keep the conductor waiting for the end of the line.
    os.register_at_fork(after_in_child=worker.connection.close)
    worker.say(Ready())
    worker.hear()
    return worker.collector


@dataclass
class _Worker:
    connection: Connection
    conducted: Conducted
    checked: set[str] = field(default_factory=set)  # modules that were looked at before

    def say(self, message: Message) -> None:
        try:
            self.connection.send_bytes(msgspec.json.encode(message))
        except OSError:
            raise _gone() from None

    def hear(self) -> bytes:
        try:
            return self.connection.recv_bytes()
        except (EOFError, OSError):
            raise _gone() from None

    def collector(self, case: Case) -> Collect:
        def collect(metric: str, meter: Meter, device: Device, seconds: float) -> Blocks:
            foreign = self._foreign()
            self.say(Announced(case.suite, case.key, metric, meter.timer, meter.floor_us, foreign))
            times: list[float] = []
            rejected = 0
            with collector_paused():
                while self.hear() == MEASURE:
                    block_us = read_block(meter, device, times)
                    if block_us is None:
                        rejected += 1
                    else:
                        times.append(block_us)
                    self.say(Measured(block_us))
            return checked(metric, meter, Blocks(tuple(times), rejected))

        return collect

    def _foreign(self) -> str:
        new = {name: module for name, module in list(sys.modules.items()) if name not in self.checked}
        self.checked |= new.keys()
        return foreign_module(new, Path(self.conducted.original), Path(self.conducted.worktree))


def _gone() -> KeyboardInterrupt:
    # What ends a pytest run in order, with its fixtures torn down: there is nobody left to measure for.
    return KeyboardInterrupt("the conductor of this comparison is gone")


def foreign_module(modules: Mapping[str, ModuleType], original: Path, worktree: Path) -> str:
    """`name (file)` of the first of `modules` that was loaded from `original`; empty if none was.

    The worktree may lie inside `original`, and so may the Python environment: what is installed in it is
    shared by all sides, and perfguard itself is one and the same for all.
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
