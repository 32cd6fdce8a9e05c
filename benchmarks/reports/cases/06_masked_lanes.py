"""Sum of squares of each row.

kind: masked lanes
origin: handed; as flagos-ai/FlagGems#3716
shows: lanes without a value hold NaN
words: mask
"""
import torch
import triton
import triton.language as tl

from benchmarks.reports.seen import masked_lanes_hold_nan

@triton.jit
def _energy(x, out, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    v = tl.load(x + row * cols + at, mask=at < cols, other=0.0)  # bad: v = tl.load(x + row * cols + at, mask=at < cols)
    tl.store(out + row, tl.sum(v.to(tl.float32) * v.to(tl.float32), 0))

def energy(x):
    x = x.contiguous()
    out = torch.empty(len(x), device=x.device)
    _energy[(len(x),)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return out

# ---- test ----
def test_energy(perfguard):
    x = torch.randn(16, 100, device=perfguard.device)
    perfguard(energy, x, reference=lambda x: x.square().sum(-1))

# ---- shows ----
def shows():
    x = torch.randn(16, 100)
    with masked_lanes_hold_nan():
        return energy(x), x.square().sum(-1)
