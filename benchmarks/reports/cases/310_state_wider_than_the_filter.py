"""One token of a causal convolution of each channel; its state may hold more tokens than the filter reads.

kind: equal sizes
origin: sgl-project/sglang#38622
shows: a state of 6 tokens beside a filter of 4
words: argument 1|dim 2
"""
import torch

def update(x, state, weight):
    before = weight.shape[1] - 1
    kept = state[:, :, state.shape[2] - before:]  # bad: kept = state[:, :, :before]
    out = (kept * weight[:, :-1]).sum(-1) + x * weight[:, -1]
    return out, torch.cat([state[:, :, 1:], x[:, :, None]], -1)

# ---- test ----
def reference(x, state, weight):
    tokens = torch.cat([state, x[:, :, None]], -1)
    return (tokens[:, :, -weight.shape[1]:] * weight).sum(-1), tokens[:, :, 1:]

def test_update(perfguard):
    x = torch.randn(4, 24, device=perfguard.device)
    state, weight = torch.randn(4, 24, 3, device=perfguard.device), torch.randn(24, 4, device=perfguard.device)
    perfguard(update, x, state, weight, reference=reference)

# ---- shows ----
def shows():
    x, state, weight = torch.randn(2, 5), torch.randn(2, 5, 6), torch.randn(5, 4)
    return update(x, state, weight)[0], reference(x, state, weight)[0]
