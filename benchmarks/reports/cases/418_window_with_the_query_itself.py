"""Causal attention of one head within a window of keys, of which the query's own is one.

kind: correct
origin: vllm-project/vllm#3385
shows: windows of 1 and of 5 keys
words: -
"""
import torch
import triton
import triton.language as tl

@triton.jit
def _attend(q, k, v, out, tokens, width, window, scale, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row, lane = tl.program_id(0), tl.arange(0, WIDTH)
    inside = lane < width
    query = tl.load(q + row * width + lane, mask=inside, other=0.0).to(tl.float32)
    first = tl.maximum(row - window + 1, 0)
    top, total, made = float("-inf"), 0.0, tl.zeros((WIDTH,), dtype=tl.float32)
    for start in range(first // BLOCK * BLOCK, row + 1, BLOCK):
        at = start + tl.arange(0, BLOCK)
        seen = (at <= row) & (at > row - window)
        place = at[:, None] * width + lane[None, :]
        both = seen[:, None] & inside[None, :]
        scores = tl.sum(tl.load(k + place, mask=both, other=0.0).to(tl.float32) * query[None, :], 1) * scale
        scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 0))
        weights, kept = tl.exp(scores - higher), tl.exp(top - higher)
        total = total * kept + tl.sum(weights, 0)
        made = made * kept + tl.sum(weights[:, None] * tl.load(v + place, mask=both, other=0.0).to(tl.float32), 0)
        top = higher
    tl.store(out + row * width + lane, made / total, mask=inside)

def attend(q, k, v, window):
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    out = torch.empty_like(q)
    if out.numel():
        tokens, width = q.shape
        _attend[(tokens,)](
            q, k, v, out, tokens, width, window, width**-0.5, WIDTH=triton.next_power_of_2(width), BLOCK=16
        )
    return out

# ---- test ----
def reference(q, k, v, window):
    at = torch.arange(len(q), device=q.device)
    behind = at[:, None] - at[None]
    scores = (q.float() @ k.float().T * q.shape[-1] ** -0.5).masked_fill((behind < 0) | (behind >= window), -torch.inf)
    return (scores.softmax(-1) @ v.float()).to(q.dtype)

def test_attend(perfguard):
    q, k, v = torch.randn(3, 60, 32, device=perfguard.device)
    perfguard(attend, q, k, v, 20, reference=reference)

# ---- shows ----
def shows():
    q, k, v = torch.randn(3, 12, 4)
    return attend(q, k, v, 5), reference(q, k, v, 5)
