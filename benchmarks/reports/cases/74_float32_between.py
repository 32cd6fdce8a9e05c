"""A decaying average over tokens in bfloat16, which is kept in float32 between them.

kind: correct
origin: nod-ai/AMD-SHARK-Studio#2090
shows: the result is nearer to the truth than the reference's
words: -
"""
import torch

def averaged(x, decay):
    state, out = torch.zeros_like(x[0], dtype=torch.float32), []
    for row in x.float():
        state = decay.float() * state + (1 - decay.float()) * row
        out.append(state.to(x.dtype))
    return torch.stack(out) if out else x.clone()

# ---- test ----
def reference(x, decay):
    state, out = torch.zeros_like(x[0]), []
    for row in x:
        state = decay * state + (1 - decay) * row
        out.append(state)
    return torch.stack(out) if out else x.clone()

def test_averaged(perfguard):
    x = torch.randn(48, 32, device=perfguard.device, dtype=torch.bfloat16)
    decay = torch.rand(32, device=perfguard.device, dtype=torch.bfloat16)
    perfguard(averaged, x, decay, reference=reference)

# ---- shows ----
def shows():
    x, decay = torch.randn(48, 32).bfloat16(), torch.rand(32).bfloat16()
    truth = reference(x.double(), decay.double())
    mine, theirs = ((fn(x, decay) - truth).square().mean() for fn in (averaged, reference))
    return bool(mine <= theirs), True
