"""Process pairs, from the worktrees to their readings. All their files are removed at the end."""

from __future__ import annotations

import os
import random
import secrets
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

import msgspec
from filelock import FileLock

from perfguard.judge.pair_test import LEAST_PAIRS, MOST_PAIRS
from perfguard.measure.metrics.times import WALL_TIME
from perfguard.model.config import Settings
from perfguard.model.records import CaseResult, ReadingId, Report, Toolchain
from perfguard.model.units import counted, format_minutes
from perfguard.session.child import (
    ChildCommand,
    Following,
    Packages,
    Request,
    Worktree,
    own_packages,
    read_answer,
    write_request,
)
from perfguard.session.fresh_processes import Tell, run_fresh
from perfguard.session.pairing.lockstep import Limit, run_pair
from perfguard.session.pairing.processes import (
    GOOD,
    SIDES,
    Interrupts,
    PairOutcome,
    Side,
    SideProcess,
    describe,
    foreign_error,
    run_setup,
    start_process,
    starting_orders,
)
from perfguard.session.pairing.tally import Tally
from perfguard.session.pairing.worker import Followed, read_followed
from perfguard.session.pairing.worktrees import Repository, lock_in

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device

_PREFIX = "perfguard-pairs-"  # Prefix of the temporary folder, by which abandoned worktrees are known.

_ENOUGH_CORES = 8


class Answer(NamedTuple):
    """The answer of a process of one side: the results of its tests, its launches on the targets, and the reason if it
    ended early."""

    results: list[CaseResult]
    followed: Followed
    problem: str


