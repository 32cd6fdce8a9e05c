"""A session judged as a whole, and its suspects confirmed by fresh processes: those that read the case have a say."""

from __future__ import annotations

import pytest

from perfguard.judge import confirm, judge_session
from perfguard.records import Word
from tests.lanes.reports import HARDWARE, SUITE, TOOLCHAIN, entries, key, measured, remembered

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
