"""A convolution of each channel that returns as many tokens as it is given.

kind: multiples
origin: kornia/kornia#709
shows: a filter of four
words: argument 1|dim 1
"""
import torch
import triton
import triton.language as tl

@triton.jit
def _filtered(x, weight, out, tokens, BEFORE, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    channel, at = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for tap in range(WIDTH):
        source = at + tap - BEFORE
        inside = (source >= 0) & (source < tokens)
        value = tl.load(x + channel * tokens + source, mask=inside, other=0.0)
        total += value * tl.load(weight + channel * WIDTH + tap)
    tl.store(out + channel * tokens + at, total, mask=at < tokens)

def filtered(x, weight):
    x, weight = x.contiguous(), weight.contiguous()
    out = torch.empty_like(x)
    if out.numel():
        width = weight.shape[1]
        before = (width - 1) // 2  # bad: before = width // 2
        _filtered[(len(x), triton.cdiv(x.shape[1], 64))](x, weight, out, x.shape[1], before, WIDTH=width, BLOCK=64)
    return out

# ---- test ----
def reference(x, weight):
    width = weight.shape[1]
    padded = torch.nn.functional.pad(x, ((width - 1) // 2, width // 2))
    return (padded.unfold(1, width, 1) * weight[:, None]).sum(-1)

def test_filtered(perfguard):
    perfguard(
        filtered, torch.randn(8, 90, device=perfguard.device), torch.randn(8, 5, device=perfguard.device),
        reference=reference,
    )

# ---- shows ----
def shows():
    x, weight = torch.randn(2, 12), torch.randn(2, 4)
    return filtered(x, weight), reference(x, weight)
