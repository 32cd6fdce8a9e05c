"""Rows doubled, each by one program.

kind: addresses and grids
origin: databricks/megablocks#186
shows: row 60,000 of 40,960 columns: element 2.5 * 10^9
words: int32|32[- ]bit|address
"""
import torch
import triton
import triton.language as tl

from benchmarks.reports.seen import furthest

@triton.jit
def _double(x, out, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)  # bad: row = tl.program_id(0)
    for start in range(0, cols, BLOCK):
        at = start + tl.arange(0, BLOCK)
        v = tl.load(x + row * cols + at, mask=at < cols, other=0.0)
        tl.store(out + row * cols + at, 2 * v, mask=at < cols)

def double(x):
    x = x.contiguous()
    out = torch.empty_like(x)
    if x.numel():
        _double[(len(x),)](x, out, x.shape[1], BLOCK=64)
    return out

# ---- test ----
def test_double(perfguard):
    perfguard(double, torch.randn(24, 100, device=perfguard.device), reference=lambda x: 2 * x)

# ---- shows ----
def shows():
    x = torch.empty(1)
    return furthest(_double, 60_000, x, x, cols=40_960, BLOCK=4096) // 40_960, 60_000
