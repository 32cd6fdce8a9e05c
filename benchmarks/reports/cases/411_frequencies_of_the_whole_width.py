"""Rotary positions of the first channels of each head, which are turned by halves.

kind: options that are None
origin: pie-project/pie#603
shows: a rotary width of 8 of 16 channels
words: rotary|option
"""
import math

import torch
import triton
import triton.language as tl

@triton.jit
def _turned(x, out, heads, width, turned, rate, BLOCK: tl.constexpr):
    token, head, lane = tl.program_id(0), tl.program_id(1), tl.arange(0, BLOCK)
    start, half = (token * heads + head) * width, turned // 2
    value = tl.load(x + start + lane, mask=lane < width, other=0.0).to(tl.float32)
    pair = tl.where(lane < half, lane, lane - half)
    other = tl.where(lane < half, lane + half, lane - half)
    moves = lane < 2 * half
    partner = tl.load(x + start + other, mask=moves, other=0.0).to(tl.float32)
    step = rate / turned  # bad: step = rate / width
    angle = token * tl.exp(pair.to(tl.float32) * step)
    made = value * tl.cos(angle) + tl.where(lane < half, -partner, partner) * tl.sin(angle)
    tl.store(out + start + lane, tl.where(moves, made, value), mask=lane < width)

def turned(x, rotary_dim=None):
    x = x.contiguous()
    out = torch.empty_like(x)
    tokens, heads, width = x.shape
    if out.numel():
        many = width if rotary_dim is None else rotary_dim
        _turned[(tokens, heads)](
            x, out, heads, width, many, -2 * math.log(10000.0), BLOCK=triton.next_power_of_2(width)
        )
    return out

# ---- test ----
def reference(x, rotary_dim=None):
    many = x.shape[-1] if rotary_dim is None else rotary_dim
    half = many // 2
    rates = torch.exp(torch.arange(half, device=x.device) * (-2 * math.log(10000.0) / max(many, 1)))
    angles = torch.arange(len(x), device=x.device)[:, None, None] * rates
    a, b, rest = x[..., :half].float(), x[..., half : 2 * half].float(), x[..., 2 * half :]
    made = a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()
    return torch.cat([*(each.to(x.dtype) for each in made), rest], -1)

def test_turned(perfguard):
    perfguard(turned, torch.randn(40, 2, 16, device=perfguard.device), reference=reference)

# ---- shows ----
def shows():
    x = torch.randn(6, 1, 16)
    return turned(x, 8), reference(x, 8)
