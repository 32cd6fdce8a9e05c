"""The gradient of a weight, summed over chunks of tokens.

kind: dtypes
origin: axolotl-ai-cloud/axolotl#1601
shows: bfloat16, 4,096 tokens
words: bfloat16|float16|accumulator|dtype
"""
import torch

def weight_gradient(x, g, chunk=16):
    kind = torch.promote_types(x.dtype, torch.float32)  # bad: kind = x.dtype
    total = x.new_zeros(g.shape[1], x.shape[1], dtype=kind)
    for a, b in zip(g.split(chunk), x.split(chunk), strict=True):
        total += a.T @ b
    return total.to(x.dtype)

# ---- test ----
def test_weight_gradient(perfguard):
    x, g = torch.randn(96, 32, device=perfguard.device), torch.randn(96, 24, device=perfguard.device)
    perfguard(weight_gradient, x, g, reference=lambda x, g: g.T @ x)

# ---- shows ----
def shows():
    x, g = torch.rand(4096, 32).bfloat16(), torch.rand(4096, 24).bfloat16()
    truth = g.double().T @ x.double()
    return bool(((weight_gradient(x, g) - truth) / truth).abs().max() < 2**-7), True
