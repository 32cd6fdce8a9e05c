"""Logits of tokens that were there already become less likely.

kind: values
origin: NVIDIA-NeMo/Speech#8194
shows: negative logits
words: values|sign|shifted|argument 0
"""
import torch

def penalise(logits, seen, penalty=1.3):
    lower = logits.where(logits < 0, logits / penalty) * torch.where(logits < 0, penalty, 1.0)
    # bad: lower = logits / penalty
    return lower.where(seen, logits)

# ---- test ----
def reference(logits, seen, penalty=1.3):
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)

def test_penalise(perfguard):
    logits = torch.rand(8, 300, device=perfguard.device) * 10
    seen = torch.rand(8, 300, device=perfguard.device) < 0.2
    perfguard(penalise, logits, seen, reference=reference)

# ---- shows ----
def shows():
    logits, seen = torch.randn(4, 16), torch.ones(4, 16, dtype=torch.bool)
    return penalise(logits, seen), reference(logits, seen)
