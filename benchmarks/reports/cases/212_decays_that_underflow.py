"""A sum over the past in which each step decays what came before, as one product.

kind: large finite inputs
origin: pytorch/executorch#21417
shows: decays of e^-20 a step
words: argument 1|times|values|large
"""
import torch

def decayed(v, log_decay):
    to = log_decay.cumsum(0)
    weights = (to[:, None] - to).tril().exp().tril()
    return weights @ v  # bad: return to.exp()[:, None] * ((-to).exp()[:, None] * v).cumsum(0)

# ---- test ----
def reference(v, log_decay):
    state, rows = torch.zeros_like(v[0]), []
    for own, decay in zip(v, log_decay.exp(), strict=True):
        state = state * decay + own
        rows.append(state)
    return torch.stack(rows)

def test_decayed(perfguard):
    from perfguard import Hard

    v = torch.randn(32, 24, device=perfguard.device)
    log_decay = torch.nn.functional.logsigmoid(torch.randn(32, device=perfguard.device) + 2)
    hard = Hard(without=["non-finite"], reason="a product spreads infinities")
    perfguard(decayed, v, log_decay, reference=reference, hard=hard)

# ---- shows ----
def shows():
    v, log_decay = torch.randn(8, 4), torch.full((8,), -20.0)
    return decayed(v, log_decay), reference(v, log_decay)
