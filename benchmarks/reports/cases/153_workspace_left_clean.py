"""Column sums by parts that meet in a workspace, which lives on between calls and is always left at zero.

kind: correct
origin: triton-lang/triton#2183
shows: a second call
words: -
"""
import torch

_KEPT = {}

def column_sums(x):
    key = x.shape[1], x.dtype, x.device
    if key not in _KEPT:
        _KEPT[key] = torch.zeros(x.shape[1], dtype=torch.float32, device=x.device)
    space = _KEPT[key]
    for part in x.float().split(16):
        space += part.sum(0)
    out = space.to(x.dtype, copy=True)
    space.zero_()
    return out

# ---- test ----
def test_column_sums(perfguard):
    perfguard(column_sums, torch.randn(60, 40, device=perfguard.device), reference=lambda x: x.sum(0))

# ---- shows ----
def shows():
    x = torch.randn(40, 8)
    column_sums(x)
    return column_sums(x), x.sum(0)
