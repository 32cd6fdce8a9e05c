"""The best experts of each token by a sigmoid, with weights that may sum to one.

kind: scalars at neutral defaults
origin: vllm-project/vllm#31246
shows: renormalize=True
words: renormalize
"""
import torch

def route(logits, k, renormalize=False):
    weight, index = logits.float().sigmoid().topk(k, -1)
    if renormalize:  # bad:
        weight = weight / weight.sum(-1, keepdim=True)  # bad:
    return weight, index

# ---- test ----
def reference(logits, k, renormalize=False):
    scores = torch.sigmoid(logits.float())
    index = scores.argsort(-1, descending=True)[:, :k]
    weight = scores.gather(-1, index)
    return (weight / weight.sum(-1, keepdim=True) if renormalize else weight), index

def test_route(perfguard):
    perfguard(route, torch.randn(48, 64, device=perfguard.device), 6, reference=reference)

# ---- shows ----
def shows():
    logits = torch.randn(8, 16)
    return route(logits, 2, True)[0], reference(logits, 2, True)[0]
