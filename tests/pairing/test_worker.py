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

from perfguard.hardware.fake import FakeDevice
from perfguard.timing.timing import Blocks, Meter
from perfguard.pairing.worker import (
    CONDUCTED,
    GO,
    MEASURE,
    Announced,
    Conducted,
    Measured,
    Message,
    Ready,
    checks_numerics,
    foreign_module,
    open_worker,
    read_message,
)
from tests.test_reports import CASE


@dataclass
class Line:
    """The conductor's end, written ahead: a worker in the same thread finds its orders waiting."""

    connection: Connection
    folder: Path

    def order(self, *orders: bytes) -> None:
        for order in orders:
            self.connection.send_bytes(order)

    def heard(self) -> list[Message]:
        found = []
        while self.connection.poll(0):
            found.append(read_message(self.connection.recv_bytes()))
        return found


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    ours, theirs = socket.socketpair()
    conducted = Conducted(theirs.detach(), str(tmp_path / "worktree"), str(tmp_path / "original"), True)
    (tmp_path / CONDUCTED).write_bytes(msgspec.json.encode(conducted))
    with Connection(ours.detach()) as connection:
        yield Line(connection, tmp_path)


def meter(blocks: list[float | None]) -> Meter:
    left = iter(blocks)
    return Meter("queue-cold", lambda: next(left), 0.05, 10)


def test_without_a_conductor_there_is_no_worker(tmp_path: Path) -> None:
    assert open_worker(tmp_path) is None
    assert not checks_numerics(tmp_path)


def test_it_measures_a_block_whenever_told(line: Line) -> None:
    line.order(GO, MEASURE, MEASURE, MEASURE, GO, MEASURE, GO)
    collector = open_worker(line.folder)
    assert collector is not None
    assert checks_numerics(line.folder)
    collect = collector(CASE)
    assert collect("device_time_us", meter([50.0, None, 51.0]), FakeDevice(), 1.0) == Blocks((50.0, 51.0), 1)
    assert collect("host_time_us", meter([2.0]), FakeDevice(), 1.0) == Blocks((2.0,), 0)
    announced = Announced("suite", "double[64]/forward", "device_time_us", "queue-cold", 0.05)
    assert line.heard() == [
        Ready(),
        announced,
        *[Measured(50.0), Measured(None), Measured(51.0)],
        msgspec.structs.replace(announced, metric="host_time_us"),
        Measured(2.0),
    ]


def test_without_its_conductor_a_worker_ends(line: Line) -> None:
    """In the way pytest ends when interrupted: fixtures are torn down, no further test runs."""
    line.order(GO)
    collector = open_worker(line.folder)
    assert collector is not None
    line.connection.close()
    with pytest.raises(KeyboardInterrupt, match="conductor of this comparison is gone"):
        collector(CASE)("device_time_us", meter([math.inf]), FakeDevice(), 1.0)


def test_its_line_is_not_inherited_by_what_it_starts(line: Line) -> None:
    line.order(GO)
    handle = msgspec.json.decode((line.folder / CONDUCTED).read_bytes(), type=Conducted).handle
    os.set_inheritable(handle, True)
    assert open_worker(line.folder) is not None
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
    assert foreign_module({"perfguard.pairing.worker": module}, Path("/repo"), Path("/repo/tmp/work")) == ""
