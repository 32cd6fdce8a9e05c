"""Binary cross entropy of logits, with a backward pass of its own; its reference has two kinks that cancel.

kind: correct
origin: pytorch/pytorch#2298
shows: the gradient for logits that are not zero
words: -
"""
import torch
import triton
import triton.language as tl

@triton.jit
def _loss(logits, target, loss, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits + at, mask=at < count, other=0.0).to(tl.float32)
    t = tl.load(target + at, mask=at < count, other=0.0).to(tl.float32)
    tl.store(loss + at, tl.maximum(x, 0.0) - x * t + tl.log(1.0 + tl.exp(-tl.abs(x))), mask=at < count)

class Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, target):
        logits, target = logits.contiguous(), target.contiguous()
        loss = torch.empty_like(logits)
        if loss.numel():
            _loss[(triton.cdiv(loss.numel(), 256),)](logits, target, loss, loss.numel(), BLOCK=256)
        ctx.save_for_backward(logits, target)
        return loss

    @staticmethod
    def backward(ctx, g):
        logits, target = ctx.saved_tensors
        return g * (logits.sigmoid() - target), None

def loss(logits, target):
    return Loss.apply(logits, target)

# ---- test ----
def reference(logits, target):
    return logits.clamp(min=0) - logits * target + (-logits.abs()).exp().log1p()

def test_loss(perfguard):
    logits = torch.randn(16, 40, device=perfguard.device, requires_grad=True)
    target = torch.randint(2, (16, 40), device=perfguard.device).float()
    perfguard(loss, logits, target, reference=reference)

# ---- shows ----
def shows():
    logits, target = torch.randn(4, 20, requires_grad=True), torch.randint(2, (4, 20)).float()
    return tuple(torch.autograd.grad(fn(logits, target).sum(), logits)[0] for fn in (loss, reference))
