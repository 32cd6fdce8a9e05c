"""A loss that spreads tokens over experts: mean probability times share of the choices.

kind: scalars at neutral defaults
origin: jingyaogong/minimind#797
shows: two experts for each token
words: k=|option|number
"""
import torch

def balance(logits, k=1):
    probabilities = logits.softmax(-1)
    chosen = torch.nn.functional.one_hot(probabilities.topk(k).indices, logits.shape[-1]).to(logits.dtype)
    load = chosen.mean((0, 1))  # bad: load = chosen.mean(0)
    return (load * probabilities.mean(0)).sum() * logits.shape[-1]

# ---- test ----
def reference(logits, k=1):
    probabilities = logits.softmax(-1)
    load = torch.zeros_like(logits).scatter(-1, probabilities.topk(k).indices, 1.0).sum(0) / (len(logits) * k)
    return logits.shape[-1] * (load @ probabilities.mean(0))

def test_balance(perfguard):
    perfguard(balance, torch.randn(96, 16, device=perfguard.device, requires_grad=True), reference=reference)

# ---- shows ----
def shows():
    logits = torch.randn(12, 5)
    return balance(logits, 2), reference(logits, 2)
