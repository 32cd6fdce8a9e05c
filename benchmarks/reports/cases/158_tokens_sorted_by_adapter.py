"""Rows times the matrix of their adapter; tokens have to come sorted by adapter, one segment each.

kind: correct
origin: vllm-project/vllm#7585
shows: sorted tokens
words: -
"""
import torch

def adapted(x, adapter, weight):
    ends = torch.searchsorted(adapter, torch.arange(len(weight), device=x.device), right=True).tolist()
    spans = zip([0, *ends[:-1]], ends, weight, strict=True)
    parts = [x[start:end] @ own for start, end, own in spans]
    return torch.cat(parts)

# ---- test ----
def reference(x, adapter, weight):
    return torch.bmm(x[:, None], weight[adapter])[:, 0]

def test_adapted(perfguard):
    x = torch.randn(48, 16, device=perfguard.device)
    adapter = torch.arange(48, device=perfguard.device) // 16
    weight = torch.randn(3, 16, 24, device=perfguard.device)
    perfguard(adapted, x, adapter, weight, reference=reference)

# ---- shows ----
def shows():
    x, adapter, weight = torch.randn(6, 8), torch.tensor([0, 0, 1, 1, 1, 2]), torch.randn(3, 8, 8)
    return adapted(x, adapter, weight), reference(x, adapter, weight)
