"""A fork server: a process that has imported torch, pytest and perfguard, and forks children that need not.

These imports are most of what a process of a process pair costs. The server touches neither a device nor the user's
code, and computes nothing, so that a child differs from a new process only in what it shares with the server's other
children: the layout of memory and the seed of hashes. Within a pair this removes a difference between its sides. Each
pair has a server of its own, so that pairs stay independent.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path

import msgspec
from msgspec import Struct

from perfguard.model.modules import modules_in
from perfguard.model.orphans import end_with
from perfguard.session import child
from perfguard.session.child import ChildCommand
from perfguard.session.child_process import Child

# Triton is not among them: it reads its variables when it is imported, after the user's files may have set them.
_IMPORTED = (
    *("torch", "pytest", "perfguard.pytest_plugin.start", "perfguard.pytest_plugin.without_gpu"),
    *("perfguard.session.open_run", "perfguard.session.settle", "perfguard.session.pairing.worker"),
    *("perfguard.check.all_configs", "perfguard.check.hard_inputs.other_calls", "perfguard.ranks.rank_group"),
)
_IMPORTED_WHOLE = ("perfguard.measure.devices.vendors", "perfguard.measure.metrics", "perfguard.measure.timers")
# In place of what starts a child's pytest, which is the fourth word of its command.
_CODE = "import perfguard.session.fork_server; perfguard.session.fork_server.run_pytest()"
_FORK_SECONDS = 1.0  # The wait for a process that is to be stopped; one that the server has not forked dies with it.


class _Order(Struct, frozen=True):
    """A child to fork: its arguments, folder and PYTHONPATH, and the numbers of the files that it inherits."""

    arguments: list[str]
    folder: str
    path: str
    files: list[int]


@dataclass
class Forked:
    """A forked child, with those parts of Popen that `Child` uses."""

    told: Connection  # The server tells its process id, then its exit status.
    heard: list[int] = field(default_factory=list)

    @property
    def pid(self) -> int:
        """Its process id.

        Raises:
            ProcessLookupError: the server has not forked it.
        """
        if not self._hears(1, _FORK_SECONDS) or not self.heard[0]:
            raise ProcessLookupError
        return self.heard[0]

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status, negative for a signal; waits for its end.

        Raises:
            subprocess.TimeoutExpired: it has not ended within `timeout` seconds.
        """
        if not self._hears(2, timeout):
            raise subprocess.TimeoutExpired(_CODE, timeout or 0.0)
        return self.heard[1]

    def _hears(self, count: int, timeout: float | None) -> bool:
        while len(self.heard) < count:
            if not self.told.poll(timeout):
                return False
            try:
                self.heard.append(int(self.told.recv_bytes()))
            except (EOFError, OSError):  # A server that is killed takes its children along.
                self.heard[:] = [self.heard[0] if self.heard else 0, -signal.SIGKILL]
        return True


@dataclass
class ForkServer(Child):
    """A live fork server. It ends with its last child once `control` is closed."""

    control: Connection = field(kw_only=True)

    @classmethod
    def launch(cls, command: ChildCommand, folder: Path) -> ForkServer:
        """Start one in the environment of `command`, but for its worktree."""
        assert command.worktree is not None
        ours, theirs = Pipe()
        own = f"{command.worktree.folder}{os.sep}"
        paths = [path for path in _path(command).split(os.pathsep) if not f"{path}{os.sep}".startswith(own)]
        with theirs:
            process = command.popen(
                [*command.line(folder)[:3], _CODE, str(theirs.fileno())], {"PYTHONPATH": os.pathsep.join(paths)},
                pass_fds=[theirs.fileno()], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        return cls("the fork server", folder, process, control=ours)

    def fork(self, command: ChildCommand, folder: Path, output: int, files: Sequence[int]) -> Forked:
        """Have it fork the child that `command` starts, with its request in `folder`, as soon as it has imported.

        Args:
            output: the file descriptor of the child's output.
            files: other file descriptors that it inherits.
        """
        told, tells = Pipe(duplex=False)
        order = _Order(command.line(folder)[4:], str(command.start), _path(command), [*files])
        with tells, contextlib.suppress(ConnectionError):  # The child of a server that died reads as killed.
            self.control.send_bytes(msgspec.json.encode(order))
            for file in (tells.fileno(), output, *files):
                send_handle(self.control, file, self.process.pid)
        return Forked(told)


def _path(command: ChildCommand) -> str:
    return command.environment()["PYTHONPATH"]


def run_pytest() -> None:
    """In the server: fork children, each of which runs pytest."""
    child.run_pytest(_serve)


def _serve() -> None:
    """Fork children, as ordered through the socket that the argument numbers. Returns in each child."""
    end_with(os.getppid())
    gc.disable()
    with contextlib.suppress(Exception):  # The child meets the same error where it matters.
        for name in _IMPORTED:
            importlib.import_module(name)
        for package in _IMPORTED_WHOLE:
            modules_in(package)
    gc.freeze()  # No child's collections look at the objects of these modules.
    control, alive = Connection(int(sys.argv[1])), dict[int, Connection]()
    signal.signal(signal.SIGCHLD, lambda number, frame: _reap(alive, os.WNOHANG))
    with contextlib.suppress(EOFError):  # The parent has closed it.
        while True:
            order = msgspec.json.decode(control.recv_bytes(), type=_Order)
            tells, *files = [recv_handle(control) for _ in range(2 + len(order.files))]
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])  # Until the child is known.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # Idle threads of libraries need not survive.
                number = os.fork()
            if number == 0:
                for connection in (control, Connection(tells), *alive.values()):
                    connection.close()
                return _become(order, files)
            for file in files:
                os.close(file)
            with contextlib.suppress(OSError):
                os.setpgid(number, number)
            alive[number] = Connection(tells)
            alive[number].send_bytes(str(number).encode())
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    while alive:
        _reap(alive, 0)
    os._exit(0)


def _reap(alive: dict[int, Connection], options: int) -> None:
    """Tell the statuses of children that have ended."""
    while alive and (ended := os.waitpid(-1, options))[0]:
        with contextlib.suppress(KeyError, OSError), alive.pop(ended[0]) as told:  # Imports may leave processes too.
            told.send_bytes(str(os.waitstatus_to_exitcode(ended[1])).encode())


def _become(order: _Order, files: Sequence[int]) -> None:
    """In the child: be as if started with this order, with these files for output and the order's."""
    end_with(os.getppid())
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    gc.enable()
    above = max([2, *order.files]) + 1  # So no file takes a number that another one is to have.
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD, above) for file in files]
    for file in files:
        os.close(file)
    for file, number in zip(moved, (1, *order.files), strict=True):
        os.dup2(file, number)
        os.close(file)
    os.dup2(1, 2)
    before = os.environ["PYTHONPATH"].split(os.pathsep)
    sys.path[:] = [*order.path.split(os.pathsep), *(path for path in sys.path if path not in before)]
    sys.argv[1:] = order.arguments
    os.environ["PYTHONPATH"] = order.path
    os.chdir(order.folder)
