"""Rows of each head and token divided by their norm.

kind: layouts
origin: BobMcDear/attorch#14
shows: a transposed input of three dimensions
words: transposed|stride|layout
"""
import torch
import triton
import triton.language as tl

@triton.jit
def _unit(x, out, tokens, width, s_head, s_token, BLOCK: tl.constexpr):
    head, token, at = tl.program_id(0), tl.program_id(1), tl.arange(0, BLOCK)
    start = head * s_head + token * s_token  # bad: start = (head * (s_head // s_token) + token) * s_token
    v = tl.load(x + start + at, mask=at < width, other=0.0)
    to = out + (head * tokens + token) * width + at
    tl.store(to, v / tl.sqrt(tl.sum(v * v, 0) + 1e-6), mask=at < width)

def unit(x):
    if x.stride(-1) != 1:
        x = x.contiguous()
    heads, tokens, width = x.shape
    out = torch.empty(heads, tokens, width, device=x.device, dtype=x.dtype)
    _unit[(heads, tokens)](x, out, tokens, width, x.stride(0), x.stride(1), BLOCK=triton.next_power_of_2(width))
    return out

# ---- test ----
def test_unit(perfguard):
    x = torch.randn(4, 12, 40, device=perfguard.device)
    perfguard(unit, x, reference=lambda x: x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt())

# ---- shows ----
def shows():
    x = torch.randn(12, 4, 40).transpose(0, 1)
    return unit(x), x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()
