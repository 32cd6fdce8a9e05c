"""The lockstep, with scripted workers in threads: who runs when, what is measured, what goes wrong."""

from __future__ import annotations

import contextlib
import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfguard.model.errors import UsageError
from perfguard.model.records import ReadingId
from perfguard.session.pairing import lockstep
from perfguard.session.pairing.lockstep import Limit, PairOutcome, run_pair
from perfguard.session.pairing.sides import SIDES, Side, describe
from perfguard.session.pairing.worker import Announced, Entered, Go, Left, Measure, Measured, Message, Order, Ready

TIMER = "queue-cold"
METRICS = ("time", "host time")
ROUNDS = 3


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
    """One worker: the tests it has, each of one case with its times, and how long a block takes at a moment."""

    side: Side
    keys: list[str]
    stage: Stage
    block: Callable[[str, int], float | None] = lambda key, time: 50.0
    timer: str = TIMER
    foreign: str = ""
    raises_in: str = ""
    dies_at: str = ""
    mhz: float | None = None
    near: float = 0.0
    lacks: tuple[str, ...] = ()  # metrics
    known: list[tuple[list[ReadingId], dict[str, str]]] = field(default_factory=list)  # stops and the base's timers

    def __post_init__(self) -> None:
        self.connection, self._end = Pipe()
        self.thread = threading.Thread(target=self._play, args=(self._end,), daemon=True)

    @property
    def name(self) -> str:
        return describe(self.side)

    def wait(self, minutes: float, why: str) -> str:
        return f"{self.side} died" if self.dies_at else ""

    def last_output(self) -> str:
        return ": last words"

    def _play(self, end: Connection) -> None:
        def say(message: Message) -> None:
            self.stage.running.discard(self.side)
            end.send_bytes(msgspec.json.encode(message))

        with end, contextlib.suppress(EOFError, OSError):  # the parent gave up
            say(Ready(self.keys))
            for key in self._hear(end).tests:
                say(Entered(key))
                self._hear(end)
                if key == self.dies_at:
                    return
                for metric in METRICS:
                    if metric in self.lacks or ReadingId("suite", key, metric) not in self.known[-1][0]:
                        continue
                    with self.stage.turn(self.side):
                        say(Announced(track(key, metric), self.timer, self.foreign, self.near))
                    if self._raised(end, key, say):
                        break
            say(Left())

    def _raised(self, end: Connection, key: str, say: Callable[[Message], None]) -> bool:
        while isinstance(self._hear(end, Measure), Measure):
            if key == self.raises_in:
                return True
            with self.stage.turn(self.side):
                self.stage.order.append(self.side)
                self.stage.time += 1
                say(Measured(self.block(key, self.stage.time), self.mhz))
        return False

    def _hear(self, end: Connection, *also: type[Measure]) -> Any:
        order: Order = msgspec.json.decode(end.recv_bytes(), type=Order)
        if isinstance(order, Go):
            self.known.append((order.stops, order.timers))
        else:
            assert isinstance(order, also)
        return order


def track(key: str, metric: str = "time") -> ReadingId:
    return ReadingId("suite", key, metric)


def play(
    *scripts: Script,
    limit: float = 60.0,
    hangs: bool = True,
    wanted: Mapping[str, Sequence[ReadingId]] | None = None,
    seed: int = 1,
) -> PairOutcome:
    for script in scripts:
        script.thread.start()
    try:
        until = Limit(time.monotonic() + limit, "the limit is over", hangs)
        processes: Any = {script.side: script for script in scripts}
        wanted = wanted or {key: [track(key)] for key in scripts[0].keys}
        return run_pair(processes, wanted, pair=1, limit=until, chance=random.Random(seed))
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
    processes = scripts(["a", "b"], block=lambda key, time: 55.0 if key == "b" else 50.0, mhz=1700.0)
    for process in processes[:2]:
        process.mhz = 1800.0
    outcome = play(*processes)
    assert (outcome.readings[track("a")].base_mhz, outcome.readings[track("a")].work_mhz) == (1800.0, 1700.0)
    assert set(outcome.readings) == {track("a"), track("b")}
    assert outcome.readings[track("a")].change == 0
    assert outcome.readings[track("b")].change == pytest.approx(math.log(1.1))
    assert outcome.readings[track("b")].control == 0
    assert (outcome.readings[track("b")].base_us, outcome.readings[track("b")].work_us) == (50.0, 55.0)
    assert not processes[0].stage.crowded
    blocks = processes[0].stage.order[-6 * ROUNDS :]
    for at in range(0, 6 * ROUNDS, 6):  # there and back
        assert blocks[at : at + 6] == blocks[at : at + 6][::-1]
        assert set(blocks[at : at + 6]) == set(SIDES)


