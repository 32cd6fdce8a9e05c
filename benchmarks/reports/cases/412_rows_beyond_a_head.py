"""A chunk of keys is put into the cache of each head, which is deeper, by programs of 16 rows.

kind: multiples
origin: tenstorrent/tt-metal#54742
shows: a chunk of 24 rows: a program with rows of two heads
words: dim 1|sizes?|argument 1
"""
import torch
import triton
import triton.language as tl

@triton.jit
def _put(cache, new, start, rows, chunk, depth, width, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    first = tl.program_id(0) * ROWS
    row, lane = first + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    inside = (row[:, None] < rows) & (lane[None, :] < width)
    value = tl.load(new + row[:, None] * width + lane[None, :], mask=inside, other=0.0)
    target = (row // chunk) * depth + start + row % chunk
    # bad: target = (first // chunk) * depth + start + first % chunk + tl.arange(0, ROWS)
    tl.store(cache + target[:, None] * width + lane[None, :], value, mask=inside)

def put(cache, new, start):
    made, new = cache.clone(memory_format=torch.contiguous_format), new.contiguous()
    heads, chunk, width = new.shape
    if new.numel():
        rows = heads * chunk
        _put[(triton.cdiv(rows, 16),)](
            made, new, start, rows, chunk, cache.shape[1], width, ROWS=16, WIDTH=triton.next_power_of_2(width)
        )
    return made

# ---- test ----
def reference(cache, new, start):
    made = cache.clone()
    made[:, start : start + new.shape[1]] = new
    return made

def test_put(perfguard):
    cache, new = torch.randn(4, 96, 24, device=perfguard.device), torch.randn(4, 32, 24, device=perfguard.device)
    perfguard(put, cache, new, 40, reference=reference)

# ---- shows ----
def shows():
    cache, new = torch.randn(3, 48, 4), torch.randn(3, 24, 4)
    return put(cache, new, 8), reference(cache, new, 8)
