"""float32 rounded to bfloat16 by given random bits: they are added to those that a bfloat16 lacks.

kind: correct
origin: pytorch/ao#1124
shows: values and their bits
words: -
"""
import torch
import triton
import triton.language as tl

@triton.jit
def _rounded(x, bits, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < count, other=0.0)
    raw = value.to(tl.int32, bitcast=True)
    moved = (raw + (tl.load(bits + at, mask=at < count, other=0) & 0xFFFF)) & -65536
    raw = tl.where((raw & 0x7F800000) == 0x7F800000, raw, moved)
    tl.store(out + at, raw.to(tl.float32, bitcast=True), mask=at < count)

def rounded(x, bits):
    x, bits = x.contiguous(), bits.contiguous()
    out = torch.empty_like(x)
    if out.numel():
        _rounded[(triton.cdiv(out.numel(), 256),)](x, bits, out, out.numel(), BLOCK=256)
    return out.bfloat16()

# ---- test ----
def reference(x, bits):
    raw = x.float().contiguous().view(torch.int32)
    moved = (raw + (bits & 0xFFFF)) & -65536
    return torch.where(x.isfinite(), moved.view(torch.float32), x.float()).bfloat16()

def test_rounded(perfguard):
    x = torch.randn(24, 40, device=perfguard.device)
    bits = torch.randint(0, 2**16, (24, 40), device=perfguard.device, dtype=torch.int32)
    perfguard(rounded, x, bits, reference=reference)

# ---- shows ----
def shows():
    x, bits = torch.randn(4, 8), torch.randint(0, 2**16, (4, 8), dtype=torch.int32)
    return rounded(x, bits), reference(x, bits)
