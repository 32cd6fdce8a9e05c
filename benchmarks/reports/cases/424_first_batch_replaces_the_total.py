"""The gradient of a weight, added to a float32 total which a data-parallel wrapper keeps and sets to zero.

kind: parameters at their start
origin: NVIDIA/Megatron-LM#6279
shows: a total that already holds something
words: argument 2|total
"""
import torch

def add_gradient(x, g, total, first=True):
    made = g.flatten(0, -2).T @ x.flatten(0, -2)
    total.add_(made.float())  # bad: total.copy_(made) if first else total.add_(made.float())

# ---- test ----
def reference(x, g, total, first=True):
    total += torch.einsum("...i,...o->oi", x, g).float()

def test_add_gradient(perfguard):
    x, g = torch.randn(4, 24, 32, device=perfguard.device), torch.randn(4, 24, 16, device=perfguard.device)
    perfguard(add_gradient, x, g, torch.zeros(16, 32, device=perfguard.device), reference=reference, mutates=(2,))

# ---- shows ----
def shows():
    x, g, total = torch.randn(2, 3, 4), torch.randn(2, 3, 5), torch.randn(5, 4)
    got, want = total.clone(), total.clone()
    add_gradient(x, g, got)
    reference(x, g, want)
    return got, want
