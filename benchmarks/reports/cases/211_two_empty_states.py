"""Two parts of an attention made one by the logarithms of their sums; a part without keys has -inf.

kind: infinities
origin: flashinfer-ai/flashinfer#4051
shows: a query that has no keys in either part
words: inf
"""
import torch

def merge(a, log_a, b, log_b):
    top = torch.maximum(log_a, log_b)
    top = top.where(top > -float("inf"), 0)  # bad:
    of_a, of_b = (log_a - top).exp(), (log_b - top).exp()
    total = of_a + of_b
    share = total.where(total > 0, 1)
    return (a * of_a[:, None] + b * of_b[:, None]) / share[:, None], top + total.log()

# ---- test ----
def reference(a, log_a, b, log_b):
    both = torch.stack([log_a, log_b])
    empty = (both == -float("inf")).all(0)
    weights = both.masked_fill(empty, 0).softmax(0).masked_fill(empty, 0)
    return a * weights[0, :, None] + b * weights[1, :, None], both.logsumexp(0)

def test_merge(perfguard):
    a, b = (torch.randn(40, 32, device=perfguard.device) for _ in range(2))
    log_a, log_b = (torch.randn(40, device=perfguard.device) for _ in range(2))
    perfguard(merge, a, log_a, b, log_b, reference=reference)

# ---- shows ----
def shows():
    a, b = torch.zeros(2, 4), torch.randn(2, 4)
    log_a, log_b = torch.tensor([-float("inf")] * 2), torch.tensor([-float("inf"), 0.5])
    return merge(a, log_a, b, log_b)[0], reference(a, log_a, b, log_b)[0]
