"""How long process pairs are asked for a time, and why one has none."""

from __future__ import annotations

import math
import random

import pytest
from msgspec.structs import replace

from perfguard.judge.pair_test import MOST_PAIRS
from perfguard.model.records import (
    Case,
    CaseResult,
    PairReading,
    Reading,
    ReadingId,
    Word,
)
from perfguard.model.units import Unit
from perfguard.session.pairing.lockstep import PairOutcome
from perfguard.session.pairing.sides import SIDES, Side
from perfguard.session.pairing.tally import Tally

TEST = "test_ops.py::test_norm"
RESULT = CaseResult(Case("ops", "norm", "test", TEST), "body 1", readings=[Reading("launches", Unit.COUNT, 1)])
EDITED = CaseResult(RESULT.case, "body 2", readings=RESULT.readings)
ROWS, COLUMNS = (ReadingId("ops", "norm/test", f"kernel_time_us[{kernel}]") for kernel in ("rows", "columns"))


def test_a_kernel_that_the_base_does_not_launch_is_given_up_at_once() -> None:
    tally = Tally({ROWS: RESULT}, family=1)
    tally.take(PairOutcome(), [ROWS])
    assert tally.left() == []
    assert tally.time(ROWS).problem == "the test does not launch it at the base, or cannot run twice"


def test_a_test_in_which_a_process_died_is_left_out_with_all_its_times() -> None:
    tally = Tally({ROWS: RESULT, COLUMNS: RESULT}, family=1)
    tally.take(PairOutcome(problem="the base: pytest was killed by SIGSEGV:\n    Fatal", deadly=TEST), [ROWS])
    assert (tally.problem, tally.left()) == ("", [])
    assert tally.time(COLUMNS).problem == "the base: pytest was killed by SIGSEGV"


def test_times_are_asked_for_test_by_test() -> None:
    call = CaseResult(Case("ops", "call", "forward", "test_ops.py::test_call"))
    time = ReadingId("ops", "call/forward", "device_time_us")
    tracks = {ROWS: RESULT, COLUMNS: RESULT, time: call}
    assert Tally(tracks, family=3).by_test(list(tracks)) == {TEST: [ROWS, COLUMNS], call.case.nodeid: [time]}


def test_a_host_time_has_no_pairs_beyond_those_of_its_device_time() -> None:
    case = CaseResult(Case("ops", "norm", "forward", TEST), "inputs")
    device, host, alone = (
        ReadingId("ops", key, metric)
        for key, metric in [
            ("norm/forward", "device_time_us"),
            ("norm/forward", "host_time_us"),
            ("rope/forward", "host_time_us"),
        ]
    )
    tally = Tally(dict.fromkeys([device, host, alone], case), family=3)
    assert tally.left() == [device, host, alone]
    tally.times[device].give_up("decided, for this test")
    assert tally.left([host]) == []
    assert tally.left() == [alone]
    assert "device time" in tally.time(host).problem


CASE = Case("suite", "double[64]", "forward", "test_suite.py::test_double[64]")
TIME = Reading("device_time_us", Unit.MICROSECONDS, 50.0, timer="queue-cold", floor=0.05)
CALL = CaseResult(CASE, inputs="float32 64,16", readings=[Reading("launches", Unit.COUNT, 1), TIME])
TRACK = ReadingId(CASE.suite, CASE.key, TIME.metric)


def measured(tally: Tally, change: float, control: float = 0.0) -> PairOutcome:
    reading = PairReading(tally.pairs + 1, change, control, 50.0, 50.0 * math.exp(change))
    return PairOutcome(readings={TRACK: reading}, timers={TRACK: dict.fromkeys(SIDES, "queue-cold")})


@pytest.mark.parametrize(("change", "word"), [(0.0, Word.PASS), (0.1, Word.SLOWER), (-0.1, Word.FASTER)])
def test_pairs_are_asked_for_until_a_time_is_decided(change: float, word: Word) -> None:
    tally, noise = Tally({TRACK: CALL}, family=1), random.Random(1)
    while tally.left():
        assert tally.left() == [TRACK]
        tally.take(measured(tally, change + noise.gauss(0, 0.002), noise.gauss(0, 0.002)), [TRACK])
    assert tally.verdicts[TRACK].word is word
    assert tally.pairs <= 4


def test_a_noisy_time_is_unresolved_after_the_most_pairs() -> None:
    tally, sign = Tally({TRACK: CALL}, family=1), 1.0
    while tally.left():
        sign = -sign
        tally.take(measured(tally, 0.02 + 0.1 * sign, -0.1 * sign), [TRACK])
    assert (tally.verdicts[TRACK].word, tally.pairs) == (Word.UNRESOLVED, MOST_PAIRS)


def test_equal_binaries_need_no_time() -> None:
    fingerprint = Reading("fingerprint", Unit.TEXT, "abc", gated=False, covers=[TIME.metric])
    same, other = (replace(CALL, readings=[replace(fingerprint, value=value), TIME]) for value in ("abc", "def"))
    for base, left in ((same, []), (other, [TRACK])):
        tally = Tally({TRACK: same}, family=1)
        tally.leave_out_unchanged({CASE.id: base})
        assert tally.left() == left


def test_another_timer_is_asked_for_once_more_and_then_told() -> None:
    tally = Tally({TRACK: CALL}, family=1)
    timers: dict[Side, str] = {"base": "graph-cold-u64", "copy": "graph-cold-u64", "work": "queue-cold"}
    while tally.left():
        tally.take(PairOutcome(timers={TRACK: timers}), [TRACK])
    assert tally.pairs == 2
    assert tally.time(TRACK).problem == "timed by graph-cold-u64 at the base, now by queue-cold"
