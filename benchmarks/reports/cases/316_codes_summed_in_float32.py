"""The product of two matrices of int8 codes, in int32, on processors without such a product.

kind: large integers
origin: Comfy-Org/comfy-kitchen#133
shows: 2,049 products of 127 and 127
words: argument [01]|dim 1|grown|127
"""
import torch

def product(a, b):
    return (a.double() @ b.double().T).to(torch.int32)  # bad: return (a.float() @ b.float().T).to(torch.int32)

# ---- test ----
def reference(a, b):
    return (a.long()[:, None] * b.long()[None]).sum(-1).int()

def test_product(perfguard):
    a = torch.randint(-127, 128, (16, 256), device=perfguard.device, dtype=torch.int8)
    b = torch.randint(-127, 128, (24, 256), device=perfguard.device, dtype=torch.int8)
    perfguard(product, a, b, reference=reference)

# ---- shows ----
def shows():
    a = torch.full((1, 2049), 127, dtype=torch.int8)
    return product(a, a).item(), reference(a, a).item()
