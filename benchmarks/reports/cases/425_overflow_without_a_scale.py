"""One step with momentum, in place, which a scaler of gradients may cancel: its flag says that one is not finite.

kind: two options at once
origin: pytorch/pytorch#95847
shows: a set flag where gradients were divided by the scale before
words: found_inf|grad_scale|options?
"""
import torch

def step(p, g, m, lr=0.1, grad_scale=None, found_inf=None):
    if grad_scale is not None:
        g = g / grad_scale
    # bad: found_inf = None if grad_scale is None else found_inf
    moved = 0.9 * m + g
    if found_inf is None:
        m.copy_(moved)
        p.sub_(lr * moved)
    else:
        stays = found_inf != 0
        m.copy_(torch.where(stays, m, moved))
        p.copy_(torch.where(stays, p, p - lr * moved))

# ---- test ----
def reference(p, g, m, lr=0.1, grad_scale=None, found_inf=None):
    if found_inf is not None and found_inf.item():
        return
    m.mul_(0.9).add_(g if grad_scale is None else g * (1 / grad_scale))
    p.add_(m, alpha=-lr)

def test_step(perfguard):
    p, g, m = torch.randn(3, 24, 40, device=perfguard.device)
    scaler = {name: torch.tensor(at, device=perfguard.device) for name, at in (("grad_scale", 4.0), ("found_inf", 0.0))}
    perfguard(step, p, g, m, kwargs=scaler, reference=reference, mutates=(0, 2))

# ---- shows ----
def shows():
    p, g, m = torch.randn(3, 2, 5)
    got, want = p.clone(), p.clone()
    step(got, g, m.clone(), found_inf=torch.tensor(1.0))
    reference(want, g, m.clone(), found_inf=torch.tensor(1.0))
    return got, want
