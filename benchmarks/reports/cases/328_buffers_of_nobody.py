"""Rows scaled into a buffer of an earlier call, but only once nobody holds its result any more.

kind: correct
origin: pytorch/helion#2536
shows: two results that are both held
words: -
"""
import sys

import torch

_KEPT = {}

def scaled(x, by):
    pool = _KEPT.setdefault((x.shape, x.dtype, x.device), [])
    for out in pool:
        if sys.getrefcount(out) <= 3:  # the pool, this name, the argument
            break
    else:
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        pool[:] = [*pool[-3:], out]
    return torch.mul(x, by, out=out)

# ---- test ----
def test_scaled(perfguard):
    perfguard(scaled, torch.randn(24, 40, device=perfguard.device), 2.5, reference=lambda x, by: by * x)

# ---- shows ----
def shows():
    x, y = torch.randn(2, 3, 5)
    both = scaled(x, 2.0), scaled(y, 3.0)
    return torch.stack(both), torch.stack([x * 2, y * 3])
