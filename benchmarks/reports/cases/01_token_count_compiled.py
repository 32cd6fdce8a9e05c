"""Unit rows: x / |x|, a program for each block of tokens.

kind: compilations over sizes
origin: handed; as sgl-project/sglang#31283
shows: two numbers of tokens: two compilations
words: compil|speciali[sz]|constexpr
"""
import pytest
import torch
import triton
import triton.language as tl

@triton.jit
def _unit(
    x,
    out,
    tokens,  # bad: tokens: tl.constexpr,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = row[:, None] * D + tl.arange(0, D)[None, :]
    inside = (row < tokens)[:, None]
    v = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, v / tl.sqrt(tl.sum(v * v, 1) + 1e-6)[:, None], mask=inside)

def unit(x):
    x = x.contiguous()
    if x.shape[1] != 64:
        raise ValueError("heads of 64 only")
    out = torch.empty_like(x)
    if len(x):
        _unit[(triton.cdiv(len(x), 16),)](x, out, len(x), D=64, BLOCK=16)
    return out

# ---- test ----
@pytest.mark.parametrize("tokens", [32, 50, 77])
def test_unit(perfguard, tokens):
    x = torch.randn(tokens, 64, device=perfguard.device)
    perfguard(unit, x, reference=lambda x: x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt())

# ---- shows ----
def shows():
    return "tokens" in _unit.fn.__annotations__, False