def test_who_comes_first_is_drawn() -> None:
    def first(seed: int) -> tuple[Side, ...]:
        processes = scripts(["a"])
        play(*processes, seed=seed)
        return tuple(processes[0].stage.order[-6 * ROUNDS :][:3])

    assert len({first(seed) for seed in range(40)}) == 6


def test_long_blocks_are_not_warmed_up_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block of an observed test is a run of it, and its times may never agree as closely as those of one call."""
    for seconds, rounds in ((60.0, 8), (0.0, 1)):
        monkeypatch.setattr(lockstep, "_WARM_UP_SECONDS", seconds)
        processes = scripts(["a"], block=lambda key, time: 50.0 + time % 7)
        play(*processes)
        assert len(processes[0].stage.order) == 3 * rounds + 6 * ROUNDS


def test_a_clock_that_wavers_gets_more_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until their mean is certain, or time is over. Where the clock is steady, or is none, three rounds are enough."""
    monkeypatch.setattr(lockstep, "_WARM_UP_SECONDS", 0.0)
    warm = 3

    def rounds(spread: float, mhz: float | None) -> tuple[float, float]:
        noise = random.Random(2)
        processes = scripts(["a"])
        for process in processes:
            process.block, process.mhz = lambda key, time: 50.0 * math.exp(noise.gauss(0, spread)), mhz
        found = play(*processes).readings[track("a")]
        return (len(processes[0].stage.order) - warm) / 6, found.change

    count, change = rounds(0.02, 1500.0)
    assert 10 < count < 200
    assert abs(change) < 3 * lockstep._CERTAIN
    assert rounds(0.02, None)[0] == ROUNDS
    assert rounds(0.003, 1500.0)[0] == ROUNDS
    monkeypatch.setattr(lockstep, "_MOST_ROUNDS_SECONDS", 0.0)
    assert rounds(0.02, 1500.0)[0] == ROUNDS


def test_a_round_that_could_not_be_read_is_measured_again() -> None:
    processes = scripts(["a"], block=lambda key, time: None if time == 20 else 50.0)
    assert play(*processes).readings[track("a")].change == 0
    never = play(*scripts(["a", "b"], block=lambda key, time: None if key == "a" else 50.0))
    assert (set(never.readings), never.unread) == ({track("b")}, {track("a")})


def test_the_others_are_told_the_base_s_timers_before_they_choose_theirs() -> None:
    processes = scripts(["a", "b"])
    play(*processes)
    base, copy, work = processes
    assert all(not timers for _, timers in base.known)
    for other in (copy, work):
        known = [known for known in other.known if known[1]]
        assert known == [([track(key)], {"time": TIMER}) for key in "ab"]


def test_a_test_that_one_side_lacks_is_left_out_on_all() -> None:
    outcome = play(
        *scripts(["b", "a"], keys=["new", "a", "b"]), wanted={key: [track(key)] for key in ("a", "b", "new")}
    )
    assert set(outcome.readings) == {track("a"), track("b")}


def test_processes_that_started_ahead_run_no_more_than_is_still_asked() -> None:
    """What their pair is asked was decided after they had collected."""
    outcome = play(*scripts(["a", "b", "c"]), wanted={"b": [track("b")]})
    assert set(outcome.readings) == {track("b")}


def test_seconds_are_told_apart() -> None:
    spent = play(*scripts(["a"])).seconds
    assert [*spent] == ["starting", "tests", "measuring", "ending"]
    assert min(spent.values()) > 0


def test_drift_cancels() -> None:
    """A device that gets slower all the time makes no side slower."""
    processes = scripts(["a"])
    for process in processes:
        process.block = lambda key, time: 50.0 * math.exp(0.004 * time)
    difference = play(*processes).readings[track("a")]
    assert difference.change == pytest.approx(0, abs=1e-12)
    assert difference.control == pytest.approx(0, abs=1e-12)


def test_where_the_lowest_count_all_sides_wait_for_a_quiet_moment() -> None:
    """Other work makes most blocks two or three times as long; the sides never share a burst."""
    processes = scripts(["a"])
    for process in processes:
        process.near = 0.01
        chance = random.Random(process.side)
        us = 55.0 if process.side == "work" else 50.0
        process.block = lambda key, time, us=us, chance=chance: (
            us * (1 if chance.random() < 0.2 else chance.uniform(2, 3))
        )
    difference = play(*processes).readings[track("a")]
    assert difference.change == pytest.approx(math.log(1.1))
    assert difference.control == 0
    assert (difference.base_us, difference.work_us) == (50.0, pytest.approx(55.0))


