"""One step of AdamW, in place: weights decay before the step, as part of it, or after what it adds.

kind: correct
origin: bitsandbytes-foundation/bitsandbytes#2010
shows: a step with a decay
words: -
"""
import torch

def step(p, g, m, v, lr=1e-3, decay=0.01):
    m.mul_(0.9).add_(g, alpha=0.1)
    v.mul_(0.99).addcmul_(g, g, value=0.01)
    p.mul_(1 - lr * decay).addcdiv_(m, v.sqrt() + 1e-8, value=-lr)
    return p

# ---- test ----
def reference(p, g, m, v, lr=1e-3, decay=0.01):
    m.copy_(0.9 * m + 0.1 * g)
    v.copy_(0.99 * v + 0.01 * g**2)
    p.copy_(p - lr * (m / (v.sqrt() + 1e-8) + decay * p))
    return p

def test_step(perfguard):
    p, g, m = torch.randn(3, 24, 40, device=perfguard.device)
    perfguard(step, p, g, m, torch.rand(24, 40, device=perfguard.device), reference=reference, mutates=(0, 2, 3))

# ---- shows ----
def shows():
    p, g, m, v = torch.rand(4, 3, 5)
    return tuple(fn(p.clone(), g, m.clone(), v.clone(), 0.1, 0.5) for fn in (step, reference))
