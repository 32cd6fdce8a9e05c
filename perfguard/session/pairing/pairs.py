"""Process pairs, from the worktrees to their readings. All their files are removed at the end."""

from __future__ import annotations

import os
import random
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

import msgspec
from filelock import FileLock

from perfguard.model.config import Settings
from perfguard.model.errors import UsageError
from perfguard.model.limits import timed_kernel
from perfguard.model.records import CaseResult, ReadingId, Report, Toolchain
from perfguard.session.child import (
    ChildCommand,
    Packages,
    PairOptions,
    Request,
    Worktree,
    own_packages,
    timers_of,
)
from perfguard.session.child_process import Child, Tell, ask_child
from perfguard.session.fork_server import ForkServer
from perfguard.session.pairing.lockstep import Limit, PairOutcome, SideProcess, paired, run_pair
from perfguard.session.pairing.sides import SIDES, Interrupts, Side, describe, foreign_error, starting_orders
from perfguard.session.pairing.tally import Tally
from perfguard.session.pairing.worker import Followed, foreign_module, read_followed
from perfguard.session.pairing.worktrees import Repository, lock_in

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device

_PREFIX = "perfguard-pairs-"  # Prefix of the temporary folder, by which abandoned worktrees are known.

_ENOUGH_CORES = 8
_MOST_PAD = 32 * 2**20  # bytes; the position in memory can decide times, so each process draws its own


class Answer(NamedTuple):
    """The answer of a process of one side: the results of its tests, its launches on the targets, the reason if it
    ended early, and whether it died."""

    results: list[CaseResult]
    followed: Followed
    problem: str = ""
    died: bool = False


