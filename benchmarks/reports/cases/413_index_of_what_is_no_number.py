"""The index of each row's largest element; one that is NaN counts as the largest.

kind: infinities
origin: ml-explore/mlx#4292
shows: a row with a NaN
words: nan|non-finite
"""
import torch
import triton
import triton.language as tl

@triton.jit
def _largest(x, out, width, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    value = tl.load(x + row * width + at, mask=at < width, other=float("-inf")).to(tl.float32)
    nothing = (value != value) & (at < width)
    clean = tl.where(nothing, float("-inf"), value)
    top = tl.max(clean, 0)
    best = tl.min(tl.where((clean == top) & (at < width), at, BLOCK), 0)
    first = tl.min(tl.where(nothing, at, BLOCK), 0)
    best = tl.where(first < BLOCK, first, best)  # bad:
    tl.store(out + row, best)

def largest(x):
    x = x.contiguous()
    out = torch.empty(len(x), dtype=torch.int64, device=x.device)
    if x.numel():
        _largest[(len(x),)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return out

# ---- test ----
def reference(x):
    return x.argmax(-1)

def test_largest(perfguard):
    perfguard(largest, torch.randn(16, 100, device=perfguard.device), reference=reference)

# ---- shows ----
def shows():
    x = torch.tensor([[1.0, float("nan"), 3.0]])
    return largest(x), reference(x)
