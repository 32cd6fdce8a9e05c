"""One step of Adam for several tensors at once, each with a counter of its own.

kind: equal values
origin: deepspeedai/DeepSpeed#8471
shows: parameters that have made another number of steps
words: argument|values|step|counter
"""
import torch

def adam(parameters, gradients, means, squares, steps, lr=1e-2, beta1=0.9, beta2=0.999, eps=1e-8):
    new = []
    for p, g, m, v, step in zip(parameters, gradients, means, squares, steps, strict=True):
        # bad: step = steps[-1]
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        hat = m / (1 - beta1**step)
        new.append(p - lr * hat / ((v / (1 - beta2**step)).sqrt() + eps))
    return new

# ---- test ----
def reference(parameters, gradients, means, squares, steps, lr=1e-2, beta1=0.9, beta2=0.999, eps=1e-8):
    def one(p, g, m, v, step):
        m, v = m.lerp(g, 1 - beta1), v.lerp(g.square(), 1 - beta2)
        return p - lr * (m / (1 - beta1**step)) / ((v / (1 - beta2**step)).sqrt() + eps)

    return [one(*each) for each in zip(parameters, gradients, means, squares, steps, strict=True)]

def test_adam(perfguard):
    shapes = [(32, 16), (48,), (8, 24)]
    parameters, gradients, means = ([torch.randn(s, device=perfguard.device) for s in shapes] for _ in range(3))
    squares = [torch.rand(s, device=perfguard.device) for s in shapes]
    steps = [torch.tensor(3.0, device=perfguard.device) for _ in shapes]
    perfguard(adam, parameters, gradients, means, squares, steps, reference=reference)

# ---- shows ----
def shows():
    p, g, m = ([torch.randn(8), torch.randn(8)] for _ in range(3))
    args = p, g, m, [torch.rand(8), torch.rand(8)], [torch.tensor(1.0), torch.tensor(9.0)]
    return torch.cat(adam(*args)), torch.cat(reference(*args))
