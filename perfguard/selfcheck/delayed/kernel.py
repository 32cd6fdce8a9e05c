"""The Triton kernel of `call.delayed`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK = 128  # one element a thread: only the chain takes time


# Without this, lengths of 1 or divisible by 16 would get binaries of their own.
@triton.jit(do_not_specialize=["steps", "tail"])  # type: ignore[untyped-decorator]
def chain_kernel(x_ptr, out_ptr, count, steps, tail, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """out = the chain from 2x towards x; each link depends on the previous one."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    x = tl.load(x_ptr + at, mask=inside, other=0.0)
    half = 0.5 * x
    y = x + x
    for _ in range(steps):
        y = 0.5 * y + half
    for _ in range(tail):  # the delay
        y = 0.5 * y + half
    tl.store(out_ptr + at, y, mask=inside)


def launch(x: torch.Tensor, steps: int, tail: int) -> torch.Tensor:
    """out (N,) float32 for x (N,) float32, contiguous, on a GPU."""
    out = torch.empty_like(x)
    chain_kernel[(triton.cdiv(x.numel(), _BLOCK),)](x, out, x.numel(), steps, tail, BLOCK=_BLOCK, num_warps=4)
    return out
