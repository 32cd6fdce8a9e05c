"""Quantisation to int8 codes by blocks, those of 1,024 and more in two stages.

kind: thresholds
origin: bitsandbytes-foundation/bitsandbytes#565
shows: blocks of 2,048
words: block
"""
import torch

def quantised(x, block=64):
    groups = x.reshape(-1, block)
    if block < 1024:
        top = groups.abs().amax(1)
    else:
        parts = groups.unflatten(1, (-1, 512)).abs().amax(2)
        top = parts.amax(1)  # bad: top = parts[:, 0]
    scale = top.clamp(min=1e-12)[:, None] / 127
    return (groups / scale).round().clamp(-127, 127).view_as(x).to(torch.int8), scale.squeeze(1)

# ---- test ----
def reference(x, block=64):
    groups = x.reshape(-1, block)
    scale = groups.abs().amax(1, keepdim=True).clamp(min=1e-12) / 127
    return (groups / scale).round().clamp(-127, 127).view_as(x).to(torch.int8), scale.squeeze(1)

def test_quantised(perfguard):
    perfguard(quantised, torch.randn(16, 512, device=perfguard.device), reference=reference)

# ---- shows ----
def shows():
    x = torch.randn(16, 512)
    return quantised(x, 2048)[1], reference(x, 2048)[1]
