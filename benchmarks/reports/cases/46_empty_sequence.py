"""Tokens of packed sequences, scaled by a weight of their sequence.

kind: sizes and integers
origin: fla-org/flash-linear-attention#103
shows: an empty sequence
words: empty
"""
import torch

from perfguard import offsets

def scaled(x, weight, ends):
    # bad: begins = x.new_zeros(len(x) + 1, dtype=torch.long).index_fill_(0, ends.long(), 1)
    at = torch.arange(len(x), device=x.device)
    sequence = torch.searchsorted(ends.long(), at, right=True)  # bad: sequence = begins[:-1].cumsum(0)
    return x * weight[sequence]

# ---- test ----
def reference(x, weight, ends):
    lengths = torch.diff(ends, prepend=ends.new_zeros(1))
    return x * weight.repeat_interleave(lengths, 0)

def test_scaled(perfguard):
    x, weight = torch.randn(40, 16, device=perfguard.device), torch.randn(4, 16, device=perfguard.device)
    ends = torch.tensor([8, 20, 30, 40], device=perfguard.device)
    perfguard(scaled, x, weight, offsets(ends), reference=reference)

# ---- shows ----
def shows():
    x, weight, ends = torch.randn(40, 16), torch.randn(4, 16), torch.tensor([8, 8, 30, 40])
    return scaled(x, weight, ends), reference(x, weight, ends)
