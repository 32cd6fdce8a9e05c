"""Sums over what comes before in each row, with the element itself or without, blocks in parallel.

kind: thresholds
origin: JuliaGPU/AcceleratedKernels.jl#127
shows: sums without the element itself over two blocks
words: exclusive|dim 1|sizes?
"""
import torch
import triton
import triton.language as tl

@triton.jit
def _blocks(x, out, sums, width, blocks, EXCLUSIVE: tl.constexpr, BLOCK: tl.constexpr):
    row, block = tl.program_id(0), tl.program_id(1)
    at = block * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + row * width + at, mask=at < width, other=0.0).to(tl.float32)
    made = tl.cumsum(value, 0)
    if EXCLUSIVE:
        made -= value
    tl.store(out + row * width + at, made, mask=at < width)
    tl.store(sums + row * blocks + block, tl.sum(value, 0))

@triton.jit
def _carried(out, carry, width, blocks, EXCLUSIVE: tl.constexpr, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    source = at // BLOCK
    # bad: source = (at + 1) // BLOCK if EXCLUSIVE else at // BLOCK
    before = tl.load(carry + row * blocks + source, mask=source < blocks, other=0.0)
    value = tl.load(out + row * width + at, mask=at < width, other=0.0)
    tl.store(out + row * width + at, value + before, mask=at < width)

def running(x, exclusive=False):
    x = x.contiguous()
    out = torch.empty_like(x, dtype=torch.float32)
    if out.numel():
        rows, width = x.shape
        blocks = triton.cdiv(width, 128)
        sums = torch.empty(rows, blocks, device=x.device)
        _blocks[(rows, blocks)](x, out, sums, width, blocks, EXCLUSIVE=exclusive, BLOCK=128)
        carry = torch.nn.functional.pad(sums.cumsum(1), (1, 0))[:, :-1].contiguous()
        _carried[(rows, blocks)](out, carry, width, blocks, EXCLUSIVE=exclusive, BLOCK=128)
    return out

# ---- test ----
def reference(x, exclusive=False):
    made = x.float().cumsum(-1)
    return torch.nn.functional.pad(made, (1, 0))[:, :-1] if exclusive else made

def test_running(perfguard):
    perfguard(running, torch.randn(6, 300, device=perfguard.device), reference=reference)

# ---- shows ----
def shows():
    x = torch.randn(2, 200)
    return running(x, True), reference(x, True)
