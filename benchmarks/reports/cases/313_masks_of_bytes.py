"""Attention weights under a mask of what may be seen, of booleans or of zeros and ones.

kind: dtypes
origin: pytorch/pytorch#24180
shows: a mask of uint8
words: uint8|int|mask|argument 1
"""
import torch

def weights(scores, mask):
    hidden = mask == 0  # bad: hidden = (~mask).bool()
    return scores.masked_fill(hidden, -1e9).softmax(-1)

# ---- test ----
def reference(scores, mask):
    return torch.where(mask.bool(), scores, -1e9).softmax(-1)

def test_weights(perfguard):
    scores = torch.randn(4, 24, 40, device=perfguard.device)
    mask = torch.rand(4, 24, 40, device=perfguard.device) < 0.7
    perfguard(weights, scores, mask, reference=reference)

# ---- shows ----
def shows():
    scores, mask = torch.randn(3, 5), torch.tensor([1, 0, 1, 1, 0], dtype=torch.uint8).expand(3, 5)
    return weights(scores, mask), reference(scores, mask)
