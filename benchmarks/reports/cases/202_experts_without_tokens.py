"""Linear layers of experts over tokens in their order, with gradients of the weights in one buffer.

kind: integers that agree
origin: meta-pytorch/MSLK#158
shows: an expert that gets no token
words: empty|zero|integers|argument 2
"""
import torch

class Grouped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, counts):
        ctx.save_for_backward(x, w)
        ctx.counts = counts.tolist()
        return torch.cat([part @ w[number].T for number, part in enumerate(x.split(ctx.counts))])

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        parts = zip(x.split(ctx.counts), g.split(ctx.counts), strict=True)
        grad_x, grad_w = [], torch.zeros_like(w)  # bad: grad_x, grad_w = [], torch.empty_like(w)
        for number, (own, incoming) in enumerate(parts):
            grad_x.append(incoming @ w[number])
            if len(own):
                grad_w[number] = incoming.T @ own
        return torch.cat(grad_x), grad_w, None

grouped = Grouped.apply

# ---- test ----
def reference(x, w, counts):
    return torch.cat([part @ w[number].T for number, part in enumerate(x.split(counts.tolist()))])

def test_grouped(perfguard):
    x = torch.randn(40, 32, device=perfguard.device, requires_grad=True)
    w = torch.randn(4, 24, 32, device=perfguard.device, requires_grad=True)
    counts = torch.tensor([12, 4, 16, 8], device=perfguard.device)
    perfguard(grouped, x, w, counts, reference=reference)

# ---- shows ----
def shows():
    x, counts, g = torch.randn(10, 4), torch.tensor([6, 0, 4]), torch.randn(10, 8)
    w = torch.randn(3, 8, 4, requires_grad=True)
    return tuple(torch.autograd.grad(fn(x, w, counts), w, g)[0] for fn in (grouped, reference))
