"""Attention beside the logarithms of the weights' sums, which are for other kernels and have no gradient.

kind: correct
origin: deepseek-ai/FlashMLA#203
shows: the results
words: -
"""
import torch

class Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx, s, v):
        lse = s.logsumexp(-1)
        p = (s - lse[:, None]).exp()
        ctx.save_for_backward(s, v, lse)
        ctx.mark_non_differentiable(lse)
        return p @ v, lse

    @staticmethod
    def backward(ctx, g, _):
        s, v, lse = ctx.saved_tensors
        p = (s - lse[:, None]).exp()
        gp = g @ v.T
        return p * (gp - (gp * p).sum(-1, keepdim=True)), p.T @ g

def attend(s, v):
    return Attend.apply(s, v)

# ---- test ----
def reference(s, v):
    return s.softmax(-1) @ v, s.detach().logsumexp(-1)

def test_attend(perfguard):
    s = torch.randn(24, 40, device=perfguard.device, requires_grad=True)
    v = torch.randn(40, 16, device=perfguard.device, requires_grad=True)
    perfguard(attend, s, v, reference=reference)

# ---- shows ----
def shows():
    s, v = torch.randn(3, 5), torch.randn(5, 2)
    return attend(s, v)[0], reference(s, v)[0]
