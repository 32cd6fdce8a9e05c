"""GELU by its approximation with tanh, in float32 whatever comes in.

kind: dtypes
origin: facebookresearch/fairseq#2235
shows: the gradient at 300 in float16
words: float16|times|large
"""
import torch

def gelu(x):
    v = x.float()  # bad: v = x
    inner = 0.7978845608028654 * (v + 0.044715 * v**3)
    return (0.5 * v * (1 + torch.tanh(inner))).to(x.dtype)

# ---- test ----
def reference(x):
    return torch.nn.functional.gelu(x, approximate="tanh")

def test_gelu(perfguard):
    x = torch.randn(24, 48, device=perfguard.device, requires_grad=True)
    perfguard(gelu, x, reference=reference)

# ---- shows ----
def shows():
    x = torch.tensor([300.0, -2.0, 0.5], dtype=torch.float16, requires_grad=True)
    return tuple(torch.autograd.grad(fn(x).sum(), x)[0] for fn in (gelu, reference))
