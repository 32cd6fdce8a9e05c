"""Probabilities of a router beside the logarithms of their sums, of which a further loss is made, or not.

kind: modes of a call
origin: THUDM/slime#2158
shows: the gradient of the probabilities alone
words: gradient|output|None
"""
import torch

class Router(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits):
        sums = logits.logsumexp(-1)
        probabilities = (logits - sums[..., None]).exp()
        ctx.save_for_backward(probabilities)
        # bad: ctx.set_materialize_grads(False)
        return probabilities, sums

    @staticmethod
    def backward(ctx, g, g_sums):
        (p,) = ctx.saved_tensors
        return p * (g - (g * p).sum(-1, keepdim=True) + g_sums[..., None])

def routed(logits):
    return Router.apply(logits)

# ---- test ----
def test_routed(perfguard):
    logits = torch.randn(48, 16, device=perfguard.device, requires_grad=True)
    perfguard(routed, logits, reference=lambda logits: (logits.softmax(-1), logits.logsumexp(-1)))

# ---- shows ----
def shows():
    logits = torch.randn(3, 5, requires_grad=True)
    g = torch.randn(3, 5)
    of = [torch.autograd.grad(p, logits, g)[0] for p in (routed(logits)[0], logits.softmax(-1))]
    return tuple(of)
