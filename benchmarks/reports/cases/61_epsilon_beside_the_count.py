"""RMS norm of rows.

kind: near an epsilon
origin: xlite-dev/LeetCUDA#309
shows: rows of about 0.001
words: values|times 2|epsilon|small
"""
import torch
import triton
import triton.language as tl

@triton.jit
def _norm(x, out, cols, eps, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    v = tl.load(x + row * cols + at, mask=at < cols, other=0.0).to(tl.float32)
    mean = tl.sum(v * v, 0) / cols + eps  # bad: mean = tl.sum(v * v, 0) / (cols + eps)
    tl.store(out + row * cols + at, v / tl.sqrt(mean), mask=at < cols)

def norm(x, eps=1e-5):
    x = x.contiguous()
    out = torch.empty_like(x)
    if x.numel():
        _norm[(len(x),)](x, out, x.shape[1], eps, BLOCK=triton.next_power_of_2(x.shape[1]))
    return out

# ---- test ----
def reference(x, eps=1e-5):
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), eps=eps)

def test_norm(perfguard):
    perfguard(norm, torch.randn(24, 96, device=perfguard.device), reference=reference)

# ---- shows ----
def shows():
    x = torch.randn(24, 96) * 1e-3
    return norm(x), reference(x)
