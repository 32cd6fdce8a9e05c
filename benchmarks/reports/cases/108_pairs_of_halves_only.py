"""Rotary embedding, of halves or of neighbours.

kind: scalars at neutral defaults
origin: vllm-project/vllm-ascend#12820
shows: interleaved=True
words: interleaved
"""
import torch

def rotate(x, cos, sin, interleaved=False):
    if interleaved:
        a, b = x[..., ::2], x[..., 1::2]  # bad: a, b = x.chunk(2, -1)
        pair = torch.stack([a * cos - b * sin, a * sin + b * cos], -1)
        return pair.flatten(-2)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

# ---- test ----
def reference(x, cos, sin, interleaved=False):
    half = x.shape[-1] // 2
    z = x.unflatten(-1, (half, 2)) if interleaved else x.unflatten(-1, (2, half)).transpose(-1, -2)
    z = torch.stack([z[..., 0] * cos - z[..., 1] * sin, z[..., 0] * sin + z[..., 1] * cos], -1)
    return z.flatten(-2) if interleaved else z.transpose(-1, -2).flatten(-2)

def test_rotate(perfguard):
    angle = torch.rand(48, 16, device=perfguard.device) * 6
    x = torch.randn(4, 48, 32, device=perfguard.device, requires_grad=True)
    perfguard(rotate, x, angle.cos(), angle.sin(), reference=reference)

# ---- shows ----
def shows():
    angle, x = torch.rand(8, 4), torch.randn(8, 8)
    return tuple(fn(x, angle.cos(), angle.sin(), interleaved=True) for fn in (rotate, reference))
