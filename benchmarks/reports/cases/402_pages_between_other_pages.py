"""Scores of one query with the keys of a sequence, which lie in pages; a table says in which.

kind: layouts
origin: ROCm/aiter#3498
shows: pages of keys that lie between pages of values
words: stride|slice|layout|argument 1
"""
import torch
import triton
import triton.language as tl

@triton.jit
def _scores(q, pages, table, out, width, page_stride, slot_stride, PAGE: tl.constexpr, WIDTH: tl.constexpr):
    number, slot, lane = tl.program_id(0), tl.arange(0, PAGE), tl.arange(0, WIDTH)
    page = tl.load(table + number).to(tl.int64)
    start = pages + page * page_stride  # bad: start = pages + page * PAGE * slot_stride
    place = start + slot[:, None] * slot_stride + lane[None, :]
    keys = tl.load(place, mask=(slot[:, None] >= 0) & (lane[None, :] < width), other=0.0).to(tl.float32)
    query = tl.load(q + lane, mask=lane < width, other=0.0).to(tl.float32)
    tl.store(out + number * PAGE + slot, tl.sum(keys * query[None, :], 1))

def scores(q, pages, table):
    q, table = q.contiguous(), table.contiguous()
    if pages.stride(-1) != 1:
        pages = pages.contiguous()
    _, size, width = pages.shape
    out = torch.empty(len(table) * size, device=q.device)
    if out.numel():
        _scores[(len(table),)](
            q, pages, table, out, width, pages.stride(0), pages.stride(1),
            PAGE=size, WIDTH=triton.next_power_of_2(width),
        )
    return out

# ---- test ----
def reference(q, pages, table):
    return pages[table.long()].flatten(0, 1).float() @ q.float()

def test_scores(perfguard):
    pages = torch.randn(24, 16, 32, device=perfguard.device)
    table = torch.randperm(24, device=perfguard.device)[:6].int()
    perfguard(scores, torch.randn(32, device=perfguard.device), pages, table, reference=reference)

# ---- shows ----
def shows():
    both, table = torch.randn(5, 2, 4, 8), torch.tensor([3, 1], dtype=torch.int32)
    q = torch.randn(8)
    return scores(q, both[:, 0], table), reference(q, both[:, 0], table)
