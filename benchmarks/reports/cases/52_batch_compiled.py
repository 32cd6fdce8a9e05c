"""The last stage of decoding: partial results of each request are put together.

kind: compilations over sizes
origin: ROCm/aiter#4545
shows: two numbers of requests: two compilations
words: compil|speciali[sz]|constexpr
"""
import torch
import triton
import triton.language as tl

@triton.jit
def _combine(
    parts,
    weight,
    out,
    batch,  # bad: batch: tl.constexpr,
    SPLITS: tl.constexpr,
    D: tl.constexpr,
):
    request, d = tl.program_id(0), tl.arange(0, D)
    total = 0.0
    acc = tl.zeros([D], tl.float32)
    for split in range(SPLITS):
        w = tl.exp(tl.load(weight + split * batch + request))
        acc += w * tl.load(parts + (split * batch + request) * D + d)
        total += w
    tl.store(out + request * D + d, acc / total)

def combine(parts, weight):
    parts, weight = parts.contiguous(), (weight - weight.amax(0)).contiguous()
    splits, batch, d = parts.shape
    if d & (d - 1) or not splits:
        raise ValueError("width: a power of two; splits: one at least")
    out = parts.new_empty(batch, d)
    if batch:
        _combine[(batch,)](parts, weight, out, batch, SPLITS=splits, D=d)
    return out

# ---- test ----
def reference(parts, weight):
    return (weight.softmax(0)[..., None] * parts).sum(0)

def test_combine(perfguard):
    parts, weight = torch.randn(4, 24, 16, device=perfguard.device), torch.randn(4, 24, device=perfguard.device)
    perfguard(combine, parts, weight, reference=reference)

# ---- shows ----
def shows():
    return "batch" in _combine.fn.__annotations__, False
