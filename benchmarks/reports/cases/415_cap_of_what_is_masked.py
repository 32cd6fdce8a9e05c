"""Causal attention weights whose scores are capped by a tanh.

kind: scalars at neutral defaults
origin: Dao-AILab/flash-attention#1025
shows: a cap of 1
words: cap|option|scalar|argument
"""
import torch
import triton
import triton.language as tl

@triton.jit
def _weights(scores, out, tokens, cap, BLOCK: tl.constexpr):
    matrix, row, at = tl.program_id(0), tl.program_id(1), tl.arange(0, BLOCK)
    start = (matrix * tokens + row) * tokens
    value = tl.load(scores + start + at, mask=at < tokens, other=0.0).to(tl.float32)
    # bad: value = tl.where(at <= row, value, -1e9)
    bent = tl.exp(-2.0 * tl.abs(value / cap))
    bent = (1.0 - bent) / (1.0 + bent)
    value = cap * tl.where(value < 0, -bent, bent)
    value = tl.where(at <= row, value, float("-inf"))  # bad: value = tl.where(at < tokens, value, float("-inf"))
    weights = tl.exp(value - tl.max(value, 0))
    tl.store(out + start + at, weights / tl.sum(weights, 0), mask=at < tokens)

def weights(scores, softcap=50.0):
    if scores.shape[-1] != scores.shape[-2]:
        raise ValueError("queries have to be as many as keys")
    scores = scores.contiguous()
    out = torch.empty_like(scores)
    if out.numel():
        count, tokens, _ = scores.shape
        _weights[(count, tokens)](scores, out, tokens, softcap, BLOCK=triton.next_power_of_2(tokens))
    return out

# ---- test ----
def reference(scores, softcap=50.0):
    capped = softcap * torch.tanh(scores.float() / softcap)
    unseen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return capped.masked_fill(unseen, -torch.inf).softmax(-1).to(scores.dtype)

def test_weights(perfguard):
    perfguard(weights, torch.randn(4, 40, 40, device=perfguard.device) * 4, reference=reference)

# ---- shows ----
def shows():
    scores = torch.randn(1, 6, 6)
    return weights(scores, 1.0), reference(scores, 1.0)
