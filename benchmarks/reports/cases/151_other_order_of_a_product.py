"""A product whose inner dimension is summed by halves, each in float32.

kind: correct
origin: HazyResearch/HipKittens#64
shows: results where terms nearly cancel
words: -
"""
import torch

def product(x, w):
    half = x.shape[1] // 2
    first, second = (x[:, part].float() @ w[:, part].float().T for part in (slice(half, None), slice(half)))
    return (first + second).to(x.dtype)

# ---- test ----
def test_product(perfguard):
    x = torch.randn(24, 300, device=perfguard.device, dtype=torch.bfloat16, requires_grad=True)
    w = torch.randn(40, 300, device=perfguard.device, dtype=torch.bfloat16, requires_grad=True)
    perfguard(product, x, w, reference=torch.nn.functional.linear)

# ---- shows ----
def shows():
    x, w = torch.randn(8, 64), torch.randn(8, 64)
    return product(x, w), x @ w.T
