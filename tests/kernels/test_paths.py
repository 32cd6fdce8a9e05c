"""What the guarded suites name as candidates: all that a table holds, and never silently none."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.paths import VARIABLE, Candidates


def table(x: torch.Tensor, candidate: int | None = None, *, first: int = 0) -> torch.Tensor:
    """An operator with two candidates from `first` on."""
    if candidate is not None and not first <= candidate < first + 2:
        raise ValueError(f"candidate: is {candidate}; may be {first} to {first + 1} here")
    return x * 2


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1")


def test_candidates_are_those_that_the_table_takes() -> None:
    assert Candidates(True, every=True)(table, torch.ones(3))() == [{"candidate": 0}, {"candidate": 1}]


def test_a_table_that_refuses_its_default_is_an_error() -> None:
    """It would have no candidates, and nothing would be checked."""
    with pytest.raises(ValueError, match=r"^candidate: is 0; may be 1 to 2 here$"):
        Candidates(True, every=True)(table, torch.ones(3), first=1)()
