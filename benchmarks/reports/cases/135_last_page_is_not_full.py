"""Attention of one query over the pages of a cache, of which a sequence may fill the last one in part.

kind: unmarked integers
origin: pytorch/pytorch#160861
shows: a length that is no multiple of a page
words: integers|lengths?|argument 4|sizes?
"""
import torch

PAGE = 16

def decode(q, keys, values, pages, lengths):
    out = torch.empty_like(q)
    for number, length in enumerate(lengths.tolist()):
        own = pages[number, : -(-length // PAGE)]
        k, v = keys[own].flatten(0, 1), values[own].flatten(0, 1)
        k, v = k[:length], v[:length]  # bad:
        out[number] = (q[number] @ k.T * q.shape[-1] ** -0.5).softmax(-1) @ v
    return out

# ---- test ----
def reference(q, keys, values, pages, lengths):
    k, v = keys[pages].flatten(1, 2), values[pages].flatten(1, 2)
    scores = torch.einsum("bd,bnd->bn", q, k) * q.shape[-1] ** -0.5
    outside = torch.arange(k.shape[1], device=q.device) >= lengths[:, None]
    return torch.einsum("bn,bnd->bd", scores.masked_fill(outside, -float("inf")).softmax(-1), v)

def test_decode(perfguard):
    q = torch.randn(3, 24, device=perfguard.device)
    keys, values = (torch.randn(20, PAGE, 24, device=perfguard.device) for _ in range(2))
    pages = torch.randperm(20, device=perfguard.device)[:12].view(3, 4)
    lengths = torch.tensor([64, 32, 48], device=perfguard.device)
    perfguard(decode, q, keys, values, pages, lengths, reference=reference)

# ---- shows ----
def shows():
    q, keys, values = torch.randn(1, 8), torch.randn(3, PAGE, 8), torch.randn(3, PAGE, 8)
    args = q, keys, values, torch.tensor([[2, 0]]), torch.tensor([21])
    return decode(*args), reference(*args)
