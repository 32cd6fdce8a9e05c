"""Layer norm with gains, in float32 up to its result.

kind: correct
origin: ROCm/triton#323
shows: rows within roundings
words: -
"""
import torch
import triton
import triton.language as tl

@triton.jit
def _norm(x, gain, bias, out, cols, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    inside = at < cols
    v = tl.load(x + row * cols + at, mask=inside, other=0.0).to(tl.float32)
    off = tl.where(inside, v - tl.sum(v, 0) / cols, 0.0)
    y = off / tl.sqrt(tl.sum(off * off, 0) / cols + 1e-5)
    w = tl.load(gain + at, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * cols + at, y * w + b, mask=inside)

def layer_norm(x, gain, bias):
    x, gain, bias = x.contiguous(), gain.contiguous(), bias.contiguous()
    out = torch.empty_like(x)
    if x.numel():
        _norm[(len(x),)](x, gain, bias, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return out

# ---- test ----
def reference(x, gain, bias):
    return torch.nn.functional.layer_norm(x, x.shape[-1:], gain, bias)

def test_layer_norm(perfguard):
    x = torch.randn(32, 300, device=perfguard.device, dtype=torch.bfloat16)
    gain, bias = (torch.randn(300, device=perfguard.device, dtype=torch.bfloat16) for _ in range(2))
    perfguard(layer_norm, x, gain, bias, reference=reference)

# ---- shows ----
def shows():
    x, gain, bias = torch.randn(8, 40), torch.randn(40), torch.randn(40)
    return layer_norm(x, gain, bias), reference(x, gain, bias)
