"""Linear attention over the past, normed by what its weights sum to.

kind: modes of a call
origin: fla-org/flash-linear-attention#875
shows: the gradient of the keys
words: gradient|argument 1
"""
import torch

def sums(k):
    return k.cumsum(-2)  # bad: with torch.no_grad(): return k.cumsum(-2)

def attend(q, k, v):
    seen = (q @ k.transpose(-1, -2)).tril()
    total = (q * sums(k)).sum(-1, keepdim=True)
    return seen @ v / (total + 1e-6)

# ---- test ----
def reference(q, k, v):
    state, weight, made = q.new_zeros(q.shape[0], q.shape[2], v.shape[2]), q.new_zeros(q.shape[0], q.shape[2]), []
    for at in range(q.shape[1]):
        state = state + k[:, at, :, None] * v[:, at, None]
        weight = weight + k[:, at]
        made.append(torch.einsum("bk,bkv->bv", q[:, at], state) / ((q[:, at] * weight).sum(-1, keepdim=True) + 1e-6))
    return torch.stack(made, 1)

def test_attend(perfguard):
    q = (torch.rand(2, 24, 16, device=perfguard.device) + 0.1).requires_grad_()
    k = torch.rand(2, 24, 16, device=perfguard.device) + 0.1
    perfguard(attend, q, k, torch.randn(2, 24, 8, device=perfguard.device), reference=reference)

# ---- shows ----
def shows():
    q, k = (torch.rand(1, 5, 4) + 0.1 for _ in range(2))
    k.requires_grad_()
    v = torch.randn(1, 5, 3)
    return tuple(torch.autograd.grad(fn(q, k, v).square().sum(), k)[0] for fn in (attend, reference))
