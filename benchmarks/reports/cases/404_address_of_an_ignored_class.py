"""Negative log-likelihood of each row's class, with a kernel for the backward pass; -100 stands for no class.

kind: sizes and integers
origin: flagos-ai/FlagGems#5025
shows: a row without a class, whose address is that of another row's class
words: -100|ignored?|gradient|written
"""
import torch
import triton
import triton.language as tl

from perfguard import ids

@triton.jit
def _backward(target, g, grad, rows, classes, ignored, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    label = tl.load(target + row, mask=row < rows, other=0)
    kept = (label != ignored) & (row < rows)
    value = tl.where(kept, -tl.load(g + row, mask=row < rows, other=0.0), 0.0)
    is_written = kept  # bad: is_written = row < rows
    tl.store(grad + row * classes + label, value, mask=is_written)

class Likelihood(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logp, target):
        ctx.save_for_backward(target)
        ctx.shape = logp.shape
        picked = logp.gather(1, target.clamp(min=0)[:, None]).squeeze(1)
        return -picked.masked_fill(target == -100, 0)

    @staticmethod
    def backward(ctx, g):
        (target,) = ctx.saved_tensors
        grad = g.new_zeros(ctx.shape)
        if grad.numel():
            rows, classes = ctx.shape
            _backward[(triton.cdiv(rows, 16),)](
                target.contiguous(), g.contiguous(), grad, rows, classes, -100, BLOCK=16
            )
        return grad, None

def likelihood(logp, target):
    return Likelihood.apply(logp, target)

# ---- test ----
def reference(logp, target):
    return torch.nn.functional.nll_loss(logp, target, ignore_index=-100, reduction="none")

def test_likelihood(perfguard):
    logp = torch.randn(40, 32, device=perfguard.device).log_softmax(-1).requires_grad_()
    target = torch.randint(32, (40,), device=perfguard.device)
    target[20:26] = -100
    perfguard(likelihood, logp, ids(target, 32, ignored=-100), reference=reference)

# ---- shows ----
def shows():
    logp, target = torch.randn(40, 32).log_softmax(-1).requires_grad_(), torch.full((40,), 28)
    target[20] = -100
    return tuple(torch.autograd.grad(fn(logp, target).sum(), logp)[0] for fn in (likelihood, reference))
