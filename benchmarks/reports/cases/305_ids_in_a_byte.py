"""Number of tokens of each expert, from ids that are sorted as bytes because that is fastest.

kind: ranges of integers
origin: modelscope/ms-swift#9981
shows: 300 experts
words: argument 1|experts|dim 1|options
"""
import torch

def routed(logits):
    ids = logits.argmax(-1)
    keys = ids.to(torch.uint8 if logits.shape[-1] <= 256 else torch.int32)  # bad: keys = ids.to(torch.uint8)
    order = keys.sort(stable=True)
    return torch.bincount(order.values.long(), minlength=logits.shape[-1]), order.indices

# ---- test ----
def reference(logits):
    ids = logits.argmax(-1)
    return torch.bincount(ids, minlength=logits.shape[-1]), ids.argsort(stable=True)

def test_routed(perfguard):
    perfguard(routed, torch.randn(96, 64, device=perfguard.device), reference=reference)

# ---- shows ----
def shows():
    logits = torch.randn(64, 600)
    return routed(logits)[0], reference(logits)[0]
