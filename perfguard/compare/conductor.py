"""The lockstep: live workers walk through the same tests, one at a time, and measure each case in turns.

Only one worker runs at any moment; the others wait with a meter in hand, or to begin. Workers that stand at
different cases, because a side lacks one or a test failed there, are brought together again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from statistics import fmean, median
from typing import NamedTuple, Protocol

from perfguard.compare.processes import SIDES, Side, describe
from perfguard.errors import UsageError
from perfguard.worker import GO, MEASURE, Announced, Measured, Ready, read_message

QUADS = 4  # a case and process pair: half of them led by the base, half by the other side
_LEAST_QUADS = 2
_MOST_WARM_UPS = 8
_MOST_TRIES = 3
_LOOK_SECONDS = 0.5  # for a message
_WARM = 0.005  # a device is warm when two rounds of blocks agree to this


class Track(NamedTuple):
    """One timed metric of one case."""

    suite: str
    key: str
    metric: str


class Player(Protocol):
    """What the conductor needs of a worker."""

    side: Side
    connection: Connection

    def ended(self) -> str:
        """Wait for the end of a process that hung up; empty if it ended in order, else what went wrong."""

    def last_words(self) -> str:
        """The end of its output, to be appended to a sentence."""


@dataclass(frozen=True)
class Difference:
    """What one process pair says about one timed metric.

    Attributes:
        change: ln(working tree / merge base), the mean over the quads.
        control: ln(second merge base / merge base), measured alike: nothing but noise and bias.
        base_us, work_us: median block, µs per call.
    """

    change: float
    control: float
    base_us: float
    work_us: float


@dataclass
class Outcome:
    """What one set of live processes found.

    Attributes:
        differences: of the metrics that were wanted and could be measured.
        timers: the timer of every metric that a side announced.
        unread: metrics that were wanted, and of which too many blocks could not be read.
        problem: why it ended early; empty if it did not.
    """

    differences: dict[Track, Difference] = field(default_factory=dict)
    timers: dict[Track, dict[Side, str]] = field(default_factory=dict)
    unread: set[Track] = field(default_factory=set)
    problem: str = ""


class _Lost(Exception):
    """A worker died or hangs; the message says which and its last words."""


def conduct(
    players: Sequence[Player],
    wanted: Callable[[Track], bool],
    *,
    minutes: float,
    progress: Callable[[Track], None],
) -> Outcome:
    """Lead one worker of each side through its tests.

    Args:
        wanted: whether a metric is still to be measured.
        minutes: how long all of it may take.
        progress: told every metric that is measured.

    Raises:
        UsageError: a worker has loaded code from the user's checkout in place of its worktree's.
    """
    lockstep = _Lockstep({player.side: player for player in players}, time.monotonic() + 60 * minutes, minutes)
    try:
        lockstep.begin()
        while not lockstep.over:
            track = lockstep.together()
            if track is None:
                for side in lockstep.choose():
                    lockstep.go(side)
                continue
            if wanted(track) and lockstep.same_timers(track):
                progress(track)
                lockstep.measure(track)
            for side in lockstep.waiting():
                if lockstep.at[side] == track:  # else its call has raised, and it went on
                    lockstep.go(side)
    except _Lost as error:
        lockstep.outcome.problem = str(error)
    return lockstep.outcome


@dataclass
class _Lockstep:
    players: Mapping[Side, Player]
    deadline: float
    minutes: float
    outcome: Outcome = field(default_factory=Outcome)
    at: dict[Side, Track | None] = field(default_factory=dict)  # None: its process has ended
    behind: dict[Side, set[Track]] = field(default_factory=dict)  # what a side has announced so far
    blocks: dict[Side, int] = field(default_factory=dict)  # measured since its announcement
    work_waits: bool = True  # whose turn it was last where nothing tells who is ahead

    @property
    def over(self) -> bool:
        return all(track is None for track in self.at.values())

    def waiting(self) -> list[Side]:
        return [side for side in SIDES if self.at.get(side) is not None]

    def together(self) -> Track | None:
        """Where all sides stand, if it is the same."""
        found = {self.at.get(side) for side in SIDES}
        if len(found) > 1:
            return None
        self.work_waits = True
        return found.pop()

    def begin(self) -> None:
        """Wait until all have collected their tests, which they may do at once; then one runs up to its first
        case, and another."""
        for side, player in self.players.items():
            message = self._hear(player)
            assert message is None or isinstance(message, Ready)
            self.at[side] = None
            self.behind[side] = set()
            if message is not None:
                self.blocks[side] = 1
                self.at[side] = Track("", "", "")
        for side in self.waiting():
            self.go(side)

    def go(self, side: Side) -> None:
        """Let one side run up to its next case, or its end. The others wait."""
        here = self.at[side]
        for _ in range(_MOST_TRIES):  # a reading needs a block
            if not self.blocks[side]:
                self._block(side, here)
        if self.at[side] is not here:
            return  # it has gone on by itself
        player = self.players[side]
        self._say(player, GO)
        self._arrive(side, self._hear(player))

    def _arrive(self, side: Side, message: Announced | Measured | Ready | None) -> None:
        self.blocks[side] = 0
        if message is None:
            self.at[side] = None
            return
        assert isinstance(message, Announced), message
        if message.foreign:
            raise UsageError(
                f"{message.foreign}: loaded by the worker of {describe(side)}, not from its worktree: both sides "
                "would measure this one file. Uninstall the editable install, or name its folder relative to the "
                "repository in pytest's pythonpath (--setup 'pip install …' would change all sides at once)"
            )
        track = Track(message.suite, message.key, message.metric)
        self.at[side] = track
        self.behind[side].add(track)
        self.outcome.timers.setdefault(track, {})[side] = message.timer

    def choose(self) -> list[Side]:
        """Who goes on where not all stand at the same metric.

        Whoever stands where another has been before; nobody else can meet it there any more. Where that tells
        nothing, one side goes ahead for what it alone has, in turns. A wrong guess costs the metric this process
        pair; the next one knows.
        """
        waiting = self.waiting()
        late = [side for side in waiting if any(self._has_left(other, self.at[side]) for other in SIDES)]
        if late:
            return late
        if len(waiting) < len(SIDES):
            return waiting
        self.work_waits = not self.work_waits
        return [side for side in waiting if (side == "work") != self.work_waits]

    def _has_left(self, side: Side, track: Track | None) -> bool:
        return track in self.behind[side] and self.at[side] != track

    def same_timers(self, track: Track) -> bool:
        return len(set(self.outcome.timers[track].values())) == 1

    def measure(self, track: Track) -> None:
        """Quads of blocks of the base and each other side: a b b a, then b a a b, so that drift cancels."""
        here = dict(self.at)
        self._warm_up(here)
        found: dict[Side, list[float]] = {"copy": [], "work": []}
        values: dict[Side, list[float]] = {side: [] for side in SIDES}
        for number in range(QUADS):
            others: tuple[Side, Side] = ("work", "copy") if number // 2 % 2 else ("copy", "work")
            for other in others:
                order: list[Side] = (
                    ["base", other, other, "base"] if number % 2 == 0 else [other, "base", "base", other]
                )
                blocks = [(side, self._block(side, here[side])) for side in order]
                logs = [(side, math.log(block)) for side, block in blocks if block]
                if len(logs) == len(order):
                    found[other].append(sum(log if side == other else -log for side, log in logs) / 2)
                for side, block in blocks:
                    values[side] += [block] if block else []
        if min(len(quads) for quads in found.values()) < _LEAST_QUADS:
            self.outcome.unread.add(track)
            return
        self.outcome.differences[track] = Difference(
            fmean(found["work"]), fmean(found["copy"]), median(values["base"]), median(values["work"])
        )

    def _warm_up(self, here: Mapping[Side, Track | None]) -> None:
        """Blocks in turn, until a round is as the one before: the device cooled down while the last side came."""
        before: list[float | None] = []
        for _ in range(_MOST_WARM_UPS):
            now = [self._block(side, here[side]) for side in SIDES]
            pairs = zip(before, now, strict=False)
            if before and all(a and b and abs(math.log(b / a)) < _WARM for a, b in pairs):
                return
            before = now

    def _block(self, side: Side, here: Track | None) -> float | None:
        """One block of a side that waits at `here`, µs per call; None where it could not be read or went on."""
        if here is None or self.at[side] is not here:
            return None
        player = self.players[side]
        self._say(player, MEASURE)
        message = self._hear(player)
        if isinstance(message, Measured):
            self.blocks[side] += message.median_us is not None
            return message.median_us
        self._arrive(side, message)  # the call raised: its test has failed, and the worker went on
        return None

    def _say(self, player: Player, what: bytes) -> None:
        try:
            player.connection.send_bytes(what)
        except OSError:
            raise _Lost(player.ended() or f"{describe(player.side)}: hung up{player.last_words()}") from None

    def _hear(self, player: Player) -> Announced | Measured | Ready | None:
        """The next message; None where the process ended in order.

        Raises:
            _Lost: it ended otherwise, or says nothing until the deadline.
        """
        # In short looks: a signal that comes just before a wait begins is handled only when that wait ends.
        while not player.connection.poll(min(_LOOK_SECONDS, max(0.0, self.deadline - time.monotonic()))):
            if time.monotonic() < self.deadline:
                continue
            raise _Lost(
                f"{describe(player.side)}: the process took longer than {self.minutes:g} minutes "
                f"([tool.perfguard] session_minutes){player.last_words()}"
            )
        try:
            return read_message(player.connection.recv_bytes())
        except (EOFError, OSError):
            problem = player.ended()
            if problem:
                raise _Lost(problem) from None
            return None
