"""The lockstep, with scripted workers in threads: who runs when, what is measured, what goes wrong."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfguard.pairing.conductor import QUADS, Outcome, Track, conduct
from perfguard.pairing.processes import SIDES, Side
from perfguard.errors import UsageError
from perfguard.pairing.worker import MEASURE, Announced, Measured, Message, Ready

TIMER = "queue-cold"


@dataclass
class Stage:
    """What all scripted workers share: who works now, and in which order blocks were measured."""

    running: set[Side] = field(default_factory=set)
    crowded: bool = False
    order: list[Side] = field(default_factory=list)
    time: int = 0

    @contextlib.contextmanager
    def turn(self, side: Side) -> Iterator[None]:
        self.running.add(side)
        self.crowded |= len(self.running) > 1
        try:
            yield
        finally:
            self.running.discard(side)


@dataclass
class Script:
    """One worker: the keys it comes to, and how long a block takes at a moment."""

    side: Side
    keys: list[str]
    stage: Stage
    block: Callable[[str, int], float | None] = lambda key, time: 50.0
    timer: str = TIMER
    foreign: str = ""
    raises_in: str = ""
    dies_at: str = ""

    def __post_init__(self) -> None:
        self.connection, self._end = Pipe()
        self.thread = threading.Thread(target=self._play, args=(self._end,), daemon=True)

    def ended(self) -> str:
        return f"{self.side} died" if self.dies_at else ""

    def last_words(self) -> str:
        return ": last words"

    def _play(self, end: Connection) -> None:
        def say(message: Message) -> None:
            self.stage.running.discard(self.side)
            end.send_bytes(msgspec.json.encode(message))

        with end, contextlib.suppress(EOFError, OSError):  # the conductor gave up
            say(Ready())
            end.recv_bytes()
            for key in self.keys:
                with self.stage.turn(self.side):
                    if key == self.dies_at:
                        return
                    say(Announced("suite", key, "time", self.timer, 0.05, self.foreign))
                self._measure(end, key, say)

    def _measure(self, end: Connection, key: str, say: Callable[[Message], None]) -> None:
        while end.recv_bytes() == MEASURE:
            if key == self.raises_in:
                return
            with self.stage.turn(self.side):
                self.stage.order.append(self.side)
                self.stage.time += 1
                say(Measured(self.block(key, self.stage.time)))


def track(key: str) -> Track:
    return Track("suite", key, "time")


def play(*scripts: Script, minutes: float = 1.0, wanted: Callable[[Track], bool] = lambda track: True) -> Outcome:
    for script in scripts:
        script.thread.start()
    try:
        return conduct(scripts, wanted, minutes=minutes, progress=lambda track: None)
    finally:
        for script in scripts:
            script.connection.close()


def scripts(common: list[str], **work: object) -> list[Script]:
    stage = Stage()
    made = [Script(side, list(common), stage) for side in SIDES]
    for name, value in work.items():
        setattr(made[2], name, value)
    return made


def test_a_slower_side_is_measured_in_turns() -> None:
    players = scripts(["a", "b"], block=lambda key, time: 55.0 if key == "b" else 50.0)
    outcome = play(*players)
    assert set(outcome.differences) == {track("a"), track("b")}
    assert outcome.differences[track("a")].change == 0
    assert outcome.differences[track("b")].change == pytest.approx(math.log(1.1))
    assert outcome.differences[track("b")].control == 0
    assert (outcome.differences[track("b")].base_us, outcome.differences[track("b")].work_us) == (50.0, 55.0)
    assert not players[0].stage.crowded
    quads = players[0].stage.order[-8 * QUADS :]
    assert quads[:8] == ["base", "copy", "copy", "base", "base", "work", "work", "base"]
    assert quads[8:16] == ["copy", "base", "base", "copy", "work", "base", "base", "work"]


def test_drift_cancels() -> None:
    """A device that gets slower all the time makes no side slower."""
    players = scripts(["a"])
    for player in players:
        player.block = lambda key, time: 50.0 * math.exp(0.004 * time)
    difference = play(*players).differences[track("a")]
    assert difference.change == pytest.approx(0, abs=1e-12)
    assert difference.control == pytest.approx(0, abs=1e-12)


def test_what_is_not_wanted_gets_one_block_and_no_more() -> None:
    players = scripts(["a", "b"])
    outcome = play(*players, wanted=lambda found: False)
    assert outcome.differences == {}
    assert players[0].stage.order == [*SIDES, *SIDES]


@given(
    extra=st.lists(st.sampled_from("xyz"), max_size=2, unique=True),
    gone=st.integers(0, 7),
    at=st.integers(0, 8),
)
def test_sides_that_part_come_together_again(extra: list[str], gone: int, at: int) -> None:
    """A case more or less on one side costs the cases round it this process pair, never the rest."""
    keys = list("abcdefgh")
    other = [key for key in keys if key != keys[gone]]
    other[at:at] = extra
    outcome = play(*scripts(keys, keys=other))
    assert outcome.problem == ""
    assert set(outcome.differences) <= {track(key) for key in keys}
    assert len(outcome.differences) >= len(keys) - 1 - 3 * (len(extra) + 1)
    assert all(difference.change == 0 for difference in outcome.differences.values())


def test_another_timer_is_not_compared_but_told() -> None:
    outcome = play(*scripts(["a"], timer="graph-cold-u64-r12"))
    assert outcome.differences == {}
    assert outcome.timers[track("a")] == {"base": TIMER, "copy": TIMER, "work": "graph-cold-u64-r12"}


def test_blocks_that_cannot_be_read_are_told() -> None:
    outcome = play(*scripts(["a", "b"], block=lambda key, time: None if key == "a" else 50.0))
    assert outcome.unread == {track("a")}
    assert set(outcome.differences) == {track("b")}


def test_a_call_that_raises_while_it_is_measured_costs_only_its_case() -> None:
    outcome = play(*scripts(["a", "b", "c"], raises_in="b"))
    assert set(outcome.differences) == {track("a"), track("c")}
    assert outcome.problem == ""


def test_a_side_that_ends_early_in_order_does_not_stop_the_others() -> None:
    outcome = play(*scripts(["a", "b"], keys=["a"]))
    assert set(outcome.differences) == {track("a")}
    assert set(outcome.timers[track("b")]) == {"base", "copy"}


def test_a_worker_that_dies_ends_it_and_what_came_before_stands() -> None:
    outcome = play(*scripts(["a", "b", "c"], dies_at="b"))
    assert set(outcome.differences) == {track("a")}
    assert outcome.problem == "work died"


def test_a_worker_that_hangs_is_named_with_the_limit() -> None:
    players = scripts(["a"])
    hanging = threading.Event()
    players[1].block = lambda key, time: 50.0 if hanging.wait(60) else None
    outcome = play(*players, minutes=0.005)
    hanging.set()
    assert "second merge base: the process took longer than 0.005 minutes" in outcome.problem
    assert outcome.problem.endswith(": last words")


def test_foreign_code_is_refused() -> None:
    with pytest.raises(UsageError, match=r"kernel \(/repo/kernel.py\): loaded by the worker of the working tree"):
        play(*scripts(["a"], foreign="kernel (/repo/kernel.py)"))
