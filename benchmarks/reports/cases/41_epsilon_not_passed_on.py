"""RMS norm with an epsilon of the caller's.

kind: scalars at neutral defaults
origin: NVIDIA/cutlass#1112
shows: an epsilon of 0.1
words: eps
"""
import torch
import triton
import triton.language as tl

@triton.jit
def _norm(x, w, out, cols, eps, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    v = tl.load(x + row * cols + at, mask=at < cols, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(v * v, 0) / cols + eps)
    gain = tl.load(w + at, mask=at < cols, other=0.0).to(tl.float32)
    tl.store(out + row * cols + at, v * scale * gain, mask=at < cols)

def norm(x, w, eps=1e-6):
    x, w, given = x.contiguous(), w.contiguous(), eps  # bad: x, w, given = x.contiguous(), w.contiguous(), 1e-6
    out = torch.empty_like(x)
    if x.numel():
        _norm[(len(x),)](x, w, out, x.shape[1], given, BLOCK=triton.next_power_of_2(x.shape[1]))
    return out

# ---- test ----
def reference(x, w, eps=1e-6):
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), w, eps)

def test_norm(perfguard):
    x, w = torch.randn(24, 96, device=perfguard.device), torch.randn(96, device=perfguard.device)
    perfguard(norm, x, w, reference=reference)

# ---- shows ----
def shows():
    x, w = torch.randn(24, 96), torch.randn(96)
    return norm(x, w, 0.1), reference(x, w, 0.1)
