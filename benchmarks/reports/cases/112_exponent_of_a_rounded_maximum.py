"""Quantisation of blocks of 32 with a power of two as scale: the exponent of the block's largest value.

kind: values
origin: pytorch/ao#4725
shows: a largest value just below a power of two
words: values|block|scale|output|rows?
"""
import torch

def quantise(x):
    blocks = x.float().unflatten(-1, (-1, 32))
    top = blocks.abs().amax(-1)
    # bad: top = top.bfloat16().float()
    exponent = ((top.view(torch.int32) >> 23) & 0xFF) - 8
    exponent = exponent.clamp(1, 254)
    scale = (exponent << 23).view(torch.float32)
    codes = (blocks / scale[..., None]).clamp(-448, 448).to(torch.float8_e4m3fn)
    return codes.flatten(-2), exponent.to(torch.uint8)

# ---- test ----
def reference(x):
    blocks = x.float().reshape(*x.shape[:-1], -1, 32)
    _, exponent = torch.frexp(blocks.abs().amax(-1))
    exponent = (exponent - 1 - 8).clamp(-126, 127)
    codes = (blocks * torch.exp2(-exponent.float())[..., None]).clamp(-448, 448).to(torch.float8_e4m3fn)
    return codes.reshape(x.shape), (exponent + 127).to(torch.uint8)

def test_quantise(perfguard):
    perfguard(quantise, torch.randn(8, 64, device=perfguard.device), reference=reference)

# ---- shows ----
def shows():
    x = torch.full((1, 32), 1.999)
    return quantise(x)[1].int(), reference(x)[1].int()
