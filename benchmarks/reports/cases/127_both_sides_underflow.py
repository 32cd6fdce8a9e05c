"""Jensen-Shannon divergence of two distributions that are given by their logarithms.

kind: large finite inputs
origin: linkedin/Liger-Kernel#1453
shows: an entry of e^-200 on both sides
words: values|NaN|finite|times
"""
import math

import torch

def divergence(log_q, log_p):
    mean = torch.logaddexp(log_q, log_p) - math.log(2)
    # bad: mean = ((log_q.exp() + log_p.exp()) / 2).log()
    p, q = log_p.exp(), log_q.exp()
    return (p * log_p + q * log_q - (p + q) * mean).sum(-1).mean() / 2

# ---- test ----
def reference(log_q, log_p):
    mean = torch.logaddexp(log_q, log_p) - math.log(2)
    each = torch.nn.functional.kl_div(mean, log_p, log_target=True, reduction="none")
    return (each + torch.nn.functional.kl_div(mean, log_q, log_target=True, reduction="none")).sum(-1).mean() / 2

def test_divergence(perfguard):
    log_q, log_p = (torch.randn(32, 100, device=perfguard.device).log_softmax(-1) for _ in range(2))
    perfguard(divergence, log_q.requires_grad_(), log_p, reference=reference)

# ---- shows ----
def shows():
    log_q, log_p = ((torch.randn(4, 8) * 200).log_softmax(-1) for _ in range(2))
    return divergence(log_q, log_p), reference(log_q, log_p)
