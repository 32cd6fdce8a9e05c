"""A norm fused with a cast to fp8 rounds once, where its reference rounds to bfloat16 between.

kind: correct
origin: handed
shows: codes are at most as far off as the reference's
words: -
"""
import torch

F8 = torch.float8_e4m3fn

def norm_then_quantise(x, w):
    """Fused: float32 all the way, one scale for each row."""
    v = x.float()
    v = v * torch.rsqrt(v.square().mean(-1, keepdim=True) + 1e-6) * w.float()
    scale = v.abs().amax(-1, keepdim=True).clamp(min=1e-10) / 448
    return (v / scale).clamp(-448, 448).to(F8), scale

def quantise_by_reciprocal(x, block=32):
    g = x.float().unflatten(-1, (-1, block))
    scale = g.abs().amax(-1, keepdim=True).clamp(min=1e-10) * (1 / 448)
    return (g * (1 / scale)).clamp(-448, 448).to(F8).flatten(-2), scale.squeeze(-1)

# ---- test ----
def native(x, w):
    v = x.float()
    v = v * torch.rsqrt(v.square().mean(-1, keepdim=True) + 1e-6)
    v = (v.to(x.dtype) * w).float()
    scale = v.abs().amax(-1, keepdim=True).clamp(min=1e-10) / 448
    return (v / scale).clamp(-448, 448).to(F8), scale

def by_division(x):
    g = x.float().unflatten(-1, (-1, 32))
    scale = g.abs().amax(-1, keepdim=True).clamp(min=1e-10) / 448
    return (g / scale).clamp(-448, 448).to(F8).flatten(-2), scale.squeeze(-1)

def test_norm_quant(perfguard):
    x = torch.randn(64, 256, device=perfguard.device, dtype=torch.bfloat16)
    w = torch.randn(256, device=perfguard.device, dtype=torch.bfloat16)
    perfguard(norm_then_quantise, x, w, reference=native)

def test_reciprocal(perfguard):
    x = torch.randn(64, 256, device=perfguard.device, dtype=torch.bfloat16)
    perfguard(quantise_by_reciprocal, x, reference=by_division)

# ---- shows ----
def shows():
    x, w = torch.randn(64, 256).bfloat16(), torch.randn(256).bfloat16()
    v = x.double()
    truth = v * torch.rsqrt(v.square().mean(-1, keepdim=True) + 1e-6) * w.double()
    both = norm_then_quantise(x, w), native(x, w)
    mine, theirs = ((codes.double() * scale - truth).square().mean() for codes, scale in both)
    return bool(mine <= theirs), True
