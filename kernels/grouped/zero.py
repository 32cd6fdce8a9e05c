"""Zeros where PyTorch's grouped product leaves memory as it was: the size of that is known to the device alone.

Formula: out[offs[-1]:] = 0 for rows, out[e] = 0 for every empty group e. A program with nothing to clear ends after
one look at `offs`, so that a full buffer costs a launch and no traffic.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _clear(out_ptr, first, end, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Elements [first, end), shared among all programs."""
    lane = tl.arange(0, BLOCK)
    zeros = tl.zeros((BLOCK,), out_ptr.dtype.element_ty)
    for at in range(first + tl.program_id(0) * BLOCK, end, tl.num_programs(0) * BLOCK):
        tl.store(out_ptr + at + lane, zeros, mask=at + lane < end)


@triton.jit(do_not_specialize=["groups", "rows"])
def clear_unused_rows(out_ptr, offs_ptr, groups, rows, outer, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """out (R, N) contiguous, from row offs[-1] on."""
    used = tl.load(offs_ptr + groups - 1, mask=groups > 0, other=0)
    used = tl.minimum(tl.maximum(used, 0), rows)
    width = tl.cast(outer, tl.int64)
    _clear(out_ptr, used * width, rows * width, BLOCK)


@triton.jit(do_not_specialize=["groups"])
def clear_empty_groups(out_ptr, offs_ptr, groups, elements, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """out (E, K, N) contiguous, K * N `elements` a group."""
    size = tl.cast(elements, tl.int64)
    for group in range(0, groups):
        start = tl.load(offs_ptr + group - 1, mask=group > 0, other=0)
        if tl.load(offs_ptr + group) <= start:
            _clear(out_ptr, group * size, (group + 1) * size, BLOCK)