@dataclass
class PairWorktrees:
    """Worktrees and processes of one set of process pairs. As a context manager, it removes them, despite signals.

    Attributes:
        command: starts pytest in the user's checkout.
        slug: the device's slug; results of another one are refused.
        tell: reports the current step.
        starts_ahead: whether the processes of the next pair start while those of a pair measure.
        packages: the environment of the base, if it is not this process's.
        toolchain: that of the base, once it has answered.
    """

    repository: Repository
    command: ChildCommand
    slug: str
    settings: Settings
    tell: Tell
    starts_ahead: bool = False
    packages: Packages = field(default_factory=own_packages)
    toolchain: Toolchain | None = None
    interrupts: Interrupts = field(default_factory=Interrupts)
    _alive: list[Child] = field(default_factory=list)  # All processes that may be alive.
    _orders: list[list[Side]] = field(default_factory=list)  # Starting orders of the next pairs.
    _ahead: dict[Side, SideProcess] = field(default_factory=dict)  # The processes of the next pair.
    _server: ForkServer | None = None  # Forks the processes of the next pair.
    _lock: FileLock | None = None
    _temporary: Path = field(
        default_factory=lambda: Path(tempfile.gettempdir()).resolve() / f"{_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
    )
    _random: random.Random = field(default_factory=random.SystemRandom)

    def __enter__(self) -> Self:
        self.interrupts.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        try:
            self.stop()
            if self._temporary.exists():
                self.repository.remove_worktrees(self._temporary)
            if self._lock is not None:
                self._lock.release()
        finally:
            self.interrupts.__exit__(*exc_info)

    def command_of(self, side: Side) -> ChildCommand:
        """The command that starts pytest in the worktree of a side."""
        packages = self.packages if side != "work" else own_packages()
        return replace(self.command, worktree=Worktree(self._temporary / side, self.repository.root), packages=packages)

    def has_at_base(self, nodeid: str, root: Path) -> bool:
        """Whether the base has the file of a test, whose node id begins in the folder `root` of the user's checkout."""
        inside = root.resolve().relative_to(self.repository.root.resolve())
        return Path(self._temporary, "base", inside, nodeid.partition("::")[0]).exists()

    def lay_out(self, base: str, *, pairs: bool) -> None:
        """Make the worktree of `base`; for process pairs also those of its second checkout, and of the working tree.

        Raises:
            UsageError: git refuses.
        """
        self._temporary.mkdir(mode=0o700)
        self._lock = lock_in(self._temporary)
        self._lock.acquire()
        self.repository.remove_abandoned(_PREFIX)
        work = self.repository.snapshot(self._temporary / "index") if pairs else base
        if self.repository.has_submodules:
            self.tell("submodules stay empty in the worktrees; --setup 'git submodule update --init' fills them")
        sides: Sequence[Side] = SIDES if pairs else ("base",)
        for side, commit in zip(sides, (base, base, work), strict=False):
            with self.interrupts.delayed():
                self.repository.add_worktree(self._temporary / side, commit)

    def set_up(self, command: str) -> None:
        """Run the user's `command` in each worktree, to build extensions.

        Raises:
            UsageError: it failed, or took too long.
        """
        for side in SIDES:
            if (self._temporary / side).exists():
                self.tell(f"setting up {describe(side)}: {command}")
                status: int | str
                with self._new_child(side, f"setup-{side}", command) as child:
                    try:
                        status = child.process.wait(60 * self.settings.session_minutes)
                    except subprocess.TimeoutExpired:
                        status = f"none after {self.settings.session_minutes:g} minutes"
                if status != 0:
                    raise UsageError(
                        f"--setup {command!r}: ended with status {status} in the worktree of {describe(side)}; "
                        f"correct the command; its output{child.last_output()}"
                    )

    def _new_child(self, side: Side, folder: str, asked: Request | str) -> Child:
        """Start a process of a side. No signal intervenes before it is known."""
        with self.interrupts.delayed():
            self._alive.append(Child.start(describe(side), self.command_of(side), self._temporary / folder, asked))
        return self._alive[-1]

    def answer(
        self, request: Request, side: Side = "base", *, prefix: Sequence[str] = (), minutes: float = 0.0
    ) -> Answer:
        """Let one process of a side answer `request`, which asks for no time, within `minutes` (0: `session_minutes`).
        `prefix`: that of its command.

        Raises:
            UsageError: it has loaded code from the user's checkout in place of its worktree's.
        """
        folder = Path(tempfile.mkdtemp(prefix="answer-", dir=self._temporary))
        request = msgspec.structs.replace(request, follow=list(self.settings.targets))
        command = replace(self.command_of(side), prefix=tuple(prefix))
        limit = minutes or self.settings.session_minutes
        server = None if prefix else self._server
        report, problem, died = ask_child(command, request, limit, name=describe(side), folder=folder, server=server)
        followed = read_followed(folder)
        if followed.foreign:
            raise foreign_error(followed.foreign, side)
        self.toolchain = report.toolchain if report else None
        return Answer(report.results if report else [], followed, problem, died)

    def start(self, tally: Tally) -> None:
        """Start the processes of the first pair, if they disturb nothing, while its times are still being chosen. Its
        fork server also serves the base's answer."""
        self._serve()
        if self.starts_ahead:
            self._ahead = self._start(tally, tally.left())

    def pair(
        self, tally: Tally, left: Sequence[ReadingId], chosen: Sequence[ReadingId], deadline: float
    ) -> PairOutcome:
        """Measure the times `chosen` of those `left` in new processes. Meanwhile the next pair's processes start, if
        they disturb nothing. They collect the tests of all that are left, since this pair decides which of them the
        next one measures.

        Args:
            deadline: s on the monotonic clock.

        Raises:
            UsageError: a worker has loaded code from the user's checkout in place of its worktree's.
        """
        processes, self._ahead = self._ahead or self._start(tally, left), {}
        if self._server is not None:
            self._server.control.close()
            self._server = None

        def start_next() -> None:
            if self.starts_ahead:
                self._ahead = self._start(tally, left)

        outcome = run_pair(
            processes, tally.by_test(chosen), pair=tally.pairs + 1, limit=self._limit(deadline), chance=self._random,
            then=start_next,
        )  # fmt: skip
        self._stop([*processes.values()])
        _add_without_meters(outcome, chosen, [processes[side].report(self.slug) for side in SIDES], tally.pairs + 1)
        return outcome

    def _start(self, tally: Tally, left: Sequence[ReadingId]) -> dict[Side, SideProcess]:
        """Start a process of each side, which can measure the times `left`. They read nothing else: the base has
        answered before, and the run has read the working tree."""
        by_test = tally.by_test(left)
        request = Request(
            self.slug,
            timers_of(time.work for time in tally.times.values()),
            # Each pair has a new order, so that after-effects of a case on the next one differ.
            tests=self._random.sample([*by_test], len(by_test)),
            exact=False,
            kernels={test: [*filter(None, map(_kernel, tracks))] for test, tracks in by_test.items()},
        )
        folder = self._temporary / f"pair-{len([*self._temporary.glob('pair-*')]) + 1}"
        self._orders = self._orders or starting_orders(self._random)
        self._serve()
        return {side: self._start_side(side, folder / side, request) for side in self._orders.pop()}

    def _serve(self) -> None:
        """Start the fork server of the next pair, if there is none, and if all sides import what this process has."""
        early = {name: module for name, module in sys.modules.items() if name in ("torch", *sys.stdlib_module_names)}
        own = "torch" in early and not foreign_module(early, self.repository.root, self._temporary)
        if self._server is None and own and sys.platform == "linux" and self.packages == own_packages():
            with self.interrupts.delayed():
                self._server = ForkServer.launch(self.command_of("base"), self._temporary)
                self._alive.append(self._server)

    def _start_side(self, side: Side, folder: Path, request: Request) -> SideProcess:
        command, (ours, theirs) = self.command_of(side), socket.socketpair()
        with ours, theirs:
            options = PairOptions(theirs.fileno(), secrets.randbelow(_MOST_PAD), preheats=side == SIDES[-1])
            request = msgspec.structs.replace(request, pair=options)
            with self.interrupts.delayed():
                process = SideProcess.start(
                    describe(side), command, folder, request,
                    pass_fds=[theirs.fileno()], server=self._server, connection=Connection(ours.detach()),
                )  # fmt: skip
                self._alive.append(process)
        return process

    def _limit(self, deadline: float) -> Limit:
        minutes = self.settings.session_minutes
        hang = time.monotonic() + 60 * minutes
        if hang < deadline:
            name = f"the process took longer than {minutes:g} minutes ([tool.perfguard] session_minutes)"
            return Limit(hang, name, hangs=True)
        return Limit(deadline, out_of_time(self.settings))

    def stop(self) -> None:
        """End the processes of the next pair."""
        self._stop(self._alive)

    def _stop(self, children: Sequence[Child]) -> None:
        """End these processes, which may be all, the latest first."""
        for child in reversed([*children]):
            child.stop()
            self._alive.remove(child)
            self._ahead = {side: each for side, each in self._ahead.items() if each is not child}


