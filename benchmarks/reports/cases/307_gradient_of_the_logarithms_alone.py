"""Attention weights times values, beside the logarithms of the weights' sums; a loss may use one of the two.

kind: modes of a call
origin: Dao-AILab/flash-attention#889
shows: the gradient of a loss of the logarithms alone
words: gradient|output
"""
import torch

class Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx, s, v):
        ctx.set_materialize_grads(False)
        lse = s.logsumexp(-1)
        out = (s - lse[:, None]).exp() @ v
        ctx.save_for_backward(s, v, lse)
        return out, lse

    @staticmethod
    def backward(ctx, g, g_lse):
        s, v, lse = ctx.saved_tensors
        p = (s - lse[:, None]).exp()
        gs, gv = torch.zeros_like(s), torch.zeros_like(v)
        # bad: if g is None: return gs, gv
        if g is not None:
            gp = g @ v.T
            gs, gv = p * (gp - (gp * p).sum(-1, keepdim=True)), p.T @ g
        if g_lse is not None:
            gs = gs + p * g_lse[:, None]
        return gs, gv

def attend(s, v):
    return Attend.apply(s, v)

# ---- test ----
def reference(s, v):
    return s.softmax(-1) @ v, s.logsumexp(-1)

def test_attend(perfguard):
    s = torch.randn(24, 40, device=perfguard.device, requires_grad=True)
    v = torch.randn(40, 16, device=perfguard.device, requires_grad=True)
    perfguard(attend, s, v, reference=reference)

# ---- shows ----
def shows():
    s, v = torch.randn(3, 5, requires_grad=True), torch.randn(5, 2, requires_grad=True)
    return tuple(torch.autograd.grad(fn(s, v)[1].square().sum(), s)[0] for fn in (attend, reference))
