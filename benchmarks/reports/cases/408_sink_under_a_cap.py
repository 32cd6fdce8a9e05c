"""Attention of one query for each head with a sink: a logit without a value. Scores may be capped.

kind: two options at once
origin: ROCm/rocm-libraries#12229
shows: a cap beside sinks
words: cap
"""
import math

import torch
import triton
import triton.language as tl

@triton.jit
def _attend(q, k, v, sinks, out, keys, width, scale, cap,
            CAPPED: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    head, lane = tl.program_id(0), tl.arange(0, WIDTH)
    inside = lane < width
    query = tl.load(q + head * width + lane, mask=inside, other=0.0).to(tl.float32)
    sink = tl.load(sinks + head).to(tl.float32)
    # Without a cap, scores stay as they are, and their scale is a part of the exponential.
    if CAPPED:
        factor, top = 1.4426950408889634, sink  # bad: factor, top = 1.4426950408889634, sink / scale
    else:
        factor, top = scale * 1.4426950408889634, sink / scale
    total = 1.0
    made = tl.zeros((WIDTH,), dtype=tl.float32)
    for start in range(0, keys, BLOCK):
        at = start + tl.arange(0, BLOCK)
        place = (head * keys + at[:, None]) * width + lane[None, :]
        seen = (at[:, None] < keys) & inside[None, :]
        scores = tl.sum(tl.load(k + place, mask=seen, other=0.0).to(tl.float32) * query[None, :], 1)
        if CAPPED:
            bent = tl.exp(-2.0 * tl.abs(scores * scale / cap))
            bent = (1.0 - bent) / (1.0 + bent)
            scores = cap * tl.where(scores < 0, -bent, bent)
        scores = tl.where(at < keys, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 0))
        weights, kept = tl.exp2((scores - higher) * factor), tl.exp2((top - higher) * factor)
        total = total * kept + tl.sum(weights, 0)
        value = tl.load(v + place, mask=seen, other=0.0).to(tl.float32)
        made = made * kept + tl.sum(weights[:, None] * value, 0)
        top = higher
    tl.store(out + head * width + lane, made / total, mask=inside)

def attend(q, k, v, sinks, softcap=0.0):
    if k.shape != v.shape or k.shape[::2] != q.shape or len(sinks) != len(q):
        raise ValueError("keys and values have to have one shape, and each head a sink")
    q, k, v, sinks = q.contiguous(), k.contiguous(), v.contiguous(), sinks.contiguous()
    out = torch.zeros_like(q)
    if out.numel():
        heads, width = q.shape
        _attend[(heads,)](
            q, k, v, sinks, out, k.shape[1], width, 1 / math.sqrt(width), softcap,
            CAPPED=softcap > 0, WIDTH=triton.next_power_of_2(width), BLOCK=32,
        )
    return out

# ---- test ----
def reference(q, k, v, sinks, softcap=0.0):
    scores = torch.einsum("hd,hnd->hn", q, k) / math.sqrt(q.shape[-1])
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    weights = torch.cat([scores, sinks[:, None]], 1).softmax(-1)[:, :-1]
    return torch.einsum("hn,hnd->hd", weights, v)

def test_attend(perfguard):
    q = torch.randn(4, 32, device=perfguard.device)
    k, v = torch.randn(2, 4, 70, 32, device=perfguard.device)
    perfguard(attend, q, k, v, torch.randn(4, device=perfguard.device), reference=reference)

# ---- shows ----
def shows():
    q, k, v, sinks = torch.randn(2, 8), torch.randn(2, 9, 8), torch.randn(2, 9, 8), torch.randn(2)
    return attend(q, k, v, sinks, 2.0), reference(q, k, v, sinks, 2.0)