def _add_without_meters(
    outcome: PairOutcome, tracks: Sequence[ReadingId], reports: Sequence[Report | None], pair: int
) -> None:
    """Add times that no meter reads, such as pytest-benchmark's: each process read one value during its turn."""
    results = [{result.id: result for result in report.results} if report else {} for report in reports]
    for track in tracks:
        cases = [of_side[track.case] for of_side in results if track.case in of_side]
        readings = [each for case in cases if (each := case.reading(track.metric)) is not None]
        values = [each.value for each in readings if isinstance(each.value, int | float) and each.value > 0]
        if track not in outcome.timers and len(values) == len(SIDES):
            outcome.timers[track] = dict(zip(SIDES, (each.timer or "" for each in readings), strict=True))
            if len(set(outcome.timers[track].values())) == 1:
                outcome.readings[track] = paired(pair, *values)


def _kernel(track: ReadingId) -> str:
    return timed_kernel(track.metric)


def starts_ahead(device: Device) -> bool:
    """Whether processes may import and collect while others measure: `device` is not the processor, and there are
    enough cores for three starting processes, the measuring one, this one, and their threads."""
    return device.asynchronous and len(os.sched_getaffinity(0)) >= _ENOUGH_CORES


def out_of_time(settings: Settings) -> str:
    """The reason why no more pairs were measured."""
    return f"the {settings.pair_minutes:g} minutes for process pairs were over ([tool.perfguard] pair_minutes)"
