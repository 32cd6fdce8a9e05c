"""The best expert of each token by a score with a bias, and its weight without it.

kind: values
origin: vllm-project/vllm#31478
shows: a bias of -3
words: values|shifted|argument 1|output
"""
import torch
import triton
import triton.language as tl

@triton.jit
def _best(logits, bias, weight, index, experts, BLOCK: tl.constexpr):
    token, at = tl.program_id(0), tl.arange(0, BLOCK)
    score = tl.sigmoid(tl.load(logits + token * experts + at, mask=at < experts, other=0.0).to(tl.float32))
    chosen = score + tl.load(bias + at, mask=at < experts, other=0.0)
    chosen = tl.where(at < experts, chosen, -float("inf"))  # bad: chosen = tl.where(at < experts, chosen, -1.0)
    best = tl.argmax(chosen, 0)
    tl.store(index + token, best)
    tl.store(weight + token, tl.sum(tl.where(at == best, score, 0.0), 0))

def best(logits, bias):
    logits, bias = logits.contiguous(), bias.contiguous()
    tokens, experts = logits.shape
    weight = torch.empty(tokens, device=logits.device)
    index = torch.empty(tokens, device=logits.device, dtype=torch.int64)
    _best[(tokens,)](logits, bias, weight, index, experts, BLOCK=triton.next_power_of_2(experts))
    return weight, index

# ---- test ----
def reference(logits, bias):
    score = logits.float().sigmoid()
    index = (score + bias).argmax(-1)
    return score.gather(-1, index[:, None])[:, 0], index

def test_best(perfguard):
    logits = torch.randn(32, 60, device=perfguard.device)
    bias = torch.randn(60, device=perfguard.device) * 0.1
    perfguard(best, logits, bias, reference=reference)

# ---- shows ----
def shows():
    logits, bias = torch.randn(8, 60), torch.full((60,), -3.0)
    return best(logits, bias)[1], reference(logits, bias)[1]
