"""RMS norm whose gain is applied in float32, where its reference rounds before the gain.

kind: correct
origin: InternLM/lmdeploy#4133
shows: rows in float32
words: -
"""
import torch

def rms_norm(x, gain):
    v = x.float()
    return (v * v.square().mean(-1, keepdim=True).add(1e-6).rsqrt() * gain.float()).to(x.dtype)

# ---- test ----
def reference(x, gain):
    v = x.float()
    return gain * (v * v.square().mean(-1, keepdim=True).add(1e-6).rsqrt()).to(x.dtype)

def test_rms_norm(perfguard):
    x = torch.randn(24, 128, device=perfguard.device, dtype=torch.bfloat16, requires_grad=True)
    gain = (torch.rand(128, device=perfguard.device) + 0.5).bfloat16().requires_grad_()
    perfguard(rms_norm, x, gain, reference=reference)

# ---- shows ----
def shows():
    x, gain = torch.randn(8, 24), torch.rand(24)
    return rms_norm(x, gain), reference(x, gain)