@dataclass
class PairWorktrees:
    """Worktrees and processes of one set of process pairs. As a context manager, it removes them.

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
    interrupts: Interrupts
    tell: Tell
    starts_ahead: bool
    packages: Packages = field(default_factory=own_packages)
    toolchain: Toolchain | None = None
    _processes: list[SideProcess] = field(default_factory=list)  # All that may be alive.
    _started: int = 0  # Number of pairs whose processes have started.
    _orders: list[list[Side]] = field(default_factory=list)  # Starting orders of the next pairs.
    _processes_ahead: dict[Side, SideProcess] = field(default_factory=dict)  # The processes of the next pair.
    _lock: FileLock | None = None
    _temporary: Path = field(
        default_factory=lambda: Path(tempfile.gettempdir()).resolve() / f"{_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
    )
    _random: random.Random = field(default_factory=random.SystemRandom)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop_processes()
        if self._temporary.exists():
            self.repository.remove_worktrees(self._temporary)
        if self._lock is not None:
            self._lock.release()

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
                run_setup(self.command_of(side), side, command, self.settings.session_minutes, self.interrupts)

    def answer(
        self, request: Request, side: Side = "base", *, prefix: Sequence[str] = (), minutes: float = 0.0
    ) -> Answer:
        """Let one process of a side answer `request`, which asks for no time, within `minutes` (0: `session_minutes`).
        `prefix`: that of its command.

        Raises:
            UsageError: it has loaded code from the user's checkout in place of its worktree's.
        """
        folder = Path(tempfile.mkdtemp(prefix="answer-", dir=self._temporary))
        own, original = str(self._temporary / side), str(self.repository.root)
        request = msgspec.structs.replace(request, follow=Following(list(self.settings.targets), own, original))
        write_request(folder, request)
        command, minutes = (
            replace(self.command_of(side), prefix=tuple(prefix)),
            minutes or self.settings.session_minutes,
        )
        problem = run_fresh(command, folder, minutes, name=describe(side), good=GOOD)
        report, followed = read_answer(folder, self.slug), read_followed(folder)
        if followed.foreign:
            raise foreign_error(followed.foreign, side)
        self.toolchain = report.toolchain if report else None
        return Answer(report.results if report else [], followed, problem)

    def start(self, tally: Tally) -> None:
        """Start the processes of the first pair, if they disturb nothing, while its times are still being chosen."""
        if self.starts_ahead:
            self._processes_ahead = self._start(tally, tally.left())

    def measure(
        self,
        tally: Tally,
        tracks: Sequence[ReadingId],
        deadline: float,
        choose: Callable[[Sequence[ReadingId]], Sequence[ReadingId]] = list,
    ) -> None:
        """Measure process pairs until all of `tracks` are decided, the deadline is over, or processes died in too many
        tests to blame single ones.

        Args:
            deadline: s on the monotonic clock.
            choose: returns, of the undecided times, those that the next pair measures; none ends the series.

        Raises:
            UsageError: a worker has loaded code from the user's checkout in place of its worktree's.
        """
        started, first = time.monotonic(), tally.pairs
        # A pair that misses a time counts against it only if the one before missed it, too.
        most = 2 * MOST_PAIRS * len(tracks)
        while not tally.problem and tally.pairs - first < most:
            left = tally.left(tracks)
            chosen = list(choose(left))
            if not chosen:
                break
            some = f"{len(chosen)} of " if len(chosen) < len(left) else ""
            expected = _expected(tally.pairs - first, time.monotonic() - started, deadline)
            question = f"{some}{counted(len(left), 'time')} in question{expected}"
            self.tell(f"process pair {tally.pairs + 1}: {question}", passing=True)
            outcome, reports = self._pair(tally, left, chosen, deadline)
            tally.take(outcome, reports, set(chosen))
            spent = ", ".join(f"{seconds:.1f} s {on}" for on, seconds in outcome.seconds.items())
            self.tell(f"process pair {tally.pairs} took {sum(outcome.seconds.values()):.1f} s: {spent}", detail=True)
        self._stop_processes()

    def _pair(
        self, tally: Tally, left: Sequence[ReadingId], chosen: Collection[ReadingId], deadline: float
    ) -> tuple[PairOutcome, dict[Side, Report | None]]:
        """Measure the times `chosen` of those `left` in new processes, and return the outcome and their answers.
        Meanwhile the next pair's processes start, if they disturb nothing. They collect the tests of all that are left,
        since this pair decides which of them the next one measures."""
        processes, self._processes_ahead = self._processes_ahead or self._start(tally, left), {}
        wanted = set(chosen)

        def start_next() -> None:
            if self.starts_ahead:
                self._processes_ahead = self._start(tally, left)

        outcome = run_pair(
            [processes[side] for side in SIDES], wanted.__contains__, pair=tally.pairs + 1,
            limit=self._limit(deadline), chance=self._random, tests=tally.nodeids(chosen),
            then=start_next,
        )  # fmt: skip
        self._stop(processes.values())
        return outcome, {side: process.report(self.slug) for side, process in processes.items()}

    def _start(self, tally: Tally, left: Sequence[ReadingId]) -> dict[Side, SideProcess]:
        """Start a process of each side, which can measure the times `left`. They read nothing else: the base has
        answered before, and the run has read the working tree."""
        tests = tally.nodeids(left)
        request = Request(
            self.slug,
            tally.timers,
            # Each pair has a new order, so that after-effects of a case on the next one differ.
            tests=self._random.sample(tests, len(tests)),
            exact=False,
            unread=[WALL_TIME],  # Wall time is shown, never judged.
            kernels=tally.kernels(left),
        )
        self._started += 1
        folder = self._temporary / f"pair-{self._started}"
        folder.mkdir()
        started: dict[Side, SideProcess] = {}
        self._orders = self._orders or starting_orders(self._random)
        for side in self._orders.pop():
            start_process(self.command_of(side), side, folder / side, request, self.interrupts, self._processes)
            started[side] = self._processes[-1]
        return started

    def _limit(self, deadline: float) -> Limit:
        minutes = self.settings.session_minutes
        hang = time.monotonic() + 60 * minutes
        if hang < deadline:
            name = f"the process took longer than {minutes:g} minutes ([tool.perfguard] session_minutes)"
            return Limit(hang, name, hangs=True)
        return Limit(deadline, out_of_time(self.settings))

    def _stop(self, processes: Iterable[SideProcess]) -> None:
        for process in processes:
            process.stop()
            self._processes.remove(process)

    def _stop_processes(self) -> None:
        while self._processes:
            self._processes[-1].stop()
            self._processes.pop()
        self._processes_ahead = {}


def starts_ahead(device: Device) -> bool:
    """Whether processes may import and collect while others measure: `device` is not the processor, and there are
    enough cores for three starting processes, the measuring one, this one, and their threads."""
    return device.asynchronous and len(os.sched_getaffinity(0)) >= _ENOUGH_CORES


def out_of_time(settings: Settings) -> str:
    """The reason why no more pairs were measured."""
    return f"the {settings.pair_minutes:g} minutes for process pairs were over ([tool.perfguard] pair_minutes)"


def _expected(pairs: int, seconds: float, deadline: float) -> str:
    """`, 0:41 elapsed, about 0:20 to 3:05 to go`, after the first of the `pairs` so far."""
    if not pairs:
        return ""
    budget = max(0.0, deadline - time.monotonic())
    least, most = (min(max(1, count - pairs) * seconds / pairs, budget) for count in (LEAST_PAIRS, MOST_PAIRS))
    return f", {format_minutes(seconds)} elapsed, about {format_minutes(least)} to {format_minutes(most)} to go"
