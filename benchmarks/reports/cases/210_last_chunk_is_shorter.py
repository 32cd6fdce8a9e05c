"""Mean cross entropy of a linear layer, a chunk of tokens at a time.

kind: tuning options
origin: NVIDIA-NeMo/Automodel#3803
shows: 40 tokens in chunks of 32
words: chunk|dim 0|tokens
"""
import torch
import torch.nn.functional as F

def chunked_loss(x, w, labels, chunk=32):
    total = 0
    for own, wanted in zip(x.split(chunk), labels.split(chunk), strict=True):
        tokens = len(own)  # bad: tokens = chunk
        total = total + F.cross_entropy(own @ w.T, wanted) * tokens
    return total / len(x)

# ---- test ----
def reference(x, w, labels):
    return F.cross_entropy(x @ w.T, labels)

def test_chunked_loss(perfguard):
    from perfguard import ids

    x = torch.randn(64, 48, device=perfguard.device, requires_grad=True)
    w = torch.randn(100, 48, device=perfguard.device, requires_grad=True)
    labels = torch.randint(100, (64,), device=perfguard.device)
    perfguard(chunked_loss, x, w, ids(labels, 100), reference=reference)

# ---- shows ----
def shows():
    x, w, labels = torch.randn(40, 8), torch.randn(12, 8), torch.randint(12, (40,))
    return chunked_loss(x, w, labels), reference(x, w, labels)
