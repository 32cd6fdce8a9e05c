"""Decaying sums over tokens, chunk by chunk; the result does not depend on the chunk.

kind: tuning options
origin: NX-AI/mlstm_kernels#10
shows: chunks of 256
words: chunk
"""
import torch

def decayed(x, decay, chunk=64):
    power = torch.arange(min(chunk, len(x)) + 1, device=x.device)
    weights = decay ** power
    state, out = torch.zeros_like(x[0]), []
    for part in x.split(chunk):
        n = len(part)
        # bad: n = min(n, 128)
        lag = torch.arange(n, device=x.device)[:, None] - torch.arange(n, device=x.device)
        inner = weights[lag.clamp(min=0)].where(lag >= 0, 0) @ part[:n]
        own = inner + weights[1 : n + 1, None] * state
        state = own[-1]
        # bad: own = torch.cat([own, part[n:]])
        out.append(own)
    return torch.cat(out)

# ---- test ----
def reference(x, decay):
    state, out = torch.zeros_like(x[0]), []
    for row in x:
        state = decay * state + row
        out.append(state)
    return torch.stack(out)

def test_decayed(perfguard):
    from perfguard import Hard

    x = torch.randn(200, 16, device=perfguard.device)
    hard = Hard(without=["non-finite"], reason="products with zeros spread NaN")
    perfguard(decayed, x, 0.9, reference=reference, hard=hard)

# ---- shows ----
def shows():
    x = torch.randn(300, 4)
    return decayed(x, 0.9, chunk=256), reference(x, 0.9)
