"""The lockstep: live workers walk through the same tests, one at a time, and measure each case in turns.

One worker runs at any moment; the others wait. Workers at different cases are brought together again.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median, stdev
from typing import NoReturn

import msgspec

from perfguard.measure.timers.blocks import AGREEING, agree, lowest
from perfguard.model.records import PairReading, ReadingId
from perfguard.session.pairing.processes import SIDES, PairOutcome, Side, SideProcess, describe, foreign_error
from perfguard.session.pairing.worker import (
    Announced,
    Entered,
    Go,
    Left,
    Measure,
    Measured,
    Message,
    Opened,
    Order,
    Ready,
)

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


_START = ReadingId("", "", "")  # Position of a side that has collected its tests.


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


def run_pair(
    processes: Sequence[SideProcess],
    wanted: Callable[[ReadingId], bool],
    *,
    pair: int,
    limit: Limit,
    chance: random.Random,
    tests: Collection[str] | None = None,
    then: Callable[[], None] = lambda: None,
) -> PairOutcome:
    """Run one worker of each side through its tests, in lockstep.

    Args:
        wanted: whether a metric is still to be measured.
        pair: number of this process pair, from 1.
        limit: time limit of the whole.
        chance: draws the order of the sides, which must differ between pairs.
        tests: the tests to run, without those that a side lacks; None: all that each side has collected.
        then: called once all sides have the device.

    Raises:
        UsageError: a worker has loaded code from the user's checkout in place of its worktree's.
    """
    lockstep = _Lockstep({process.side: process for process in processes}, pair, limit, chance, tests)
    outcome = lockstep.outcome
    try:
        with outcome.spending("starting"):
            lockstep.begin()
        then()
        sides = lockstep.waiting()
        while True:
            with outcome.spending("tests"):
                for side in sides:
                    lockstep.go(side)
            if lockstep.over:
                break
            track = lockstep.common_position()
            if track is None:
                sides = lockstep.next_sides()
                continue
            if wanted(track) and len(set(outcome.timers[track].values())) == 1:
                with outcome.spending("measuring"):
                    lockstep.measure(track)
            sides = [side for side in lockstep.waiting() if lockstep.at[side] == track]  # The other calls raised.
        with outcome.spending("ending"):
            lockstep.end()
    except _Lost as error:
        outcome.problem = str(error)
    return outcome


@dataclass
class _Lockstep:
    processes: Mapping[Side, SideProcess]
    pair: int
    limit: Limit
    chance: random.Random
    chosen: Collection[str] | None = None  # Tests to run; None: all.
    outcome: PairOutcome = field(default_factory=PairOutcome)
    at: dict[Side, ReadingId | None] = field(default_factory=dict)  # None: its process has ended.
    inside: dict[Side, str] = field(default_factory=dict)  # Latest test that a side has begun.
    behind: dict[Side, set[ReadingId]] = field(default_factory=dict)  # Metrics that a side has announced so far.
    near: dict[ReadingId, float] = field(default_factory=dict)  # How far the lowest blocks of a time must agree.
    base_timers: dict[str, str] = field(default_factory=dict)  # Timers of the base's present case, by metric.
    work_waits: bool = True  # Whether the working tree waits, if it is unknown which side is ahead.

    @property
    def over(self) -> bool:
        return all(track is None for track in self.at.values())

    def waiting(self) -> list[Side]:
        return [side for side in SIDES if self.at.get(side) is not None]

    def common_position(self) -> ReadingId | None:
        """The common position of all sides; None if they differ."""
        positions = {self.at.get(side) for side in SIDES}
        if len(positions) > 1:
            return None
        self.work_waits = True
        return positions.pop()

    def begin(self) -> None:
        """Wait until all sides have collected their tests, and then until they have opened the device; they may do both
        at once."""
        order: list[str] = []
        for side, process in self.processes.items():
            message = self._next_message(process)
            self.at[side] = None
            self.behind[side] = set()
            if isinstance(message, Ready):
                self.outcome.uncollected[side] = message.uncollected
                self.outcome.tests[side] = set(message.tests)
                order = message.tests
                self.at[side] = _START
        tests = None
        # A test that one side lacks would separate the sides, and cost neighbouring tests this pair.
        if self.chosen is not None:
            common = set.intersection(*self.outcome.tests.values()) if len(self.outcome.tests) == len(SIDES) else set()
            tests = [test for test in order if test in common and test in self.chosen]
        for side in self.waiting():
            self._send(self.processes[side], Go(tests=tests))
        for side in self.waiting():
            if not isinstance(self._next_message(self.processes[side]), Opened):
                self.at[side] = None

    def end(self) -> None:
        """Wait until all processes have ended, which they may do at once."""
        for process in self.processes.values():
            if problem := process.ended():
                self._lose(process, problem)

    def go(self, side: Side) -> None:
        """Let one side run up to its next case or its end, while the others wait."""
        process = self.processes[side]
        base = self.at.get("base")
        self._send(process, Go() if side == "base" or base is None else Go(base.suite, base.key, self.base_timers))
        self._arrive(side, self._next_message(process))

    def _arrive(self, side: Side, message: Message | None) -> None:
        if message is None or isinstance(message, Left):
            self.at[side] = None
            return
        assert isinstance(message, Announced), message
        if message.foreign:
            raise foreign_error(message.foreign, side)
        track = ReadingId(message.suite, message.key, message.metric)
        if side == "base":
            here = self.at[side]
            same_case = here is not None and here.case == track.case
            self.base_timers = {**(self.base_timers if same_case else {}), message.metric: message.timer}
        self.at[side] = track
        self.behind[side].add(track)
        if message.near:
            self.near[track] = message.near
        self.outcome.timers.setdefault(track, {})[side] = message.timer

    def next_sides(self) -> list[Side]:
        """The sides that go on if not all are at the same metric.

        A side goes on if another side has already passed its position, since the two can no longer meet there. If there
        is no such side, the sides go ahead by turns, past metrics that one side alone may have. A wrong guess costs the
        metric this process pair; the next pair avoids it.
        """
        waiting = self.waiting()
        late = [side for side in waiting if any(self._has_passed(other, self.at[side]) for other in SIDES)]
        if late:
            return late
        if len(waiting) < len(SIDES):
            return waiting
        self.work_waits = not self.work_waits
        return [side for side in waiting if (side == "work") != self.work_waits]

    def _has_passed(self, side: Side, track: ReadingId | None) -> bool:
        return track in self.behind[side] and self.at[side] != track

    def measure(self, track: ReadingId) -> None:
        """Measure one time on all sides."""
        if track in self.near:
            self._measure_floor(track)
        else:
            self._measure_rounds(track)

    def _measure_floor(self, track: ReadingId) -> None:
        """Measure blocks of all sides by turns, in random order, until each side has reached its floor. So every side
        has had a chance of a moment without other work on the processor."""
        here = dict(self.at)
        times: dict[Side, list[float]] = {side: [] for side in SIDES}
        until = time.monotonic() + _FLOOR_SECONDS * _FLOOR_NEAR / self.near[track]
        for tried in itertools.count(1):
            for side in self.chance.sample(SIDES, len(SIDES)):
                block = self._block(side, here[side])
                if block is not None and block.us:
                    times[side].append(block.us)
            if any(self.at[side] is not here[side] for side in SIDES):
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
        here = dict(self.at)
        self._warm_up(here)
        changes: dict[Side, list[float]] = {"copy": [], "work": []}
        values: dict[Side, list[Measured]] = {side: [] for side in SIDES}
        until = time.monotonic() + _MOST_ROUNDS_SECONDS
        for tried in itertools.count(1):
            order = self.chance.sample(SIDES, len(SIDES))
            logs: dict[Side, list[float]] = {side: [] for side in SIDES}
            for side in (*order, *reversed(order)):
                block = self._block(side, here[side])
                if block is not None and block.us:
                    values[side].append(block)
                    logs[side].append(math.log(block.us))
            if all(len(of_side) == _THERE_AND_BACK for of_side in logs.values()):
                for side, differences in changes.items():
                    differences.append(fmean(logs[side]) - fmean(logs["base"]))
            if any(self.at[side] is not here[side] for side in SIDES):
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

    def _warm_up(self, here: Mapping[Side, ReadingId | None]) -> None:
        """Measure blocks by turns until a round equals the one before, since the device cooled down while it waited for
        the last side."""
        before: list[float | None] = []
        until = time.monotonic() + _WARM_UP_SECONDS
        for _ in range(_MOST_WARM_UPS):
            if before and time.monotonic() > until:
                return
            blocks = [self._block(side, here[side]) for side in SIDES]
            now = [None if block is None else block.us for block in blocks]
            pairs = zip(before, now, strict=False)
            if before and all(a and b and abs(math.log(b / a)) < _WARM for a, b in pairs):
                return
            before = now

    def _block(self, side: Side, here: ReadingId | None) -> Measured | None:
        """One block of a side that waits at `here`; None if it could not be read, or if the side went on."""
        if here is None or self.at[side] is not here:
            return None
        process = self.processes[side]
        self._send(process, Measure())
        message = self._next_message(process)
        if isinstance(message, Measured):
            return message if message.us is not None else None
        self._arrive(side, message)  # The call raised, so its test failed and the worker went on.
        return None

    def _send(self, process: SideProcess, what: Order) -> None:
        try:
            process.connection.send_bytes(msgspec.json.encode(what))
        except OSError:
            self._lose(process, process.ended() or f"{describe(process.side)}: hung up{process.last_output()}")

    def _next_message(self, process: SideProcess) -> Message | None:
        """The next message that needs an answer; None if the process ended in order.

        Raises:
            _Lost: the process ended otherwise, or the limit is over.
        """
        while isinstance(message := self._receive(process), Entered):
            self.inside[process.side] = message.test
        return message

    def _receive(self, process: SideProcess) -> Message | None:
        # Each wait is short, since a signal just before a wait is handled only when that wait ends.
        while not process.connection.poll(min(_POLL_SECONDS, self.limit.left)):
            if not self.limit.left:
                if self.limit.hangs:
                    raise _Lost(f"{describe(process.side)}: {self.limit.name}{process.last_output()}")
                raise _Lost(self.limit.name)
        try:
            message: Message = msgspec.json.decode(process.connection.recv_bytes(), type=Message)
            return message
        except (EOFError, OSError):
            if problem := process.ended():
                self._lose(process, problem)
            return None

    def _lose(self, process: SideProcess, problem: str) -> NoReturn:
        test = self.inside.get(process.side)
        self.outcome.lost = (process.side, test) if test else None
        raise _Lost(problem) from None


def _certain(changes: Sequence[float]) -> bool:
    return stdev(changes) <= _CERTAIN * math.sqrt(len(changes))


def _mhz(blocks: Sequence[Measured]) -> float | None:
    known = [block.mhz for block in blocks if block.mhz]
    return median(known) if known else None


def paired(pair: int, base: float, copy: float, work: float) -> PairReading:
    """The result of a process pair with one value for each side, µs."""
    return PairReading(pair, math.log(work / base), math.log(copy / base), base, work)
