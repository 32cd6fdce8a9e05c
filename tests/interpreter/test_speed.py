"""The quick interpreter computes what it did: blocks that it keeps and that only look alike are not mixed up."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from perfguard.interpreter.entry import interpreting
from tests.interpreter import jit

N = 8
# Before Triton 3.9 its language, which a GPU's kernels have as well, makes a literal zero positive.
KEEPS_THE_SIGN = tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (3, 9)


@jit
def operations(x_ptr: Any, n_ptr: Any, out_ptr: Any, N: tl.constexpr) -> None:
    at = tl.arange(0, N)
    x, n = tl.load(x_ptr + at), tl.load(n_ptr + at)
    tl.store(out_ptr + at, x * 0.0)
    tl.store(out_ptr + N + at, x * -0.0)
    tl.store(out_ptr + 2 * N + at, (n + 100).to(tl.float32))  # int8, which wraps around
    tl.store(out_ptr + 3 * N + at, n.to(tl.float32) + 100)
    tl.store(out_ptr + 4 * N + at, n.to(tl.int32).to(tl.float32) / 2)
    tl.store(out_ptr + 5 * N + at, tl.sum(x[:, None] + x[None, :] * 2, axis=1))
    tl.store(out_ptr + 6 * N + at, tl.sum(x[:, None] + x[None, :] * 2, axis=0))
    tl.store(out_ptr + 7 * N + at, (1 - x) - (x - 1))


def test_numbers_of_other_signs_types_and_sides() -> None:
    x = torch.tensor([1.0, -1.0, 0.0, 2.5, -3.0, 0.5, 7.0, -0.25])
    n = torch.tensor([1, -1, 0, 27, 28, 100, 127, -128], dtype=torch.int8)
    for _ in range(2):  # the second finds what the first has kept
        out = torch.full((8, N), torch.nan)
        with interpreting():
            operations[(1,)](x, n, out, N)
        wanted = torch.stack(
            [
                x * 0.0,
                x * (-0.0 if KEEPS_THE_SIGN else 0.0),
                (n + 100).float(),
                n.float() + 100,
                n.float() / 2,
                (x[:, None] + x[None, :] * 2).sum(1),
                (x[:, None] + x[None, :] * 2).sum(0),
                (1 - x) - (x - 1),
            ]
        )
        assert torch.equal(out.view(torch.int32), wanted.view(torch.int32))


@jit
def halves(x_ptr: Any, wide_ptr: Any, back_ptr: Any, N: tl.constexpr) -> None:
    at = tl.program_id(0) * N + tl.arange(0, N)
    wide = tl.load(x_ptr + at).to(tl.float32)
    tl.store(wide_ptr + at, wide)
    tl.store(back_ptr + at, wide.to(tl.bfloat16))


def test_every_bfloat16_is_a_float32_and_back() -> None:
    x = torch.arange(1 << 16).to(torch.int16).view(torch.bfloat16)
    wide, back = torch.zeros(1 << 16), torch.zeros_like(x)
    with interpreting():
        halves[(8,)](x, wide, back, 1 << 13)
    numbers = ~x.isnan()
    assert torch.equal(wide[numbers].view(torch.int32), x.float()[numbers].view(torch.int32))
    assert torch.equal(back[numbers].view(torch.int16), x[numbers].view(torch.int16))
    assert bool((wide.isnan() & back.isnan())[~numbers].all())
