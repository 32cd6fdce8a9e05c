"""Attention of one head within a causal window of WINDOW keys.

kind: cost on hard inputs
origin: handed; as vllm-project/vllm#50776
shows: elements that 48 queries load, with a window of 20
words: work
"""
import torch
import triton
import triton.language as tl

from benchmarks.reports.seen import work

@triton.jit
def _attend(q, k, v, out, nq, nk, scale, D: tl.constexpr, BLOCK: tl.constexpr, WINDOW: tl.constexpr):
    row = tl.program_id(0)
    d = tl.arange(0, D)
    query = tl.load(q + row * D + d).to(tl.float32)
    last = row + nk - nq
    top = -float("inf")
    total = 0.0
    acc = tl.zeros([D], tl.float32)
    begin = tl.maximum(last - WINDOW + 1, 0) // BLOCK * BLOCK  # bad: begin = 0
    end = tl.minimum(last + 1, nk)  # bad: end = nk
    for start in range(begin, end, BLOCK):
        at = start + tl.arange(0, BLOCK)
        seen = (at < nk) & (at <= last) & (at > last - WINDOW)
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
        _attend[(len(q),)](q, k, v, out, len(q), len(k), q.shape[1] ** -0.5, D=q.shape[1], BLOCK=16, WINDOW=20)
    return out

# ---- test ----
def reference(q, k, v):
    ones = torch.ones(len(q), len(k), dtype=torch.bool, device=q.device)
    keep = ones.tril(len(k) - len(q)) & ~ones.tril(len(k) - len(q) - 20)
    s = (q @ k.T * q.shape[1] ** -0.5).masked_fill(~keep, -torch.inf)
    return s.softmax(-1) @ v

def test_attend(perfguard):
    q, k, v = (torch.randn(96, 16, device=perfguard.device) for _ in range(3))
    perfguard(attend, q, k, v, reference=reference)

# ---- shows ----
def shows():
    q, k, v = torch.randn(3, 48, 16)
    return work(lambda: attend(q, k, v)) < 60_000, True
