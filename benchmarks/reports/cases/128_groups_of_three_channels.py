"""Group norm, a program for each sample and group.

kind: multiples
origin: flagos-ai/FlagGems#4984
shows: 12 channels in 4 groups
words: dim 1|channels|sizes?|group
"""
import torch
import triton
import triton.language as tl

@triton.jit
def _norm(x, out, groups, channels, length, eps, CHANNELS: tl.constexpr, LENGTH: tl.constexpr):
    sample, group = tl.program_id(0) // groups, tl.program_id(0) % groups
    own = tl.arange(0, CHANNELS)
    size = channels // groups
    valid = own < size  # bad: valid = group * size + own < channels
    col = tl.arange(0, LENGTH)
    inside = valid[:, None] & (col < length)[None, :]
    at = (sample * channels + group * size + own)[:, None] * length + col[None, :]
    v = tl.load(x + at, mask=inside, other=0.0)
    mean = tl.sum(tl.sum(v, 1), 0) / (size * length)
    off = tl.where(inside, v - mean, 0.0)
    var = tl.sum(tl.sum(off * off, 1), 0) / (size * length)
    tl.store(out + at, off / tl.sqrt(var + eps), mask=inside)

def group_norm(x, groups, eps=1e-5):
    if x.shape[1] % groups:
        raise ValueError("channels are no multiple of the groups")
    x = x.contiguous()
    out = torch.empty_like(x)
    samples, channels, length = x.shape
    sizes = {"CHANNELS": triton.next_power_of_2(channels // groups), "LENGTH": triton.next_power_of_2(length)}
    _norm[(samples * groups,)](x, out, groups, channels, length, eps, **sizes)
    return out

# ---- test ----
def reference(x, groups, eps=1e-5):
    return torch.nn.functional.group_norm(x, groups, eps=eps)

def test_group_norm(perfguard):
    perfguard(group_norm, torch.randn(2, 32, 50, device=perfguard.device), 4, reference=reference)

# ---- shows ----
def shows():
    x = torch.randn(2, 12, 10)
    return group_norm(x, 4), reference(x, 4)
