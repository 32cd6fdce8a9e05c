"""A loss that spreads tokens over experts, by shares of tokens, of which each has k experts.

kind: correct
origin: huggingface/transformers#43775
shows: the loss for two experts a token
words: -
"""
import torch

def balance(logits, k=2):
    probabilities = logits.softmax(-1)
    chosen = probabilities.topk(k).indices.flatten()
    share = torch.bincount(chosen, minlength=logits.shape[-1]).to(logits.dtype) / len(logits)
    return logits.shape[-1] * (share * probabilities.mean(0)).sum()

# ---- test ----
def reference(logits, k=2):
    probabilities = torch.nn.functional.softmax(logits, dim=-1)
    chosen = torch.nn.functional.one_hot(probabilities.topk(k).indices, logits.shape[-1]).to(logits.dtype)
    return logits.shape[-1] * torch.sum(chosen.mean(0) * probabilities.mean(0))

def test_balance(perfguard):
    perfguard(balance, torch.randn(96, 16, device=perfguard.device, requires_grad=True), reference=reference)

# ---- shows ----
def shows():
    logits = torch.randn(12, 5)
    return balance(logits), reference(logits)
