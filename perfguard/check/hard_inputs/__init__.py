"""Inputs derived from those of a guarded call: values, layouts, sizes and integers that its tests do not cover.

This file imports no torch, so that `import perfguard` stays fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def derived(tensor: torch.Tensor, text: str) -> torch.Tensor:
    """The tensor that a failure names, for use in a test: `derived(x, "transposed, row 3 zero")`.

    Args:
        tensor: the input of the guarded call.
        text: the steps, as the failure prints them.

    Raises:
        UsageError: an unknown step.
    """
    from perfguard.check.hard_inputs.derivation import derived_tensor

    return derived_tensor(tensor, text)
