"""Values in 4 bits by blocks of 16, each with a scale in e4m3; a power of two keeps these scales in e4m3's range.

kind: large finite inputs
origin: kekzl/imp#1544
shows: a block whose largest value is 6,000
words: values|times|outlier|shifted|large|output
"""
import torch

EDGES = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])  # between the magnitudes of e2m1
MAGNITUDES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])

def rounded(x):
    blocks = x.float().unflatten(-1, (-1, 16))
    largest = blocks.abs().amax()
    unit = torch.where(largest > 2688, (largest / 2688).log2().ceil().exp2(), 1.0)  # bad: unit = 1.0
    scale = (blocks.abs().amax(-1, keepdim=True) / 6 / unit).clamp(2**-9, 448).to(torch.float8_e4m3fn).float() * unit
    at = torch.bucketize((blocks / scale).abs(), EDGES.to(x.device))
    return (MAGNITUDES.to(x.device)[at].copysign(blocks) * scale).flatten(-2).to(x.dtype)

# ---- test ----
def reference(x):
    largest = x.float().abs().amax()
    unit = torch.where(largest > 2688, torch.ldexp(torch.ones_like(largest), (largest / 2688).log2().ceil()), 1.0)
    blocks = x.float().view(*x.shape[:-1], -1, 16)
    scale = (blocks.abs().amax(-1, keepdim=True) / 6 / unit).clamp(2**-9, 448).to(torch.float8_e4m3fn).float() * unit
    known = MAGNITUDES.to(x.device)
    at = ((blocks / scale).abs().clamp(max=6)[..., None] - known).abs().argmin(-1)
    return (known[at] * blocks.sign() * scale).view(x.shape).to(x.dtype)

def test_rounded(perfguard):
    perfguard(rounded, torch.randn(24, 128, device=perfguard.device), reference=reference)

# ---- shows ----
def shows():
    x = torch.randn(2, 32)
    x[0, 3] = 6000.0
    return rounded(x), reference(x)
