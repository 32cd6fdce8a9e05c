"""Each channel scaled, for tokens in any layout.

kind: cost on hard inputs
origin: sgl-project/sglang#20469
shows: copies of a transposed input
words: cop(y|ies)
"""
import torch
import triton
import triton.language as tl

from benchmarks.reports.seen import operators

@triton.jit
def _scale(x, w, out, cols, row_stride, col_stride, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    v = tl.load(x + row * row_stride + at * col_stride, mask=at < cols, other=0.0)
    tl.store(out + row * cols + at, v * tl.load(w + at, mask=at < cols, other=0.0), mask=at < cols)

def scale(x, w):
    # bad: x = x.contiguous()
    out = x.new_empty(x.shape)
    if x.numel():
        w = w.contiguous()
        _scale[(len(x),)](x, w, out, x.shape[1], *x.stride(), BLOCK=triton.next_power_of_2(x.shape[1]))
    return out

# ---- test ----
def test_scale(perfguard):
    x, w = torch.randn(24, 40, device=perfguard.device), torch.randn(40, device=perfguard.device)
    perfguard(scale, x, w, reference=lambda x, w: x * w)

# ---- shows ----
def shows():
    x, w = torch.randn(40, 24).T, torch.randn(40)
    return operators(lambda: scale(x, w), "aten.clone"), 0
