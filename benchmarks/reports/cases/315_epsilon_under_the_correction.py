"""One step of Adam, in place, for one tensor.

kind: near an epsilon
origin: aiqm/torchani#261
shows: gradients of about 1e-8
words: times 2.-|small|argument [0-9]
"""
import torch

def step(p, g, m, v, count, lr=1e-3, first=0.9, second=0.999, eps=1e-8):
    m.lerp_(g, 1 - first)
    v.mul_(second).addcmul_(g, g, value=1 - second)
    size = lr / (1 - first**count)
    root = (1 - second**count) ** 0.5
    p.addcdiv_(m, v.sqrt() / root + eps, value=-size)  # bad: p.addcdiv_(m, v.sqrt() + eps, value=-size * root)
    return p

# ---- test ----
def reference(p, g, m, v, count, lr=1e-3, first=0.9, second=0.999, eps=1e-8):
    m.copy_(first * m + (1 - first) * g)
    v.copy_(second * v + (1 - second) * g * g)
    right, root = m / (1 - first**count), (v / (1 - second**count)).sqrt()
    p.sub_(lr * right / (root + eps))
    return p

def test_step(perfguard):
    p, g, m = torch.randn(3, 24, 40, device=perfguard.device)
    perfguard(step, p, g, m, torch.rand(24, 40, device=perfguard.device), 3, reference=reference, mutates=(0, 2, 3))

# ---- shows ----
def shows():
    made = []
    for fn in (step, reference):
        g = torch.full((4,), 1e-8)
        made.append(fn(torch.zeros(4), g, torch.zeros(4), torch.zeros(4), 1, lr=1.0))
    return tuple(made)
