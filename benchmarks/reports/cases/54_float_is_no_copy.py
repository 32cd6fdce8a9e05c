"""Log-likelihood of labels, in place on a copy in float32.

kind: dtypes
origin: NVIDIA/Megatron-LM#1594
shows: logits in float32: they are overwritten
words: float32|modif|writ|wrote
"""
import torch

from perfguard import ids

def likelihood(logits, labels):
    v = logits.to(torch.float32, copy=True)  # bad: v = logits.float()
    v -= v.amax(-1, keepdim=True)
    right = v.gather(1, labels[:, None]).squeeze(1)
    return right - v.exp_().sum(-1).log()

# ---- test ----
def reference(logits, labels):
    kind = torch.promote_types(logits.dtype, torch.float32)
    return logits.log_softmax(-1, dtype=kind).gather(1, labels[:, None]).squeeze(1)

def test_likelihood(perfguard):
    logits = torch.randn(24, 50, device=perfguard.device, dtype=torch.bfloat16)
    labels = torch.randint(50, (24,), device=perfguard.device)
    perfguard(likelihood, logits, ids(labels, 50), reference=reference)

# ---- shows ----
def shows():
    logits, labels = torch.randn(24, 50), torch.randint(50, (24,))
    before = logits.clone()
    likelihood(logits, labels)
    return logits, before
