"""Layouts keep the values, and differ in what a kernel may have taken for granted."""

from __future__ import annotations

import pytest
import torch

from perfguard import derived
from perfguard.check.hard_inputs import derivation as layouts
from perfguard.check.hard_inputs.derivation import LAYOUTS, layouts_of


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name != "expanded"])
def test_the_values_stay(name: str) -> None:
    # One byte an element: 4 GiB of addresses, of which a few pages are used.
    given = torch.arange(3 * 1 * 5, dtype=torch.uint8).view(3, 1, 5)
    made = derived(given, name)
    assert torch.equal(made, given)
    assert (made.stride(), made.storage_offset()) != (given.stride(), given.storage_offset())


def test_rows_far_apart_wrap_into_their_own_buffer() -> None:
    made = derived(torch.arange(15, dtype=torch.uint8).view(3, 5), "far apart")
    last = 2 * made.stride(0)
    assert last >= 2**31
    assert made.storage_offset() + last - 2**32 >= 0
    assert made.storage_offset() + last + 5 <= made.untyped_storage().nbytes()


def test_rows_are_far_apart_on_a_gpu_with_room_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class OnGpu(torch.Tensor):
        @property
        def device(self) -> torch.device:  # type: ignore[override]
            return torch.device("cuda")

    given = torch.zeros(4, 8, dtype=torch.bfloat16).as_subclass(OnGpu)
    free = 2**33 * 4
    monkeypatch.setattr(layouts, "free_bytes", lambda _: free + 1)
    assert "far apart" in layouts_of(given, False)
    assert "far apart" not in layouts_of(given[:1], False)
    assert "far apart" not in layouts_of(torch.zeros(4, 8), False)
    monkeypatch.setattr(layouts, "free_bytes", lambda _: free)
    assert "far apart" not in layouts_of(given, False)
