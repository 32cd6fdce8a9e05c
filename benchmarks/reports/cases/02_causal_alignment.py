"""Causal attention of one head: the last query stands at the last key, as in decoding with a cache.

kind: equal sizes
origin: handed; as jax-ml/jax#24491
shows: 16 queries beside 48 keys
words: argument [0-9].*(cut|grown)|quer|keys|sizes
"""
import torch
import triton
import triton.language as tl

@triton.jit
def _attend(q, k, v, out, nq, nk, scale, D: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    d = tl.arange(0, D)
    query = tl.load(q + row * D + d).to(tl.float32)
    last = row + nk - nq  # bad: last = row
    top = -float("inf")
    total = 0.0
    acc = tl.zeros([D], tl.float32)
    for start in range(0, nk, BLOCK):
        at = start + tl.arange(0, BLOCK)
        seen = (at < nk) & (at <= last)
        keys = tl.load(k + at[:, None] * D + d[None, :], mask=(at < nk)[:, None], other=0.0).to(tl.float32)
        s = tl.where(seen, tl.sum(keys * query[None, :], 1) * scale, -1e30)
        new = tl.maximum(top, tl.max(s, 0))
        p = tl.where(seen, tl.exp(s - new), 0.0)
        fade = tl.exp(top - new)
        values = tl.load(v + at[:, None] * D + d[None, :], mask=(at < nk)[:, None], other=0.0).to(tl.float32)
        acc = acc * fade + tl.sum(p[:, None] * values, 0)
        total = total * fade + tl.sum(p, 0)
        top = new
    tl.store(out + row * D + d, acc / total)

def attend(q, k, v):
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    if len(k) < len(q):
        raise ValueError("more queries than keys")
    if q.shape[1] & (q.shape[1] - 1) or q.shape[1] < 16:
        raise ValueError("head dimension: a power of two, 16 at least")
    out = torch.empty_like(q)
    if len(q):
        _attend[(len(q),)](q, k, v, out, len(q), len(k), q.shape[1] ** -0.5, D=q.shape[1], BLOCK=32)
    return out

# ---- test ----
def reference(q, k, v):
    keep = torch.ones(len(q), len(k), dtype=torch.bool, device=q.device).tril(len(k) - len(q))
    s = (q @ k.T * q.shape[1] ** -0.5).masked_fill(~keep, -torch.inf)
    return s.softmax(-1) @ v

def test_attend(perfguard):
    q, k, v = (torch.randn(48, 16, device=perfguard.device) for _ in range(3))
    perfguard(attend, q, k, v, reference=reference)

# ---- shows ----
def shows():
    q, k, v = torch.randn(16, 16), torch.randn(48, 16), torch.randn(48, 16)
    return attend(q, k, v), reference(q, k, v)
