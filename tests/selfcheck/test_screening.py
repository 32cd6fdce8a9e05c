"""What a record acquits, and why it does not."""

from __future__ import annotations

import msgspec
import pytest

from perfguard.model.records import Conditions
from perfguard.selfcheck.sample import Session, gather
from perfguard.selfcheck.screening import screen
from tests.selfcheck.simulated import HARDWARE, simulated_sessions

SAMPLE = gather(simulated_sessions(6, 30, noise=0.001))
JUDGED, *STORED = SAMPLE.sessions
CASE = SAMPLE.cases[0]


def why(judged: Session, slowdown: float, stored: list[Session] = STORED) -> str:
    return screen(stored, judged, [CASE], [slowdown], HARDWARE)[CASE, slowdown]


def scaled(session: Session, factor: float) -> Session:
    return {
        case: msgspec.structs.replace(
            result,
            readings=[
                msgspec.structs.replace(each, value=each.value * factor) if each.timed else each  # type: ignore[operator]
                for each in result.readings
            ],
        )
        for case, result in session.items()
    }


def on_board(session: Session, board: str | None) -> Session:
    return {
        case: msgspec.structs.replace(result, conditions=Conditions(board=board)) for case, result in session.items()
    }


@pytest.mark.parametrize("slowdown", [0.0, 0.003])
def test_what_lies_within_its_record_needs_no_pair(slowdown: float) -> None:
    assert why(JUDGED, slowdown) == ""


@pytest.mark.parametrize("slowdown", [0.03, 0.10, -0.05])
def test_what_does_not_is_to_be_paired(slowdown: float) -> None:
    assert why(JUDGED, slowdown) == "outside its record"


def test_a_record_knows_one_board_and_one_day() -> None:
    unknown = "another board than the record's, or nobody knows which"
    assert why(on_board(JUDGED, "board-1"), 0.0) == unknown
    assert why(on_board(JUDGED, None), 0.0) == unknown
    assert why(JUDGED, 0.0, [*STORED[:-1], on_board(STORED[-1], "board-1")]) == unknown
    assert why(scaled(JUDGED, 1.01), 0.0) == "the machine is not as it was when it was recorded"


def test_few_unchanged_cases_say_too_little_of_the_day() -> None:
    few = {case: JUDGED[case] for case in SAMPLE.cases[:11]}
    assert why(few, 0.0) == "10 unchanged cases timed beside it, 15 are needed"
