"""Cross entropy with label smoothing, which is off unless asked for.

kind: scalars at neutral defaults
origin: pytorch/pytorch#73205
shows: a smoothing of 0.2 and ignored tokens
words: smoothing
"""
import torch
import torch.nn.functional as F

from perfguard import ids

def smooth_loss(logits, labels, smoothing=0.0):
    logp, keep = logits.log_softmax(-1), labels != -100
    right = logp.gather(1, labels.clamp(min=0)[:, None]).squeeze(1)
    mean = logp.mean(-1).masked_fill(~keep, 0)  # bad: mean = logp.mean(-1)
    return -((1 - smoothing) * right.masked_fill(~keep, 0) + smoothing * mean).sum()

# ---- test ----
def reference(logits, labels, smoothing=0.0):
    return F.cross_entropy(logits, labels, ignore_index=-100, label_smoothing=smoothing, reduction="sum")

def test_smooth_loss(perfguard):
    logits = torch.randn(24, 50, device=perfguard.device, requires_grad=True)
    labels = torch.randint(50, (24,), device=perfguard.device)
    labels[::5] = -100
    perfguard(smooth_loss, logits, ids(labels, 50, ignored=-100), reference=reference)

# ---- shows ----
def shows():
    logits, labels = torch.randn(24, 50), torch.randint(50, (24,))
    labels[::5] = -100
    return smooth_loss(logits, labels, 0.2), reference(logits, labels, 0.2)
