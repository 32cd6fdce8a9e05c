"""Keys of a cache as 4-bit codes, with a scale and a zero point for each head of each token.

kind: multiples
origin: InternLM/lmdeploy#4849
shows: heads of 96 channels whose values are all above zero
words: dim|values|shifted|argument 0
"""
import torch
import triton
import triton.language as tl

@triton.jit
def _codes(x, codes, scale, zero, width, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    inside = at < width
    v = tl.load(x + row * width + at, mask=inside, other=0.0)
    low = tl.min(tl.where(inside, v, float("inf")))  # bad: low = tl.min(v)
    high = tl.max(tl.where(inside, v, -float("inf")))  # bad: high = tl.max(v)
    step = tl.maximum(high - low, 1e-6) / 15.0
    code = tl.minimum(tl.floor((v - low) / step + 0.5), 15.0)
    tl.store(codes + row * width + at, code.to(tl.uint8), mask=inside)
    tl.store(scale + row, step)
    tl.store(zero + row, low)

def cached(x):
    x = x.contiguous()
    codes = torch.empty_like(x, dtype=torch.uint8)
    scale, zero = (x.new_empty(x.shape[:-1], dtype=torch.float32) for _ in range(2))
    if x.numel():
        width = x.shape[-1]
        _codes[(x.numel() // width,)](x, codes, scale, zero, width, BLOCK=triton.next_power_of_2(width))
    return codes, scale, zero

# ---- test ----
def reference(x):
    low, high = x.aminmax(dim=-1, keepdim=True)
    step = (high - low).clamp(min=1e-6) / 15.0
    codes = ((x - low) / step + 0.5).floor().clamp(max=15.0)
    return codes.to(torch.uint8), step.squeeze(-1), low.squeeze(-1)

def test_cached(perfguard):
    perfguard(cached, torch.randn(20, 4, 64, device=perfguard.device), reference=reference)

# ---- shows ----
def shows():
    x = torch.rand(2, 3, 96) + 1
    return cached(x)[2], reference(x)[2]
