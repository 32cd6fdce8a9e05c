"""Keys as they are read from a cache of 4-bit codes: a scale for each channel of 32 tokens, which arrive in pieces.

kind: multiples
origin: rajveer43/VeloxQuant-MLX#163
shows: 40 tokens, of which 8 wait for a group
words: dim 0|tokens|rows|piece|group
"""
import torch

def coded(keys, group):
    parts = []
    for part in keys.split(group):
        scale = (part.abs().amax(0) / 7).clamp(min=1e-8)
        parts.append((part / scale).round() * scale)
    return parts

def streamed(keys, group=32, piece=32):
    done, waiting = [], keys[:0]
    for part in keys.split(piece):
        waiting = torch.cat([waiting, part])
        whole = len(waiting) // group * group  # bad: whole = len(waiting)
        done += coded(waiting[:whole], group) if whole else []
        waiting = waiting[whole:]
    return torch.cat([*done, waiting])

# ---- test ----
def reference(keys, group=32):
    whole = len(keys) // group * group
    groups = keys[:whole].unflatten(0, (-1, group)) if whole else keys[:0].view(0, group, keys.shape[-1])
    scale = (groups.abs().amax(1, keepdim=True) / 7).clamp(min=1e-8)
    return torch.cat([((groups / scale).round() * scale).flatten(0, 1), keys[whole:]])

def test_streamed(perfguard):
    perfguard(streamed, torch.randn(96, 48, device=perfguard.device), reference=reference)

# ---- shows ----
def shows():
    keys = torch.randn(40, 4)
    return streamed(keys), reference(keys)
