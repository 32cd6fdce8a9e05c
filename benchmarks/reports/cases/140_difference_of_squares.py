"""Layer norm whose two moments are summed in one pass.

kind: values
origin: tracel-ai/burn#5607
shows: rows around 1,000
words: values|shifted|large
"""
import torch
import triton
import triton.language as tl

@triton.jit
def _norm(x, out, cols, eps, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    v = tl.load(x + row * cols + at, mask=at < cols, other=0.0)
    mean = tl.sum(v, 0) / cols
    off = tl.where(at < cols, v - mean, 0.0)
    var = tl.sum(off * off, 0) / cols  # bad: var = tl.sum(v * v, 0) / cols - mean * mean
    tl.store(out + row * cols + at, off / tl.sqrt(var + eps), mask=at < cols)

def layer_norm(x, eps=1e-5):
    x = x.contiguous()
    out = torch.empty_like(x)
    _norm[(len(x),)](x, out, x.shape[1], eps, BLOCK=triton.next_power_of_2(x.shape[1]))
    return out

# ---- test ----
def test_layer_norm(perfguard):
    x = torch.randn(32, 96, device=perfguard.device)
    perfguard(layer_norm, x, reference=lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]))

# ---- shows ----
def shows():
    x = torch.randn(4, 96) + 1000
    return layer_norm(x), torch.nn.functional.layer_norm(x.double(), (96,)).float()
