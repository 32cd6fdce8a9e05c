"""Attention of one head, all keys at once; values may be wider than keys.

kind: equal sizes
origin: apple/coreai-torch#117
shows: values of 32 beside keys of 16
words: argument 2|argument [0-9].*(cut|grown)|sizes?
"""
import torch
import triton
import triton.language as tl

@triton.jit
def _attend(q, k, v, out, n, scale, D: tl.constexpr, V: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at, d, e = tl.arange(0, BLOCK), tl.arange(0, D), tl.arange(0, V)
    inside = (at < n)[:, None]
    keys = tl.load(k + at[:, None] * D + d[None, :], mask=inside, other=0.0).to(tl.float32)
    s = tl.sum(keys * tl.load(q + row * D + d).to(tl.float32)[None, :], 1) * scale
    s = tl.where(at < n, s, -float("inf"))
    p = tl.exp(s - tl.max(s, 0))
    stride = V  # bad: stride = D
    values = tl.load(v + at[:, None] * stride + e[None, :], mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * V + e, tl.sum(p[:, None] * values, 0) / tl.sum(p, 0))

def attend(q, k, v):
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    widths = q.shape[1], v.shape[1]
    if any(width & (width - 1) for width in widths) or not len(k):
        raise ValueError("widths: powers of two; keys: one at least")
    out = q.new_empty(len(q), v.shape[1])
    if out.numel():
        block = triton.next_power_of_2(len(k))
        _attend[(len(q),)](q, k, v, out, len(k), q.shape[1] ** -0.5, D=widths[0], V=widths[1], BLOCK=block)
    return out

# ---- test ----
def reference(q, k, v):
    return (q @ k.T * q.shape[1] ** -0.5).softmax(-1) @ v

def test_attend(perfguard):
    q = torch.randn(24, 16, device=perfguard.device)
    k, v = torch.randn(2, 40, 16, device=perfguard.device)
    perfguard(attend, q, k, v, reference=reference)

# ---- shows ----
def shows():
    q, k, v = torch.randn(24, 16), torch.randn(40, 16), torch.randn(40, 32)
    return attend(q, k, v), reference(q, k, v)
