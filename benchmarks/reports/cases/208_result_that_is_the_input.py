"""Logits over a temperature.

kind: aliases
origin: pytorch/pytorch#197893
shows: logits after a write to what a temperature of 1 gives
words: memory|alias|itself|same tensor|storage
"""
import torch

def tempered(logits, temperature=0.7):
    # bad: if temperature == 1.0: return logits
    return logits / temperature

# ---- test ----
def test_tempered(perfguard):
    logits = torch.randn(8, 300, device=perfguard.device)
    perfguard(tempered, logits, reference=lambda logits, temperature=0.7: logits * (1 / temperature))

# ---- shows ----
def shows():
    logits = torch.randn(2, 5)
    before = logits.clone()
    tempered(logits, 1.0).zero_()
    return logits, before
