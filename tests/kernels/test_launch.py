"""Launches that are prepared once: each takes the binary that Triton would take for its arguments."""

from __future__ import annotations

from tests.kernels import elsewhere
from tests.nursery import Nursery


def test_a_prepared_launch_takes_triton_s_binary(nursery: Nursery) -> None:
    """For pointers that are aligned and not; dtypes; numbers that are 1, divide by 16, are wide or negative."""
    found = elsewhere.compiled(nursery, "launch_kinds")
    assert len({one["own"] for one in found}) > 8, "the arguments are hardly told apart"
    for one in found:
        assert one["prepared"] == one["own"], one["arguments"]
        assert one["hooked"] == 1, "who lists launches has to see each"
