"""Mean cross entropy, 0 where no token has a label and torch has 0 / 0.

kind: correct
origin: meta-pytorch/torchtune#2341
shows: the loss where some tokens have labels
words: -
"""
import torch
import torch.nn.functional as F

from perfguard import ids

def mean_loss(logits, labels):
    keep = labels != -100
    right = logits.log_softmax(-1).gather(1, labels.clamp(min=0)[:, None]).squeeze(1)
    return -right.masked_fill(~keep, 0).sum() / keep.sum().clamp(min=1)

# ---- test ----
def reference(logits, labels):
    return F.cross_entropy(logits, labels, ignore_index=-100)

def test_mean_loss(perfguard):
    logits = torch.randn(24, 50, device=perfguard.device, requires_grad=True)
    labels = torch.randint(50, (24,), device=perfguard.device)
    labels[::4] = -100
    perfguard(mean_loss, logits, ids(labels, 50, ignored=-100), reference=reference)

# ---- shows ----
def shows():
    logits, labels = torch.randn(24, 50), torch.randint(50, (24,))
    labels[::4] = -100
    return mean_loss(logits, labels), reference(logits, labels)
