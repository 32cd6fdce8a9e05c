"""Rows weighted by the level of their distance to the last one, in blocks of 64.

kind: out of bounds
origin: fla-org/flash-linear-attention#1142
shows: the furthest element of levels that 100 rows read
words: outside|out of bounds|behind|beyond|past|guard
"""
import torch
import triton
import triton.language as tl

@triton.jit
def _weighted(x, level, out, rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    row, col = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, COLS)
    live = row < rows
    scale = tl.load(level + row, mask=live, other=0.0)  # bad: scale = tl.load(level + row)
    scale = tl.where(live, scale, 0.0)
    at = row[:, None] * cols + col[None, :]
    inside = live[:, None] & (col < cols)[None, :]
    v = tl.load(x + at, mask=inside, other=0.0)
    tl.store(out + at, v * scale[:, None], mask=inside)

def weighted(x, level):
    x, level = x.contiguous(), level.contiguous()
    out = torch.empty_like(x)
    rows, cols = x.shape
    _weighted[(triton.cdiv(rows, 64),)](x, level, out, rows, cols, ROWS=64, COLS=triton.next_power_of_2(cols))
    return out

# ---- test ----
def test_weighted(perfguard):
    x, level = torch.randn(128, 32, device=perfguard.device), torch.rand(128, device=perfguard.device)
    perfguard(weighted, x, level, reference=lambda x, level: x * level[:, None])

# ---- shows ----
def shows():
    from triton.runtime.interpreter import InterpreterBuilder
    from unittest import mock

    x, level, furthest = torch.randn(100, 4), torch.rand(100), 0
    load, plain = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_load

    def seen(pointers, lanes):
        nonlocal furthest
        at = (pointers.data.astype("int64") - level.data_ptr()) // 4
        if pointers.data.ndim == 1:
            furthest = max(furthest, int(at[lanes].max(initial=0)))

    def masked(self, pointers, mask, *rest):
        seen(pointers, mask.data.astype(bool))
        return load(self, pointers, mask, *rest)

    def whole(self, pointers, *rest):
        seen(pointers, slice(None))
        return plain(self, pointers, *rest)

    with mock.patch.multiple(InterpreterBuilder, create_masked_load=masked, create_load=whole):
        weighted(x, level)
    return furthest, 99
