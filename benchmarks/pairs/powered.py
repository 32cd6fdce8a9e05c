"""A product whose power depends on the values in it: of zeros no bit flips. The pairs' project holds a copy.

The same kernel makes the same cycles of each; at the power limit of a GPU the clock falls, and with it the speed.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from perfguard.testing import fake

WIDTH = 8192


@functools.cache
def factors(percent: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Two matrices (WIDTH, WIDTH) bf16: of the first so many rows are random numbers, spread evenly, and the second is
    unless the first has none; the rest is zeros."""
    first, second = torch.zeros(2, WIDTH, WIDTH, dtype=torch.bfloat16, device=device)
    if percent:
        rows = torch.arange(WIDTH * percent // 100, device=device) * 100 // percent
        first[rows] = torch.randn(len(rows), WIDTH, dtype=torch.bfloat16, device=device)
        second.normal_()
    return first, second


def product(x: Tensor, percent: int) -> Tensor:
    """x (WIDTH,) bf16, and a product beside it that changes nothing in it."""
    if fake.current() is not None:
        fake.launch("product", us=500.0 * (1 + percent / 1000), binary="product")  # as if its clock fell
        return x.clone()
    first, second = factors(percent, x.device)
    return x + 0 * (first @ second)[0]
