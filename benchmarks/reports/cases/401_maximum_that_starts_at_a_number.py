"""Attention of one query for each head, keys in blocks, with a running maximum.

kind: large finite inputs
origin: flashinfer-ai/flashinfer#4267
shows: scores that are all below -50,000
words: argument [01]|times|shifted|large
"""
import torch
import triton
import triton.language as tl

@triton.jit
def _attend(q, k, v, out, keys, width, scale, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    head, lane = tl.program_id(0), tl.arange(0, WIDTH)
    inside = lane < width
    query = tl.load(q + head * width + lane, mask=inside, other=0.0).to(tl.float32)
    top, total = float("-inf"), 0.0  # bad: top, total = -50000.0, 0.0
    made = tl.zeros((WIDTH,), dtype=tl.float32)
    for start in range(0, keys, BLOCK):
        at = start + tl.arange(0, BLOCK)
        place = (head * keys + at[:, None]) * width + lane[None, :]
        seen = (at[:, None] < keys) & inside[None, :]
        key = tl.load(k + place, mask=seen, other=0.0).to(tl.float32)
        scores = tl.where(at < keys, tl.sum(key * query[None, :], 1) * scale, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 0))
        weights, kept = tl.exp(scores - higher), tl.exp(top - higher)
        total = total * kept + tl.sum(weights, 0)
        value = tl.load(v + place, mask=seen, other=0.0).to(tl.float32)
        made = made * kept + tl.sum(weights[:, None] * value, 0)
        top = higher
    tl.store(out + head * width + lane, made / tl.maximum(total, 1e-30), mask=inside)

def attend(q, k, v):
    heads, width = q.shape
    if k.shape != v.shape or k.shape[::2] != q.shape:
        raise ValueError("keys and values have to have one shape")
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    out = torch.zeros_like(q)
    if out.numel() and k.shape[1]:
        block = triton.next_power_of_2(width)
        _attend[(heads,)](q, k, v, out, k.shape[1], width, width**-0.5, WIDTH=block, BLOCK=32)
    return out

# ---- test ----
def reference(q, k, v):
    scores = torch.einsum("hd,hnd->hn", q.float(), k.float()) * q.shape[-1] ** -0.5
    return torch.einsum("hn,hnd->hd", scores.softmax(-1), v.float()).to(q.dtype)

def test_attend(perfguard):
    q = torch.randn(4, 32, device=perfguard.device)
    k, v = torch.randn(2, 4, 80, 32, device=perfguard.device)
    perfguard(attend, q, k, v, reference=reference)

# ---- shows ----
def shows():
    q, k, v = torch.full((1, 4), 500.0), torch.full((1, 6, 4), -500.0), torch.randn(1, 6, 4)
    return attend(q, k, v), reference(q, k, v)
