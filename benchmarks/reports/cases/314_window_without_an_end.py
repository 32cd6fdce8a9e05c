"""Attention within a window of tokens to the left and to the right; -1 stands for all of them.

kind: scalars at neutral defaults
origin: flashinfer-ai/flashinfer#3794
shows: a window of (-1, 0)
words: window|options?|-1
"""
import torch

def attention(q, k, v, left=-1, right=-1):
    at = torch.arange(q.shape[-2], device=q.device)
    ahead = at[None, :] - at[:, None]
    hidden = torch.zeros_like(ahead, dtype=torch.bool)
    if left >= 0 or right >= 0:
        right = right if right >= 0 else len(at)
        left = left if left >= 0 else len(at)  # bad:
        hidden = (ahead > right) | (ahead < -left)
    scores = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).masked_fill(hidden, -1e30)
    return scores.softmax(-1) @ v

# ---- test ----
def reference(q, k, v, left=-1, right=-1):
    seen = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device)
    seen = seen.tril(right) if right >= 0 else seen
    seen = seen.triu(-left) if left >= 0 else seen
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)

def test_window(perfguard):
    q, k, v = torch.randn(3, 2, 48, 16, device=perfguard.device)
    perfguard(attention, q, k, v, kwargs={"left": 8, "right": 0}, reference=reference)

# ---- shows ----
def shows():
    q, k, v = torch.randn(3, 1, 8, 4)
    return attention(q, k, v, -1, 0), reference(q, k, v, -1, 0)
