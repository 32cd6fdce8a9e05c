"""Means of windows of each row; padding may count, and a last window may begin inside and end outside.

kind: two options at once
origin: pytorch/xla#746
shows: ceil_mode beside padding that counts
words: ceil_mode|count_include_pad|option
"""
import torch
import triton
import triton.language as tl

@triton.jit
def _means(x, out, width, made, KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
           COUNT: tl.constexpr, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    start = at * STRIDE - PADDING
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for tap in range(KERNEL):
        place = start + tap
        inside = (place >= 0) & (place < width) & (at < made)
        total += tl.load(x + row * width + place, mask=inside, other=0.0).to(tl.float32)
    if COUNT:
        count = tl.minimum(start + KERNEL, width + PADDING) - start  # bad: count = KERNEL + at * 0
    else:
        count = tl.minimum(start + KERNEL, width) - tl.maximum(start, 0)
    tl.store(out + row * made + at, total / count, mask=at < made)

def means(x, kernel, stride, padding=0, ceil_mode=False, count_include_pad=True):
    x = x.contiguous()
    rows, width = x.shape
    room = width + 2 * padding - kernel
    made = (-(-room // stride) if ceil_mode else room // stride) + 1
    if ceil_mode and (made - 1) * stride >= width + padding:
        made -= 1
    out = x.new_empty(rows, made)
    if out.numel():
        _means[(rows, triton.cdiv(made, 64))](
            x, out, width, made, KERNEL=kernel, STRIDE=stride, PADDING=padding, COUNT=count_include_pad, BLOCK=64
        )
    return out

# ---- test ----
def reference(x, kernel, stride, padding=0, ceil_mode=False, count_include_pad=True):
    return torch.nn.functional.avg_pool1d(x, kernel, stride, padding, ceil_mode, count_include_pad)

def test_means(perfguard):
    x = torch.randn(6, 90, device=perfguard.device)
    perfguard(means, x, 3, 2, kwargs={"padding": 1, "count_include_pad": False}, reference=reference)

# ---- shows ----
def shows():
    x = torch.randn(2, 10)
    return means(x, 3, 2, 1, True), reference(x, 3, 2, 1, True)
