"""Tokens in reverse order, written to where the caller says, which may be where they come from.

kind: aliases
origin: pytorch/pytorch#198031
shows: rows that are turned where they lie
words: alias|same|argument [01]
"""
import torch
import triton
import triton.language as tl

@triton.jit
def _turned(source, target, rows, width, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(source + row * width + at, mask=at < width)
    tl.store(target + (rows - 1 - row) * width + at, values, mask=at < width)

def turned(source, target):
    if not (source.is_contiguous() and target.is_contiguous() and source.shape == target.shape):
        raise ValueError("rows: contiguous, of one shape")
    if source.numel():
        source = source.clone() if source.data_ptr() == target.data_ptr() else source  # bad:
        rows, width = source.shape
        _turned[(rows,)](source, target, rows, width, BLOCK=triton.next_power_of_2(width))

# ---- test ----
def reference(source, target):
    target.copy_(source.flip(0))

def test_turned(perfguard):
    source, target = (torch.randn(24, 96, device=perfguard.device) for _ in range(2))
    perfguard(turned, source, target, reference=reference, mutates=(1,))

# ---- shows ----
def shows():
    x = torch.randn(4, 8)
    got, want = x.clone(), x.clone()
    turned(got, got)
    reference(want, want)
    return got, want
