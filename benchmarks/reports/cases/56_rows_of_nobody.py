"""Rows of each group times the group's weight; rows behind the last group belong to nobody.

kind: integers that agree
origin: pytorch/pytorch#193633
shows: rows behind the last end
words: behind|ends|NaN|uninitiali
"""
import torch

from perfguard import offsets

def grouped(x, w, ends):
    out = x.new_zeros(len(x), w.shape[2])  # bad: out = x.new_empty(len(x), w.shape[2])
    start = 0
    for group, end in enumerate(ends.tolist()):
        torch.mm(x[start:end], w[group], out=out[start:end])
        start = end
    return out

# ---- test ----
def reference(x, w, ends):
    out, start = [], 0
    for group, end in enumerate(ends.tolist()):
        out.append(x[start:end] @ w[group])
        start = end
    return torch.cat([*out, x.new_zeros(len(x) - start, w.shape[2])])

def test_grouped(perfguard):
    x, w = torch.randn(40, 16, device=perfguard.device), torch.randn(3, 16, 24, device=perfguard.device)
    ends = torch.tensor([8, 24, 40], device=perfguard.device)
    perfguard(grouped, x, w, offsets(ends, len(x)), reference=reference)

# ---- shows ----
def shows():
    x, w, ends = torch.randn(40, 16), torch.randn(3, 16, 24), torch.tensor([8, 24, 32])
    torch.use_deterministic_algorithms(True)  # memory that nobody has written holds NaN then
    try:
        return grouped(x, w, ends), reference(x, w, ends)
    finally:
        torch.use_deterministic_algorithms(False)
