"""Probabilities of the next token, at a temperature.

kind: scalars at neutral defaults
origin: RL-Align/RL-Kernel#81
shows: a temperature of 0.5
words: temperature
"""
import torch

def probabilities(logits, temperature=1.0):
    logits = logits.float() / temperature
    # bad: logits = logits / temperature
    return (logits - logits.logsumexp(-1, keepdim=True)).exp()

# ---- test ----
def reference(logits, temperature=1.0):
    return (logits.float() / temperature).softmax(-1)

def test_probabilities(perfguard):
    perfguard(probabilities, torch.randn(16, 500, device=perfguard.device), reference=reference)

# ---- shows ----
def shows():
    logits = torch.randn(4, 16)
    return probabilities(logits, 0.5), reference(logits, 0.5)
