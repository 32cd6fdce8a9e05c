"""A session judged as a whole, and its suspects confirmed by fresh processes: those that read the case have a say."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from perfguard.judge import confirm, judge_session
from perfguard.records import CaseResult, Word
from tests.lanes.reports import CODE, HARDWARE, SUITE, TOOLCHAIN, entries, key, measured, remembered

LANE = remembered({"f": entries(), "g": entries()}).lane(HARDWARE, TOOLCHAIN, 3)
F = (SUITE, key("f"))


def test_what_one_session_suspects_waits_for_fresh_processes() -> None:
    judged = judge_session([measured("f", 55.0), measured("g")], LANE)
    assert {name: verdicts[-1].word for name, verdicts in judged.items()} == {
        F: Word.SUSPECT, (SUITE, key("g")): Word.PASS
    }  # fmt: skip


@pytest.mark.parametrize(
    ("sessions", "problem", "word", "said"),
    [
        ([[measured("f", 55.0)]] * 3, "", Word.SLOWER, "in 3 fresh processes"),
        ([[measured("f", 55.0)], [measured("g")], [measured("f", 55.0)]], "", Word.UNRESOLVED, "only 2 of 3"),
        ([[measured("f", 55.0)]], "it crashed", Word.UNRESOLVED, "it crashed"),
        ([], "", Word.UNRESOLVED, "only 0 of 3"),
    ],
)
def test_confirming(sessions: list, problem: str, word: Word, said: str) -> None:  # type: ignore[type-arg]
    suspect = measured("f", 55.0)
    verdicts = confirm([suspect], [suspect, measured("g")], LANE, sessions, 3, problem)
    assert set(verdicts) == {F}
    assert verdicts[F][-1].word is word
    assert said in verdicts[F][-1].reason


def test_controls_that_a_fresh_process_only_timed_still_tell_a_slow_machine() -> None:
    """Their code was seen to be unchanged in the session before; five of them are enough."""
    names = [f"control_{number}" for number in range(5)]
    held = {"f": entries()} | {name: entries(code=CODE) for name in names}
    lane = remembered(held).lane(HARDWARE, TOOLCHAIN, 3)
    suspect = measured("f", 55.0)
    session = [suspect, *(measured(name, code=CODE) for name in names)]
    slow_machine = [suspect, *(times_only(name, 55.0) for name in names)]
    quiet_machine = [suspect, *(times_only(name, 50.0) for name in names)]
    for fresh, word in ((slow_machine, Word.UNRESOLVED), (quiet_machine, Word.SLOWER)):
        assert confirm([suspect], session, lane, [fresh] * 3, 3)[F][-1].word is word


def times_only(name: str, us: float) -> CaseResult:
    result = measured(name, us)
    return replace(result, readings=[reading for reading in result.readings if reading.timed])
