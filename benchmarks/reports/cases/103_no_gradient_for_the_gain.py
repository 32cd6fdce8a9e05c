"""RMS norm with a gain, with a backward pass of its own.

kind: modes of a call
origin: unslothai/unsloth#4550
shows: the gradient of the gain
words: gradient|requires_grad|requires grad|argument 1
"""
import torch

class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, gain):
        r = x.square().mean(-1, keepdim=True).add(1e-6).rsqrt()
        ctx.save_for_backward(x, gain, r)
        return x * r * gain

    @staticmethod
    def backward(ctx, g):
        x, gain, r = ctx.saved_tensors
        scaled = g * gain
        grad = r * (scaled - x * r * r * (scaled * x).mean(-1, keepdim=True))
        grad_gain = (g * x * r).flatten(0, -2).sum(0)  # bad: grad_gain = None
        return grad, grad_gain

norm = Norm.apply

# ---- test ----
def reference(x, gain):
    return torch.nn.functional.rms_norm(x, x.shape[-1:], gain, 1e-6)

def test_norm(perfguard):
    x = torch.randn(4, 16, 64, device=perfguard.device, requires_grad=True)
    gain = torch.rand(64, device=perfguard.device) + 0.5
    perfguard(norm, x, gain, reference=reference)

# ---- shows ----
def shows():
    x, gain = torch.randn(8, 16), torch.rand(16, requires_grad=True)
    got, want = (torch.autograd.grad(fn(x, gain).sum(), gain, allow_unused=True)[0] for fn in (norm, reference))
    return (torch.zeros(16) if got is None else got), want
