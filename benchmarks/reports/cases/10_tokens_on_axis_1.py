"""Scale of each token by its gate, heads on the second axis of the grid.

kind: addresses and grids
origin: handed; as fla-org/flash-linear-attention#172
shows: 70,000 tokens: the grid's second axis ends at 65,535
words: grid|65,?535
"""
import torch
import triton
import triton.language as tl

from benchmarks.reports.seen import Grids

@triton.jit
def _gate(x, gate, out, D: tl.constexpr, HEADS: tl.constexpr):
    token = tl.program_id(0)  # bad: token = tl.program_id(1)
    head = tl.program_id(1)  # bad: head = tl.program_id(0)
    at = (token * HEADS + head) * D + tl.arange(0, D)
    tl.store(out + at, tl.load(x + at).to(tl.float32) * tl.load(gate + token * HEADS + head).to(tl.float32))

def scaled(x, gate):
    x, gate = x.contiguous(), gate.contiguous()
    out = torch.empty_like(x)
    tokens, heads, d = x.shape
    if d & (d - 1):
        raise ValueError("head dimension: a power of two")
    if x.numel():
        grid = (tokens, heads)  # bad: grid = (heads, tokens)
        _gate[grid](x, gate, out, D=d, HEADS=heads)
    return out

# ---- test ----
def test_scaled(perfguard):
    x = torch.randn(20, 4, 16, device=perfguard.device)
    gate = torch.rand(20, 4, device=perfguard.device)
    perfguard(scaled, x, gate, reference=lambda x, g: x * g[..., None])

# ---- shows ----
def shows():
    global _gate
    _gate = Grids()
    scaled(torch.empty(70_000, 4, 1), torch.empty(70_000, 4))
    return _gate.seen[1] <= 65_535, True
