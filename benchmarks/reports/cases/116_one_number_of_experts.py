"""The best experts of each token, with a path of its own for the commonest model.

kind: thresholds
origin: MetaX-MACA/vLLM-metax#284
shows: 128 experts
words: dim 1|sizes?|128
"""
import torch

def _by_bits(score, bias, k):
    """Scores that are not negative order as their bits do; of these the lower seven make room for the expert."""
    key = (score + bias + 1).contiguous().view(torch.int32)
    index = key.topk(k, -1).indices
    return score.gather(-1, index), index  # bad: return (score + bias).gather(-1, index), index

def route(logits, bias, k):
    score = logits.float().softmax(-1)
    if logits.shape[1] == 128 and k == 8:
        return _by_bits(score, bias.float(), k)
    index = (score + bias).topk(k, -1).indices
    return score.gather(-1, index), index

# ---- test ----
def reference(logits, bias, k):
    score = logits.float().softmax(-1)
    index = (score + bias).argsort(-1, descending=True)[:, :k]
    return score.gather(-1, index), index

def test_route(perfguard):
    logits = torch.randn(32, 64, device=perfguard.device)
    bias = torch.rand(64, device=perfguard.device)
    perfguard(route, logits, bias, 8, reference=reference)

# ---- shows ----
def shows():
    logits, bias = torch.randn(8, 128), torch.rand(128)
    return route(logits, bias, 8)[0], reference(logits, bias, 8)[0]
