"""Attention weights times values from a cache of int8 codes with a scale for each head.

kind: equal values
origin: sgl-project/sgl-kernel-xpu#252
shows: scales that differ from head to head
words: argument 2|values|equal
"""
import torch

def mixed(weights, codes, scale):
    products = weights @ codes.to(weights.dtype)
    return products * scale[:, None, None]  # bad: return products * scale[0]

# ---- test ----
def reference(weights, codes, scale):
    return torch.einsum("hqk,hkd->hqd", weights, codes.to(weights.dtype) * scale.view(-1, 1, 1))

def test_mixed(perfguard):
    weights = torch.randn(6, 12, 40, device=perfguard.device).softmax(-1)
    codes = torch.randint(-127, 128, (6, 40, 32), device=perfguard.device, dtype=torch.int8)
    perfguard(mixed, weights, codes, torch.full((6,), 0.02, device=perfguard.device), reference=reference)

# ---- shows ----
def shows():
    weights, codes = torch.rand(2, 3, 4), torch.randint(-9, 9, (2, 4, 5), dtype=torch.int8)
    scale = torch.tensor([0.5, 2.0])
    return mixed(weights, codes, scale), reference(weights, codes, scale)
