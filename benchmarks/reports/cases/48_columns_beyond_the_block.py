"""Softmax of rows, each by one program.

kind: thresholds
origin: facebookresearch/xformers#785
shows: 1,100 columns
words: dim 1|columns|sizes?
"""
import torch
import triton
import triton.language as tl

@triton.jit
def _softmax(x, out, cols, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    v = tl.load(x + row * cols + at, mask=at < cols, other=-float("inf")).to(tl.float32)
    e = tl.exp(v - tl.max(v, 0))
    tl.store(out + row * cols + at, e / tl.sum(e, 0), mask=at < cols)

def softmax(x):
    x = x.contiguous()
    out = torch.empty_like(x)
    block = triton.next_power_of_2(x.shape[1])  # bad: block = min(triton.next_power_of_2(x.shape[1]), 1024)
    if x.numel():
        _softmax[(len(x),)](x, out, x.shape[1], BLOCK=block)
    return out

# ---- test ----
def test_softmax(perfguard):
    perfguard(softmax, torch.randn(16, 100, device=perfguard.device), reference=lambda x: x.softmax(-1))

# ---- shows ----
def shows():
    x = torch.randn(4, 1100)
    return softmax(x), x.softmax(-1)