@pytest.mark.parametrize("readable", [1.0, 0.5])
def test_a_floor_is_read_though_its_blocks_last_longer_than_the_search(
    readable: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a host time of milliseconds: three blocks of each side are enough, agree or not."""
    monkeypatch.setattr(lockstep, "_FLOOR_SECONDS", 0.0)
    processes = scripts(["a"])
    for process in processes:
        process.near = 0.05
        process.block = lambda key, time: 50.0 + 10 * time if time % 10 < 10 * readable else None
    outcome = play(*processes)
    assert set(outcome.readings) == {track("a")}
    assert len(processes[0].stage.order) == 9 if readable == 1 else 9 < len(processes[0].stage.order) <= 27


def test_a_floor_of_which_no_block_can_be_read_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lockstep, "_FLOOR_SECONDS", 0.0)
    processes = scripts(["a"])
    for process in processes:
        process.near = 0.05
        process.block = lambda key, time: None
    outcome = play(*processes)
    assert (outcome.readings, outcome.unread) == ({}, {track("a")})
    assert len(processes[0].stage.order) == 27


def test_what_is_not_wanted_is_not_measured() -> None:
    processes = scripts(["a", "b"])
    outcome = play(*processes, wanted={"a": [], "b": [track("b", "host time")]})
    assert set(outcome.readings) == {track("b", "host time")}


@given(lacks=st.fixed_dictionaries({side: st.sets(st.sampled_from(METRICS)) for side in SIDES}))
def test_sides_that_part_meet_again_at_the_next_test(lacks: dict[Side, set[str]]) -> None:
    """What the base lacks costs no other time. What another side lacks costs those behind it in its test."""
    processes = scripts(["a", "b"])
    for process in processes:
        process.lacks = tuple(lacks[process.side])
    outcome = play(*processes, wanted={key: [track(key, metric) for metric in METRICS] for key in "ab"})
    assert outcome.problem == ""
    everywhere = set(METRICS).difference(*lacks.values())
    assert {found.metric for found in outcome.readings} <= everywhere
    if lacks["copy"] | lacks["work"] <= lacks["base"]:
        assert len(outcome.readings) == 2 * len(everywhere)
    if "time" in everywhere:
        assert {track("a"), track("b")} <= outcome.readings.keys()


def test_another_timer_is_not_compared_but_told() -> None:
    outcome = play(*scripts(["a"], timer="graph-cold-u64-r12"))
    assert outcome.readings == {}
    assert outcome.timers[track("a")] == {"base": TIMER, "copy": TIMER, "work": "graph-cold-u64-r12"}


def test_a_call_that_raises_while_it_is_measured_costs_only_its_case() -> None:
    outcome = play(*scripts(["a", "b", "c"], raises_in="b"))
    assert set(outcome.readings) == {track("a"), track("c")}
    assert outcome.problem == ""


def test_a_worker_that_dies_ends_it_and_what_came_before_stands() -> None:
    outcome = play(*scripts(["a", "b", "c"], dies_at="b"))
    assert set(outcome.readings) == {track("a")}
    assert (outcome.problem, outcome.deadly) == ("work died", "b")


def test_a_worker_that_hangs_is_named_with_the_limit() -> None:
    processes = scripts(["a"])
    hanging = threading.Event()
    processes[1].block = lambda key, time: 50.0 if hanging.wait(60) else None
    outcome = play(*processes, limit=0.3)
    hanging.set()
    assert outcome.problem == "the second checkout of the base: the limit is over: last words"


def test_where_only_the_time_is_over_nobody_is_blamed() -> None:
    processes = scripts(["a", "b"])
    waiting = threading.Event()
    processes[1].block = lambda key, time: 50.0 if key == "a" or waiting.wait(60) else None
    outcome = play(*processes, limit=0.5, hangs=False)
    waiting.set()
    assert (outcome.problem, outcome.deadly) == ("the limit is over", "")
    assert set(outcome.readings) == {track("a")}


def test_foreign_code_is_refused() -> None:
    with pytest.raises(UsageError, match=r"kernel \(/repo/kernel.py\): loaded by the worker of the working tree"):
        play(*scripts(["a"], foreign="kernel (/repo/kernel.py)"))
