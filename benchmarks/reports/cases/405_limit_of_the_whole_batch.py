"""Logits whose probability is below a share of the likeliest one's become -inf.

kind: equal sizes
origin: lucidrains/x-transformers#184
shows: two rows, of which one has no likely token
words: rows?|sizes?|dim 0|grown
"""
import torch
import triton
import triton.language as tl

@triton.jit
def _filtered(logits, limits, out, width, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    value = tl.load(logits + row * width + at, mask=at < width, other=float("-inf")).to(tl.float32)
    limit = tl.load(limits + row)
    tl.store(out + row * width + at, tl.where(value < limit, float("-inf"), value), mask=at < width)

def filtered(logits, share):
    logits = logits.contiguous()
    out = torch.empty_like(logits)
    if out.numel():
        logp = logits.float().log_softmax(-1)
        lost = logp.new_tensor(share).log()
        limits = logits.float().amax(-1) + lost  # bad: limits = logp.amax() + lost + logits.float().logsumexp(-1)
        _filtered[(len(logits),)](
            logits, limits, out, logits.shape[1], BLOCK=triton.next_power_of_2(logits.shape[1])
        )
    return out

# ---- test ----
def reference(logits, share):
    top = logits.float().max(-1, keepdim=True).values
    return torch.where(logits.float() < top + torch.tensor(share, device=logits.device).log(), -torch.inf, logits)

def test_filtered(perfguard):
    perfguard(filtered, torch.randn(1, 200, device=perfguard.device) * 3, 0.05, reference=reference)

# ---- shows ----
def shows():
    logits = torch.tensor([[9.0, 0.0, 0.0, 0.0], [1.0, 0.9, 0.8, 0.7]])
    return filtered(logits, 0.5), reference(logits, 0.5)
