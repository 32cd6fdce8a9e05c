"""One step of Lion, in place: the parameter and its momentum.

kind: scalars at neutral defaults
origin: handed; as flagos-ai/FlagGems#4988
shows: a weight decay of 0.5
words: weight_decay
"""
import torch
import triton
import triton.language as tl

@triton.jit
def _lion(p, g, m, n, lr, b1, b2, wd, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    weight = tl.load(p + at, mask=inside, other=0.0)
    grad = tl.load(g + at, mask=inside, other=0.0)
    old = tl.load(m + at, mask=inside, other=0.0)
    weight = weight * (1 - lr * wd)  # bad: grad = grad + wd * weight
    mix = b1 * old + (1 - b1) * grad
    step = tl.where(mix > 0, 1.0, tl.where(mix < 0, -1.0, 0.0))
    tl.store(p + at, weight - lr * step, mask=inside)
    tl.store(m + at, b2 * old + (1 - b2) * grad, mask=inside)

def lion(p, g, m, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.0):
    n = p.numel()
    _lion[(triton.cdiv(n, 256),)](p, g, m, n, lr, betas[0], betas[1], weight_decay, BLOCK=256)
    return p, m

# ---- test ----
def reference(p, g, m):
    mix = 0.9 * m + 0.1 * g
    p.sub_(1e-3 * mix.sign())
    m.mul_(0.99).add_(0.01 * g)
    return p, m

def test_lion(perfguard):
    p, g, m = (torch.randn(33, 40, device=perfguard.device) for _ in range(3))
    perfguard(lion, p, g, m, reference=reference, mutates=(0, 2), hard=False)

# ---- shows ----
def shows():
    p, g, m = torch.randn(3, 33, 40)
    want = p * (1 - 1e-3 * 0.5) - 1e-3 * (0.9 * m + 0.1 * g).sign()
    return lion(p, g, m, weight_decay=0.5)[0], want
