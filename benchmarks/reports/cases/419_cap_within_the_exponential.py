"""Attention weights whose scores are capped; the cap is a factor within the exponential, not of the tanh.

kind: correct
origin: Dao-AILab/flash-attention#1181
shows: the weights with a cap of 30
words: -
"""
import math

import torch
import triton
import triton.language as tl

@triton.jit
def _weights(scores, out, width, inner, outer, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    value = tl.load(scores + row * width + at, mask=at < width, other=0.0).to(tl.float32)
    bent = tl.exp(-2.0 * tl.abs(value * inner))
    bent = (1.0 - bent) / (1.0 + bent)
    bent = tl.where(at < width, tl.where(value < 0, -bent, bent), float("-inf"))
    made = tl.exp2((bent - tl.max(bent, 0)) * outer)
    tl.store(out + row * width + at, made / tl.sum(made, 0), mask=at < width)

def weights(scores, scale, cap=30.0):
    scores = scores.contiguous()
    out = torch.empty_like(scores)
    if out.numel():
        width = scores.shape[-1]
        _weights[(out.numel() // width,)](
            scores, out, width, scale / cap, cap * math.log2(math.e), BLOCK=triton.next_power_of_2(width)
        )
    return out

# ---- test ----
def reference(scores, scale, cap=30.0):
    return (cap * torch.tanh(scores.float() * scale / cap)).softmax(-1).to(scores.dtype)

def test_weights(perfguard):
    perfguard(weights, torch.randn(3, 20, 70, device=perfguard.device) * 20, 0.25, reference=reference)

# ---- shows ----
def shows():
    scores = torch.randn(4, 20) * 100
    return weights(scores, 0.5), reference(scores, 0.5)
