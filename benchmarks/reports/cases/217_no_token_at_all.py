"""RMS norm of each head of each token.

kind: sizes of zero
origin: NVIDIA/Megatron-LM#3626
shows: no token
words: dim 0|zero|empty|cut to 0|0 elements
"""
import torch

def norm_heads(x, heads):
    own = x.reshape(len(x), heads, x.shape[1] // heads)  # bad: own = x.reshape(len(x), heads, -1)
    return (own * own.square().mean(-1, keepdim=True).add(1e-6).rsqrt()).flatten(1)

# ---- test ----
def reference(x, heads):
    own = x.unflatten(1, (heads, x.shape[1] // heads))
    return torch.nn.functional.rms_norm(own, own.shape[-1:], eps=1e-6).flatten(1)

def test_norm_heads(perfguard):
    x = torch.randn(16, 48, device=perfguard.device)
    perfguard(norm_heads, x, 4, reference=reference)

# ---- shows ----
def shows():
    x = torch.randn(0, 12)
    return norm_heads(x, 3), reference(x, 3)
