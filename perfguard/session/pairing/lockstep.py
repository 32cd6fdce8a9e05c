"""The lockstep: live workers go through the same tests and measure each time in turns. The parent names test and time.

One worker runs at any moment; the others wait. The base goes first, up to a time in question; the other sides follow it
to that time. All sides wait for each other at the beginning of each test.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from statistics import fmean, median, stdev
from typing import NoReturn

import msgspec

from perfguard.measure.timers.blocks import AGREEING, agree, lowest
from perfguard.model.records import PairReading, ReadingId
from perfguard.session.child_process import Child
from perfguard.session.pairing.sides import SIDES, Side, foreign_error
from perfguard.session.pairing.worker import Announced, Entered, Go, Left, Measure, Measured, Message, Order, Ready

_ROUNDS = 3  # Least rounds of blocks for a case and process pair.
# At the power limit a clock varies by 2 % between blocks, so three rounds of long calls are too few. More follow until
# the standard error of their mean is this small, or this many seconds are over.
_CERTAIN, _MOST_ROUNDS_SECONDS = 0.003, 3.0
_THERE_AND_BACK = 2  # Blocks of each side in a round.
_MOST_WARM_UPS = 8
_WARM_UP_SECONDS = 2.0  # A block may be a run of a whole test.
_MOST_TRIES = 3
_POLL_SECONDS = 0.5  # Longest single wait for a message.
_WARM = 0.005  # A device is warm when two rounds of blocks agree to this.
# Longest search for a floor that must agree to 1 %, since bursts of other work on a processor last seconds. A coarser
# floor is reached sooner.
_FLOOR_SECONDS, _FLOOR_NEAR = 4.0, 0.01
_END_MINUTES = 1.0  # The longest wait for the end of a process that has run its tests.


@dataclass(frozen=True)
class Limit:
    """The time to stop: `deadline`, s on the monotonic clock. `name` describes the limit in messages. `hangs`: a
    process that reaches the limit hangs; otherwise only the time for all pairs is over."""

    deadline: float
    name: str
    hangs: bool = False

    @property
    def left(self) -> float:
        """The time left, in seconds."""
        return max(0.0, self.deadline - time.monotonic())


class _Lost(Exception):
    """A worker died, with the end of its output in the message, or the time for all pairs is over."""


@dataclass
class PairOutcome:
    """The results of one process pair.

    Attributes:
        readings: results of the times that could be measured.
        timers: the timer of every time that a side announced.
        unread: times with too many unreadable blocks.
        problem: reason for an early end, otherwise empty.
        deadly: node id of the test in which a process died; empty if none did, or if it is unknown.
        seconds: the pair's seconds by activity: `starting` (imports, collection, the device), `tests` (between two
            times), `measuring`, `ending`.
    """

    readings: dict[ReadingId, PairReading] = field(default_factory=dict)
    timers: dict[ReadingId, dict[Side, str]] = field(default_factory=dict)
    unread: set[ReadingId] = field(default_factory=set)
    problem: str = ""
    deadly: str = ""
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    @contextlib.contextmanager
    def spending(self, on: str) -> Iterator[None]:
        """Count the seconds inside as spent on this activity."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[on] += time.monotonic() - started


@dataclass
class SideProcess(Child):
    """The live process of one side, and the connection to it."""

    connection: Connection = field(kw_only=True)

    def stop(self) -> None:
        self.connection.close()
        super().stop()


def run_pair(
    processes: Mapping[Side, SideProcess],
    wanted: Mapping[str, Sequence[ReadingId]],
    *,
    pair: int,
    limit: Limit,
    chance: random.Random,
    then: Callable[[], None] = lambda: None,
) -> PairOutcome:
    """Run one worker of each side through its tests, in lockstep.

    Args:
        wanted: node id of a test -> the times to be measured in it. Tests that a side lacks are left out.
        pair: number of this process pair, from 1.
        limit: time limit of the whole.
        chance: draws the order of the sides, which must differ between pairs.
        then: called once all sides have the device.

    Raises:
        UsageError: a worker has loaded code from the user's checkout in place of its worktree's.
    """
    lockstep = _Lockstep(processes, pair, limit, chance)
    outcome = lockstep.outcome
    try:
        with outcome.spending("starting"):
            tests = lockstep.begin([*wanted])
        then()
        for test in tests:
            lockstep.run(test, wanted[test])
        with outcome.spending("ending"):
            for side in SIDES:
                lockstep.end(side)
    except _Lost as error:
        outcome.problem = str(error)
    return outcome


