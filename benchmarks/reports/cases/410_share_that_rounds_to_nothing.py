"""Logits but the likeliest, whose probabilities sum to a share, become -inf.

kind: scalars at neutral defaults
origin: ml-explore/mlx-lm#1912
shows: a share of 1e-8: the likeliest token alone stays
words: argument 1|share|scalar|option
"""
import torch
import triton
import triton.language as tl

@triton.jit
def _kept(probs, order, logits, out, width, below, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    inside = at < width
    total = tl.cumsum(tl.load(probs + row * width + at, mask=inside, other=0.0), 0)
    keep = total > below
    keep = keep | (at == width - 1)  # bad:
    token = tl.load(order + row * width + at, mask=inside, other=0)
    value = tl.load(logits + row * width + token, mask=inside, other=0.0)
    tl.store(out + row * width + token, tl.where(keep, value, float("-inf")), mask=inside)

def nucleus(logits, share):
    logits = logits.contiguous()
    out = torch.empty_like(logits)
    if out.numel():
        probs, order = logits.float().softmax(-1).sort(dim=-1, stable=True)
        width = logits.shape[1]
        _kept[(len(logits),)](
            probs, order, logits, out, width, 1 - share, BLOCK=triton.next_power_of_2(width)
        )
    return out

# ---- test ----
def reference(logits, share):
    ordered, order = logits.sort(dim=-1, stable=True)
    removed = ordered.float().softmax(-1).cumsum(-1) <= 1 - share
    removed[..., -1:] = False
    return logits.masked_fill(removed.scatter(-1, order, removed), -torch.inf)

def test_nucleus(perfguard):
    from perfguard import Hard

    logits = torch.randn(8, 100, device=perfguard.device) * 2
    hard = Hard(without=["non-finite"], reason="logits that are NaN have no order")
    perfguard(nucleus, logits, 0.9, reference=reference, hard=hard)

# ---- shows ----
def shows():
    logits = torch.tensor([[1.0, 3.0, 2.0, 0.5]])
    return nucleus(logits, 1e-8), reference(logits, 1e-8)
