"""Mean of the rows that a bag of indices names; an index may stand for none.

kind: options that are None
origin: flagos-ai/FlagGems#3683
shows: padding_idx=0
words: padding_idx|option|number
"""
import torch

def bag(weight, index, padding_idx=None):
    rows = weight[index]
    if padding_idx is None:
        return rows.mean(1)
    keep = (index != padding_idx).to(weight.dtype)[..., None]
    count = keep.sum(1).clamp(min=1)  # bad: count = index.shape[1]
    return (rows * keep).sum(1) / count

# ---- test ----
def reference(weight, index, padding_idx=None):
    return torch.nn.functional.embedding_bag(index, weight, mode="mean", padding_idx=padding_idx)

def test_bag(perfguard):
    from perfguard import ids

    weight = torch.randn(50, 24, device=perfguard.device)
    index = torch.randint(50, (8, 6), device=perfguard.device)
    perfguard(bag, weight, ids(index, 50), reference=reference)

# ---- shows ----
def shows():
    weight, index = torch.randn(5, 4), torch.tensor([[0, 1, 2], [3, 0, 0]])
    return bag(weight, index, 0), reference(weight, index, 0)
