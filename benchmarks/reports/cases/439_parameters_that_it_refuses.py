"""One step with momentum, in place; a parameter that is not contiguous is refused, since a copy would get the step.

kind: correct
origin: axolotl-ai-cloud/axolotl#3785
shows: a step
words: -
"""
import torch
import triton
import triton.language as tl

@triton.jit
def _step(p, g, m, n, lr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    moved = 0.9 * tl.load(m + at, mask=inside) + tl.load(g + at, mask=inside)
    tl.store(m + at, moved, mask=inside)
    tl.store(p + at, tl.load(p + at, mask=inside) - lr * moved, mask=inside)

def step(p, g, m, lr=0.1):
    if not (p.is_contiguous() and m.is_contiguous()):
        raise ValueError("parameters and their momentum: contiguous")
    if p.numel():
        _step[(triton.cdiv(p.numel(), 256),)](p, g.contiguous(), m, p.numel(), lr, BLOCK=256)

# ---- test ----
def reference(p, g, m, lr=0.1):
    m.mul_(0.9).add_(g)
    p.sub_(lr * m)

def test_step(perfguard):
    p, g, m = torch.randn(3, 24, 40, device=perfguard.device)
    perfguard(step, p, g, m, reference=reference, mutates=(0, 2))

# ---- shows ----
def shows():
    p, g, m = torch.randn(3, 4, 5)
    got, want = p.clone(), p.clone()
    step(got, g, m.clone())
    reference(want, g, m.clone())
    return got, want
