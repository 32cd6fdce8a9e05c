"""A value and a product added, with one broadcast shape for all three.

kind: broadcasts
origin: flagos-ai/FlagGems#1778
shows: a value of one row
words: dim|broadcast|size
"""
import torch
import triton
import triton.language as tl

@triton.jit
def _addcmul(x, a, b, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    product = tl.load(a + at, mask=inside, other=0.0) * tl.load(b + at, mask=inside, other=0.0)
    tl.store(out + at, tl.load(x + at, mask=inside, other=0.0) + product, mask=inside)

def addcmul(x, a, b):
    x, a, b = torch.broadcast_tensors(x, a, b)  # bad: a, b = a.expand_as(x), b.expand_as(x)
    x, a, b = x.contiguous(), a.contiguous(), b.contiguous()
    out = torch.empty_like(x)
    if out.numel():
        _addcmul[(triton.cdiv(out.numel(), 256),)](x, a, b, out, out.numel(), BLOCK=256)
    return out

# ---- test ----
def test_addcmul(perfguard):
    x, a, b = (torch.randn(6, 10, 12, device=perfguard.device) for _ in range(3))
    perfguard(addcmul, x, a, b, reference=torch.addcmul)

# ---- shows ----
def shows():
    x, a, b = torch.randn(1, 5), torch.randn(3, 5), torch.randn(3, 5)
    return addcmul(x, a, b), torch.addcmul(x, a, b)
