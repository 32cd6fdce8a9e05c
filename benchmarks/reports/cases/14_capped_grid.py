"""Row-wise RMS norm of a 2-D tensor by a grid of programs that share the rows.

kind: thresholds
origin: handed; as vllm-project/vllm-ascend#5012
shows: 80 rows: more than programs
words: dim 0|rows|sizes?
"""
import torch
import triton
import triton.language as tl

PROGRAMS = 48

@triton.jit
def _norm(x, out, rows, cols, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    while row < rows:  # bad: if row < rows:
        at = tl.arange(0, BLOCK)
        inside = at < cols
        v = tl.load(x + row * cols + at, mask=inside, other=0.0).to(tl.float32)
        scale = 1.0 / tl.sqrt(tl.sum(v * v, 0) / cols + eps)
        tl.store(out + row * cols + at, v * scale, mask=inside)
        row += tl.num_programs(0)

def norm(x):
    x = x.contiguous()
    out = torch.empty_like(x)
    rows, cols = x.shape
    if x.numel():
        _norm[(min(rows, PROGRAMS),)](x, out, rows, cols, 1e-6, BLOCK=triton.next_power_of_2(cols))
    return out

# ---- test ----
def reference(x):
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), eps=1e-6)

def test_norm(perfguard):
    perfguard(norm, torch.randn(32, 96, device=perfguard.device), reference=reference)

# ---- shows ----
def shows():
    x = torch.randn(80, 96)
    return norm(x), reference(x)
