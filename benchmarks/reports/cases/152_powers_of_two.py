"""A gate that decays by exp2, computed in float32 and rounded once, beside a reference that rounds each step.

kind: correct
origin: MoonshotAI/FlashKDA#16
shows: the same up to roundings
words: -
"""
import math

import torch

def gate(x, decay):
    return (x.float() / (1 + torch.exp2(decay.float() * math.log2(math.e)))).to(x.dtype)

# ---- test ----
def test_gate(perfguard):
    x = torch.randn(48, 64, device=perfguard.device, dtype=torch.bfloat16, requires_grad=True)
    decay = torch.rand(48, 64, device=perfguard.device, dtype=torch.bfloat16)
    perfguard(gate, x, decay, reference=lambda x, decay: x * torch.sigmoid(-decay))

# ---- shows ----
def shows():
    x, decay = torch.randn(8, 8), torch.rand(8, 8)
    return gate(x, decay), x * torch.sigmoid(-decay)
