"""Sums of tokens by expert, added by atomics in any order.

kind: correct
origin: Dao-AILab/flash-attention#414
shows: sums within their roundings
words: -
"""
import torch
import triton
import triton.language as tl

from perfguard import ids

@triton.jit
def _add(x, expert, out, cols, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    v = tl.load(x + row * cols + at, mask=at < cols, other=0.0)
    tl.atomic_add(out + tl.load(expert + row) * cols + at, v, mask=at < cols)

def sums(x, expert):
    x, expert = x.contiguous(), expert.contiguous()
    out = x.new_zeros(8, x.shape[1])
    if x.numel():
        _add[(len(x),)](x, expert, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return out

# ---- test ----
def reference(x, expert):
    return x.new_zeros(8, x.shape[1]).index_add(0, expert, x)

def test_sums(perfguard):
    x = torch.randn(60, 40, device=perfguard.device)
    expert = torch.randint(8, (60,), device=perfguard.device)
    perfguard(sums, x, ids(expert, 8), reference=reference)

# ---- shows ----
def shows():
    x, expert = torch.randn(60, 40), torch.randint(8, (60,))
    return sums(x, expert), reference(x, expert)
