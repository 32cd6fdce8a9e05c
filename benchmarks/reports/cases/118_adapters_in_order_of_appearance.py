"""Rows of each adapter times the adapter's matrix, found by a sort of the tokens.

kind: sizes and integers
origin: vllm-project/vllm#15979
shows: tokens whose first adapter is not the lowest
words: argument 1|ids?|integers|sorted|reversed|different
"""
import torch

def adapted(x, adapter, weight):
    order = adapter.argsort(stable=True)
    names = adapter.unique()  # bad: names = torch.tensor(list(dict.fromkeys(adapter.tolist())), device=x.device)
    counts = (adapter[None] == names[:, None]).sum(-1)
    parts, start = [], 0
    for name, count in zip(names.tolist(), counts.tolist(), strict=True):
        parts.append(x[order[start : start + count]] @ weight[name])
        start += count
    return torch.cat(parts)[order.argsort()]

# ---- test ----
def reference(x, adapter, weight):
    return torch.bmm(x[:, None], weight[adapter])[:, 0]

def test_adapted(perfguard):
    from perfguard import ids

    x = torch.randn(48, 16, device=perfguard.device)
    adapter = torch.arange(48, device=perfguard.device) // 16
    weight = torch.randn(3, 16, 24, device=perfguard.device)
    perfguard(adapted, x, ids(adapter, 3), weight, reference=reference)

# ---- shows ----
def shows():
    x, adapter, weight = torch.randn(4, 8), torch.tensor([2, 1, 1, 0]), torch.randn(3, 8, 8)
    return adapted(x, adapter, weight), reference(x, adapter, weight)
