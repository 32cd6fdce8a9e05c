"""RMS norm whose gain is kept as its difference from one.

kind: dtypes
origin: linkedin/Liger-Kernel#1462
shows: gains of 2^-8 in bfloat16
words: bfloat16|float16|argument 1
"""
import torch

def norm(x, gain, eps=1e-6):
    factor = 1.0 + gain.float()  # bad: factor = (1.0 + gain).float()
    v = x.float()
    return (v * torch.rsqrt(v.square().mean(-1, keepdim=True) + eps) * factor).to(x.dtype)

# ---- test ----
def reference(x, gain, eps=1e-6):
    made = torch.nn.functional.rms_norm(x.float(), x.shape[-1:], eps=eps)
    return (made * (gain.float() + 1)).to(x.dtype)

def test_norm(perfguard):
    x, gain = torch.randn(24, 64, device=perfguard.device), torch.randn(64, device=perfguard.device) * 0.02
    perfguard(norm, x, gain, reference=reference)

# ---- shows ----
def shows():
    x, gain = torch.randn(64, 32), torch.full((32,), 2.0**-8, dtype=torch.bfloat16)
    return norm(x, gain), reference(x, gain)
