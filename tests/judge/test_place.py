"""What a place does to each case alone: certain, or known to be another board's doing."""

from __future__ import annotations

import pytest

from perfguard.judge.common import Common
from perfguard.judge.place import BOARD_DEGREES, OTHER_BOARD, Place, place_of


def test_what_cases_scatter_beyond_their_noise_is_the_places_doing() -> None:
    """Of little more than noise only where the board is known to be another one; and sessions tell together."""
    little, much = (Common(0.0, 0.001, 0.005, 20, seen=seen, expected=0.002**2) for seen in (0.0025**2, 0.01**2))
    assert place_of([little], elsewhere=False) == Place()
    told = 0.37 * 19
    beside = ((BOARD_DEGREES * OTHER_BOARD**2 + told * 0.0015**2) / (BOARD_DEGREES + told)) ** 0.5
    assert place_of([little], elsewhere=True).apart == pytest.approx(beside)
    assert place_of([little], elsewhere=True).degrees == pytest.approx(BOARD_DEGREES + told)
    assert place_of([little] * 20, elsewhere=False).apart == pytest.approx(0.0015)
    here = place_of([much], elsewhere=False)
    assert here.apart == pytest.approx((0.01**2 - 0.002**2) ** 0.5)
    assert here.degrees == pytest.approx(told)
    assert "1.0 %" in here.note
    assert "another board or day" in here.note


def test_with_nobody_to_ask_another_board_is_what_boards_are() -> None:
    assert place_of([], elsewhere=False) == Place()
    assert place_of([], elsewhere=True).apart == OTHER_BOARD
