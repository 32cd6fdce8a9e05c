"""A causal convolution of each channel that continues from the inputs before, and returns the last inputs.

kind: thresholds
origin: fla-org/flash-linear-attention#1141
shows: gradients of a chunk of one token
words: dim 1|sizes?|gradient|tokens?
"""
import torch

class CausalConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, before):
        whole = torch.cat([before, x], 1)
        width = weight.shape[1]
        ctx.save_for_backward(whole, weight)
        return (whole.unfold(1, width, 1) * weight[:, None]).sum(-1), whole[:, whole.shape[1] - (width - 1) :].clone()

    @staticmethod
    def backward(ctx, g, g_last):
        whole, weight = ctx.saved_tensors
        width = weight.shape[1]
        grad = torch.zeros_like(whole)
        for tap in range(width):
            grad[:, tap : tap + g.shape[1]] += g * weight[:, tap : tap + 1]
        grad_weight = (whole.unfold(1, width, 1) * g[..., None]).sum(1)
        start = whole.shape[1] - (width - 1)  # bad: start = max(g.shape[1], width - 1)
        grad[:, start : start + width - 1] += g_last[:, : grad.shape[1] - start]
        return grad[:, width - 1 :], grad_weight, grad[:, : width - 1]

def causal_conv(x, weight, before):
    return CausalConv.apply(x, weight, before)

# ---- test ----
def reference(x, weight, before):
    whole = torch.cat([before, x], 1)
    out = torch.nn.functional.conv1d(whole[None], weight[:, None], groups=len(weight))[0]
    return out, whole[:, whole.shape[1] - (weight.shape[1] - 1) :]

def test_causal_conv(perfguard):
    x = torch.randn(16, 40, device=perfguard.device, requires_grad=True)
    weight = torch.randn(16, 4, device=perfguard.device, requires_grad=True)
    before = torch.randn(16, 3, device=perfguard.device, requires_grad=True)
    perfguard(causal_conv, x, weight, before, reference=reference)

# ---- shows ----
def shows():
    x, weight, before = torch.randn(2, 1), torch.randn(2, 4), torch.randn(2, 3, requires_grad=True)
    g = torch.randn(2, 1), torch.randn(2, 3)
    return tuple(torch.autograd.grad(fn(x, weight, before), before, g)[0] for fn in (causal_conv, reference))
