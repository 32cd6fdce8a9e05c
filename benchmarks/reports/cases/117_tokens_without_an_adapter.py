"""A low-rank product of each token's own adapter; tokens without one, with -1, get zeros.

kind: unmarked integers
origin: vllm-project/vllm#49656
shows: a token with -1
words: -1|ids?|integers|argument 1
"""
import torch

def adapt(x, adapter, down, up):
    has = (adapter >= 0).to(x.dtype)[:, None]  # bad: has = 1
    low = torch.einsum("td,trd->tr", x, down[adapter])
    return torch.einsum("tr,tdr->td", low, up[adapter]) * has

# ---- test ----
def reference(x, adapter, down, up):
    out = torch.zeros_like(x)
    for number in range(len(down)):
        rows = (adapter == number)[:, None]
        out = out + (x @ down[number].T @ up[number].T).where(rows, 0)
    return out

def test_adapt(perfguard):
    x = torch.randn(40, 32, device=perfguard.device)
    adapter = torch.randint(3, (40,), device=perfguard.device)
    down = torch.randn(3, 8, 32, device=perfguard.device)
    up = torch.randn(3, 32, 8, device=perfguard.device)
    perfguard(adapt, x, adapter, down, up, reference=reference)

# ---- shows ----
def shows():
    x, down, up = torch.randn(4, 8), torch.randn(2, 3, 8), torch.randn(2, 8, 3)
    adapter = torch.tensor([0, -1, 1, 0])
    return adapt(x, adapter, down, up), reference(x, adapter, down, up)