@dataclass
class _Lockstep:
    processes: Mapping[Side, SideProcess]
    pair: int
    limit: Limit
    chance: random.Random
    outcome: PairOutcome = field(default_factory=PairOutcome)
    inside: dict[Side, str] = field(default_factory=dict)  # The test that a side has reached; absent at its end.
    at: dict[Side, ReadingId | None] = field(default_factory=dict)  # The time at which it waits; None: at none.
    near: dict[ReadingId, float] = field(default_factory=dict)  # How far the lowest blocks of a time must agree.

    def begin(self, tests: Sequence[str]) -> list[str]:
        """Wait until all sides have collected their tests, and then until they have opened the device and wait for the
        first one; they may do both at once. Returns the tests that all sides have, in the order of their request."""
        collected = []
        for side in SIDES:
            message = self._next_message(side)
            collected.append(message.tests if isinstance(message, Ready) else [])
        common = [test for test in collected[0] if test in tests and all(test in own for own in collected)]
        for side in SIDES:
            self._send(side, Go(tests=common))
        for side in SIDES:
            self._arrive(side, self._next_message(side))
        return common

    def run(self, test: str, times: Sequence[ReadingId]) -> None:
        """Let all sides run a test, and measure the times that the base comes to."""
        followers = [side for side in SIDES if side != "base"]
        while self.inside.get("base") == test:
            with self.outcome.spending("tests"):
                self.go("base", Go([*times]))
                track = self.at["base"] if self.inside.get("base") == test else None
                stops = [] if track is None else [track]
                case, known = track and track.case, self.outcome.timers.items()
                timers = {each.metric: on["base"] for each, on in known if each.case == case}
                for side in followers:
                    if self.inside.get(side) == test:
                        self.go(side, Go(stops, timers))
            if track is not None and all(self.at[side] == track for side in SIDES) and self.has_one_timer(track):
                with self.outcome.spending("measuring"):
                    self.measure(track)
        with self.outcome.spending("tests"):
            for side in followers:  # The base's call raised, or the base has ended.
                if self.inside.get(side) == test:
                    self.go(side, Go())

    def has_one_timer(self, track: ReadingId) -> bool:
        """Whether all sides that have come to a time read it with the same timer."""
        return len(set(self.outcome.timers[track].values())) == 1

    def go(self, side: Side, order: Go) -> None:
        """Let one side run up to a time, the next test or its end, while the others wait."""
        self._send(side, order)
        self._arrive(side, self._next_message(side))

    def _arrive(self, side: Side, message: Message | None) -> None:
        self.at[side] = None
        if message is None or isinstance(message, Left):
            self.inside.pop(side, None)
        elif isinstance(message, Entered):
            self.inside[side] = message.test
        elif isinstance(message, Announced):
            if message.foreign:
                raise foreign_error(message.foreign, side)
            self.at[side] = message.time
            if message.near:
                self.near[message.time] = message.near
            self.outcome.timers.setdefault(message.time, {})[side] = message.timer

    def end(self, side: Side) -> None:
        """Wait for the end of a process that has run its tests or has hung up."""
        if problem := self.processes[side].wait(_END_MINUTES, " to end after its tests"):
            self._lose(side, problem)

    def measure(self, track: ReadingId) -> None:
        """Measure one time on all sides."""
        if track in self.near:
            self._measure_floor(track)
        else:
            self._measure_rounds(track)

    def _measure_floor(self, track: ReadingId) -> None:
        """Measure blocks of all sides by turns, in random order, until each side has reached its floor. So every side
        has had a chance of a moment without other work on the processor."""
        times: dict[Side, list[float]] = {side: [] for side in SIDES}
        until = time.monotonic() + _FLOOR_SECONDS * _FLOOR_NEAR / self.near[track]
        for tried in itertools.count(1):
            for side in self.chance.sample(SIDES, len(SIDES)):
                block = self._block(side, track)
                if block is not None and block.us:
                    times[side].append(block.us)
            if any(self.at[side] != track for side in SIDES):
                return  # A call raised, and its side went on.
            if all(agree(blocks, self.near[track]) for blocks in times.values()):
                break
            # For millisecond calls the minimum number of blocks already exceeds the time limit.
            enough = min(map(len, times.values())) >= AGREEING or tried >= _MOST_TRIES * AGREEING
            if enough and time.monotonic() >= until:
                break
        if min(map(len, times.values())) < AGREEING:
            self.outcome.unread.add(track)
            return
        base, copy, work = (median(lowest(times[side])) for side in SIDES)
        self.outcome.readings[track] = paired(self.pair, base, copy, work)

    def _measure_rounds(self, track: ReadingId) -> None:
        """Measure rounds of blocks, there and back (b c w w c b), so that drift cancels, in random order of sides."""
        self._warm_up(track)
        changes: dict[Side, list[float]] = {"copy": [], "work": []}
        values: dict[Side, list[Measured]] = {side: [] for side in SIDES}
        until = time.monotonic() + _MOST_ROUNDS_SECONDS
        for tried in itertools.count(1):
            order = self.chance.sample(SIDES, len(SIDES))
            logs: dict[Side, list[float]] = {side: [] for side in SIDES}
            for side in (*order, *reversed(order)):
                block = self._block(side, track)
                if block is not None and block.us:
                    values[side].append(block)
                    logs[side].append(math.log(block.us))
            if all(len(of_side) == _THERE_AND_BACK for of_side in logs.values()):
                for side, differences in changes.items():
                    differences.append(fmean(logs[side]) - fmean(logs["base"]))
            if any(self.at[side] != track for side in SIDES):
                break
            if len(changes["work"]) < _ROUNDS:
                if tried == _MOST_TRIES * _ROUNDS:
                    break
            elif _mhz(values["base"]) is None or time.monotonic() > until or all(map(_certain, changes.values())):
                break
        if len(changes["work"]) < _ROUNDS:
            self.outcome.unread.add(track)
            return
        base, work = values["base"], values["work"]
        self.outcome.readings[track] = PairReading(
            self.pair,
            fmean(changes["work"]),
            fmean(changes["copy"]),
            median(block.us for block in base if block.us),
            median(block.us for block in work if block.us),
            _mhz(base),
            _mhz(work),
        )

    def _warm_up(self, track: ReadingId) -> None:
        """Measure blocks by turns until a round equals the one before, since the device cooled down while it waited for
        the last side."""
        before: list[float | None] = []
        until = time.monotonic() + _WARM_UP_SECONDS
        for _ in range(_MOST_WARM_UPS):
            if before and time.monotonic() > until:
                return
            blocks = [self._block(side, track) for side in SIDES]
            now = [None if block is None else block.us for block in blocks]
            pairs = zip(before, now, strict=False)
            if before and all(a and b and abs(math.log(b / a)) < _WARM for a, b in pairs):
                return
            before = now

    def _block(self, side: Side, track: ReadingId) -> Measured | None:
        """One block of a side that waits at `track`; None if it could not be read, or if the side went on."""
        if self.at[side] != track:
            return None
        self._send(side, Measure())
        message = self._next_message(side)
        if isinstance(message, Measured):
            return message if message.us is not None else None
        self._arrive(side, message)  # The call raised, so its test failed and the worker went on.
        return None

    def _send(self, side: Side, order: Order) -> None:
        try:
            self.processes[side].connection.send_bytes(msgspec.json.encode(order))
        except OSError:
            self.end(side)
            self._lose(side, f"{self.processes[side].name}: hung up{self.processes[side].last_output()}")

    def _next_message(self, side: Side) -> Message | None:
        """The next message; None if the process ended in order.

        Raises:
            _Lost: the process ended otherwise, or the limit is over.
        """
        process = self.processes[side]
        # Each wait is short, since a signal just before a wait is handled only when that wait ends.
        while not process.connection.poll(min(_POLL_SECONDS, self.limit.left)):
            if not self.limit.left:
                if self.limit.hangs:
                    raise _Lost(f"{process.name}: {self.limit.name}{process.last_output()}")
                raise _Lost(self.limit.name)
        try:
            message: Message = msgspec.json.decode(process.connection.recv_bytes(), type=Message)
            return message
        except (EOFError, OSError):
            self.end(side)
            return None

    def _lose(self, side: Side, problem: str) -> NoReturn:
        self.outcome.deadly = self.inside.get(side, "")
        raise _Lost(problem) from None


def _certain(changes: Sequence[float]) -> bool:
    return stdev(changes) <= _CERTAIN * math.sqrt(len(changes))


def _mhz(blocks: Sequence[Measured]) -> float | None:
    known = [block.mhz for block in blocks if block.mhz]
    return median(known) if known else None


def paired(pair: int, base: float, copy: float, work: float) -> PairReading:
    """The result of a process pair with one value for each side, µs."""
    return PairReading(pair, math.log(work / base), math.log(copy / base), base, work)
