"""The worker's side: it waits for its turn, measures when told, and knows code that is not its own."""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
import pytest

from perfguard.measure.timers.timing import Blocks, Meter
from perfguard.model.records import ReadingId
from perfguard.session.child import PairOptions, Request
from perfguard.session.pairing.worker import (
    Announced,
    Entered,
    Go,
    Measure,
    Measured,
    Message,
    Order,
    PairWorker,
    Ready,
    foreign_module,
    join,
)
from perfguard.testing.fake import FakeDevice
from tests.store.test_report_file import CASE

BEGIN = Go(tests=["test_b.py::test"])


@dataclass
class Line:
    """The parent's end, written ahead: a worker in the same thread finds its orders waiting."""

    connection: Connection
    request: Request

    def order(self, *orders: Order) -> None:
        for order in orders:
            self.connection.send_bytes(msgspec.json.encode(order))

    def heard(self) -> list[Message]:
        found = []
        while self.connection.poll(0):
            found.append(msgspec.json.decode(self.connection.recv_bytes(), type=Message))
        return found


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    ours, theirs = socket.socketpair()
    options = PairOptions(theirs.detach(), pad_bytes=1500)
    request = Request(pair=options, worktree=str(tmp_path / "worktree"), original=str(tmp_path / "original"))
    with Connection(ours.detach()) as connection:
        yield Line(connection, request)


def meter(blocks: list[float | None]) -> Meter:
    left = iter(blocks)
    return Meter("queue-cold", lambda: next(left), 0.05)


def joined(line: Line) -> PairWorker:
    """A worker that runs what all sides have."""
    worker = join(line.request)
    assert worker.begin(["new", "test_b.py::test"]) == ["test_b.py::test"]
    return worker


DEVICE, HOST = (ReadingId(*CASE.id, metric) for metric in ("device_time_us", "host_time_us"))


def test_it_waits_at_the_times_that_the_parent_names_and_measures_a_block_whenever_ordered(line: Line) -> None:
    line.order(BEGIN, Go([DEVICE, HOST]), Measure(), Measure(), Measure(), Go([HOST]), Measure(), Go())
    worker = joined(line)
    worker.enter("test_b.py::test")
    collect = worker.collector(CASE)
    assert collect("device_time_us", meter([50.0, None, 51.0]), FakeDevice(), 1.0) == Blocks((50.0, 51.0), 1)
    assert collect("host_time_us", meter([2.0]), FakeDevice(), 1.0) == Blocks((2.0,), 0)
    # Nobody compares it, but a reading needs a block.
    assert collect("wall_time_us", meter([None, 3.0, 4.0]), FakeDevice(), 1.0) == Blocks((3.0,), 0)
    assert line.heard() == [
        Ready(["new", "test_b.py::test"]),
        Entered("test_b.py::test"),
        Announced(DEVICE, "queue-cold"),
        *[Measured(50.0), Measured(None), Measured(51.0)],
        Announced(HOST, "queue-cold"),
        Measured(2.0),
    ]


def test_the_base_s_timers_are_known_when_a_meter_is_made(line: Line) -> None:
    """Those of its later times arrive while the case runs: the mapping that the case was given fills."""
    line.order(BEGIN, Go([DEVICE], {"device_time_us": "graph-cold"}))
    worker = joined(line)
    worker.receive()
    known = worker.timers(CASE)
    assert known == {"device_time_us": "graph-cold"}
    line.order(Go([HOST], {"device_time_us": "graph-cold", "host_time_us": "host-low-u16"}))
    worker.receive()
    assert known["host_time_us"] == "host-low-u16"
    assert worker.timers(msgspec.structs.replace(CASE, name="other")) == {}


def test_the_pad_is_taken_where_the_inputs_lie(line: Line) -> None:
    line.order(BEGIN)
    worker = joined(line)
    worker.take_pad(FakeDevice())
    assert getattr(worker._pad, "nbytes", None) == 1024


def test_what_torch_keeps_is_freed_before_each_test_and_after_each_check(line: Line) -> None:
    """Three processes share the memory, and the one whose results are checked would keep tens of gigabytes of it."""

    class Shared(FakeDevice):
        freed = 0

        def free_memory(self) -> None:
            self.freed += 1

    line.order(BEGIN, Go())
    worker, device = joined(line), Shared()
    worker.take_pad(device)
    worker.enter("test_b.py::test")
    assert device.freed == 1
    worker.collector(CASE)
    assert device.freed == 2


def test_without_its_parent_a_worker_ends(line: Line) -> None:
    """In the way pytest ends when interrupted: fixtures are torn down, no further test runs."""
    line.order(BEGIN, Go([DEVICE]))
    worker = joined(line)
    worker.receive()
    line.connection.close()
    with pytest.raises(KeyboardInterrupt, match="parent of this process pair has ended"):
        worker.collector(CASE)("device_time_us", meter([math.inf]), FakeDevice(), 1.0)


def test_its_line_is_not_inherited_by_what_it_starts(line: Line) -> None:
    assert line.request.pair is not None
    handle = line.request.pair.handle
    os.set_inheritable(handle, True)
    join(line.request)
    child = subprocess.run([sys.executable, "-c", f"import os; os.fstat({handle})"], close_fds=False, check=False,
                           capture_output=True, text=True)  # fmt: skip
    assert "Bad file descriptor" in child.stderr


@pytest.mark.parametrize(
    ("file", "foreign"),
    [
        ("/repo/kernel.py", True),
        ("/repo/.git/worktrees/kernel.py", True),
        ("/repo/tmp/work/kernel.py", False),  # its worktree, in a temporary folder inside the checkout
        ("/repo/.venv/lib/python3.11/site-packages/torch/__init__.py", False),
        ("/repository/kernel.py", False),
        (None, False),  # built in, or a namespace package
    ],
)
def test_code_from_the_user_s_checkout_is_foreign(file: str | None, foreign: bool) -> None:
    module = types.ModuleType("kernel")
    module.__file__ = file
    found = foreign_module({"kernel": module}, Path("/repo"), Path("/repo/tmp/work"))
    assert found == (f"kernel ({file})" if foreign else "")
    assert foreign_module({"perfguard.session.pairing.worker": module}, Path("/repo"), Path("/repo/tmp/work")) == ""
