"""Values of blocks of 32 with a power of two as scale, whose biased exponent is a byte.

kind: ranges of integers
origin: pytorch/FBGEMM#5705
shows: a scale of 2^3, an exponent of 130
words: argument 1
"""
import torch

BLOCK = 32

def dequantise(codes, exponents):
    power = exponents.to(torch.int32) - 127  # bad: power = exponents.view(torch.int8).to(torch.int32) - 127
    scale = torch.exp2(power.float())
    return (codes.float().unflatten(-1, (-1, BLOCK)) * scale[..., None]).flatten(-2)

# ---- test ----
def reference(codes, exponents):
    scale = 2.0 ** (exponents.float() - 127)
    return codes.float() * scale.repeat_interleave(BLOCK, -1)

def test_dequantise(perfguard):
    codes = torch.randint(-7, 8, (24, 64), device=perfguard.device, dtype=torch.int8)
    exponents = torch.randint(115, 128, (24, 2), device=perfguard.device, dtype=torch.uint8)
    perfguard(dequantise, codes, exponents, reference=reference)

# ---- shows ----
def shows():
    codes, exponents = torch.ones(2, 64, dtype=torch.int8), torch.tensor([[130, 120], [127, 128]], dtype=torch.uint8)
    return dequantise(codes, exponents), reference(codes, exponents)
