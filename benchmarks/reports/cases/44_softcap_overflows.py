"""Scores capped by a tanh, as attention with a soft cap has them.

kind: large finite inputs
origin: vllm-project/vllm#56578
shows: scores of 5,000
words: values|non-finite|NaN|finite
"""
import torch
import triton
import triton.language as tl

@triton.jit
def _cap(x, out, n, cap, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    z = tl.load(x + at, mask=at < n, other=0.0).to(tl.float32) / cap
    t = 1.0 - 2.0 / (tl.exp(2 * z) + 1.0)  # bad: t = (tl.exp(z) - tl.exp(-z)) / (tl.exp(z) + tl.exp(-z))
    tl.store(out + at, cap * t, mask=at < n)

def softcap(x, cap=50.0):
    x = x.contiguous()
    out = torch.empty_like(x)
    if x.numel():
        _cap[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), cap, BLOCK=256)
    return out

# ---- test ----
def reference(x, cap=50.0):
    return cap * torch.tanh(x / cap)

def test_softcap(perfguard):
    perfguard(softcap, torch.randn(16, 40, device=perfguard.device) * 30, reference=reference)

# ---- shows ----
def shows():
    x = torch.randn(16, 40) * 5_000
    return softcap(x), reference(x)
