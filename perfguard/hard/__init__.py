"""Inputs derived from those of a guarded call: values, layouts, sizes and integers that nobody wrote a test for.

This file imports no torch: `import perfguard` must stay cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def derived(tensor: torch.Tensor, text: str) -> torch.Tensor:
    """The tensor that a failure names, to keep it as a test: `derived(x, "transposed, row 3 zero")`.

    Args:
        tensor: the input as the guarded call has it.
        text: the steps, as the failure prints them.

    Raises:
        UsageError: a step that there is not.
    """
    from perfguard.hard.derivation import derived_tensor

    return derived_tensor(tensor, text)
