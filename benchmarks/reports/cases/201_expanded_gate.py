"""SiLU of a gate times a value, element by element as they lie in memory.

kind: layouts
origin: NVIDIA/Fuser#806
shows: a gate that is one row, expanded
words: expand|strides?|layout|argument 0
"""
import torch
import triton
import triton.language as tl

@triton.jit
def _gated(gate, value, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    g = tl.load(gate + at, mask=at < count, other=0.0).to(tl.float32)
    v = tl.load(value + at, mask=at < count, other=0.0).to(tl.float32)
    tl.store(out + at, g / (1 + tl.exp(-g)) * v, mask=at < count)

def is_dense(x):
    step = 1
    for size, stride in zip(reversed(x.shape), reversed(x.stride()), strict=True):
        if stride != step:  # bad: if stride not in (0, step):
            return False
        step *= size
    return True

def gated(gate, value):
    gate, value = (x if is_dense(x) else x.contiguous() for x in (gate, value))
    out = torch.empty(gate.shape, device=gate.device, dtype=gate.dtype)
    if out.numel():
        _gated[(triton.cdiv(out.numel(), 256),)](gate, value, out, out.numel(), BLOCK=256)
    return out

# ---- test ----
def test_gated(perfguard):
    gate, value = (torch.randn(24, 48, device=perfguard.device) for _ in range(2))
    perfguard(gated, gate, value, reference=lambda gate, value: torch.nn.functional.silu(gate) * value)

# ---- shows ----
def shows():
    rows = torch.randn(3, 8)
    gate, value = rows[0].expand(3, 8), torch.randn(3, 8)
    return gated(gate, value), torch.nn.functional.silu(gate) * value
