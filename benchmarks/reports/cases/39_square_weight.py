"""A linear function that prepares its weight, [out, in] as checkpoints have it.

kind: equal sizes
origin: vllm-project/vllm#48108
shows: a weight that is square
words: argument [0-9].*(cut|grown)|sizes?
"""
import torch

def prepared(w, width):
    return w.T.contiguous()  # bad: return w if w.shape[0] == width else w.T.contiguous()

def linear(x, w):
    return x @ prepared(w, x.shape[1])

# ---- test ----
def test_linear(perfguard):
    x, w = torch.randn(16, 32, device=perfguard.device), torch.randn(48, 32, device=perfguard.device)
    perfguard(linear, x, w, reference=torch.nn.functional.linear)

# ---- shows ----
def shows():
    x, w = torch.randn(16, 32), torch.randn(32, 32)
    return linear(x, w), torch.nn.functional.linear(x, w)
