"""What a test may declare, and what is refused at once."""

from __future__ import annotations

from typing import Any

import pytest

from perfguard import Tolerance, UsageError, Work


@pytest.mark.parametrize("given", [{"bytes": -1}, {"flop": 1.5}, {"backward_bytes": True}])
def test_work_takes_counts(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(given))):
        Work(**given)


@pytest.mark.parametrize(
    ("given", "named"),
    [({"k": 3.0}, "reason"), ({"k": 0.0, "reason": "x"}, "k=0.0"), ({"fp8_step_fraction": 2, "reason": "x"}, "0, 1")],
)
def test_a_tolerance_needs_a_reason_and_sense(given: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        Tolerance(**given)
