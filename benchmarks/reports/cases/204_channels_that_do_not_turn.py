"""Rotary positions for the first channels of each half; the tables are as wide as what turns.

kind: equal sizes
origin: vllm-project/vllm#55204
shows: tables for 4 of 8 pairs
words: dim 1|sizes|cut
"""
import torch

def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    rest = half - cos.shape[1]
    cos = torch.nn.functional.pad(cos, (0, rest), value=1.0)[:, None]
    beside = 0.0  # bad: beside = 1.0
    sin = torch.nn.functional.pad(sin, (0, rest), value=beside)[:, None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

# ---- test ----
def reference(x, cos, sin):
    half, wide = x.shape[-1] // 2, cos.shape[1]
    a, b = x[..., :wide], x[..., half : half + wide]
    cos, sin = cos[:, None], sin[:, None]
    first = torch.cat([a * cos - b * sin, x[..., wide:half]], -1)
    return torch.cat([first, b * cos + a * sin, x[..., half + wide :]], -1)

def test_rotate(perfguard):
    x = torch.randn(24, 4, 32, device=perfguard.device)
    angles = torch.rand(24, 16, device=perfguard.device) * 6
    perfguard(rotate, x, angles.cos(), angles.sin(), reference=reference)

# ---- shows ----
def shows():
    x, angles = torch.randn(6, 2, 16), torch.rand(6, 4)
    return rotate(x, angles.cos(), angles.sin()), reference(x, angles.cos(), angles.sin())
