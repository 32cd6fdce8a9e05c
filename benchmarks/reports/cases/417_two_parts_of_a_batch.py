"""Attention of packed tokens, each within its own part: valid ones, and what is behind them.

kind: integers that agree
origin: Tencent-Hunyuan/HunyuanVideo#310
shows: four parts: two samples of a batch
words: groups?|offsets|ends|argument 3
"""
import torch
import torch.nn.functional as F

from perfguard import offsets

def attend(q, k, v, ends):
    made = []
    for start, end in zip([0, *ends.tolist()], ends.tolist(), strict=False):
        # bad: if start == int(ends[0]): end = len(q)
        made.append(F.scaled_dot_product_attention(*(each[start:end].transpose(0, 1) for each in (q, k, v))))
        # bad: if end == len(q): break
    return torch.cat(made, 1).transpose(0, 1)

# ---- test ----
def reference(q, k, v, ends):
    part = torch.searchsorted(ends, torch.arange(len(q), device=q.device), right=True)
    scores = torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
    scores = scores.masked_fill(part[:, None] != part[None], -torch.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)

def test_attend(perfguard):
    q, k, v = torch.randn(3, 48, 2, 16, device=perfguard.device)
    perfguard(attend, q, k, v, offsets(torch.tensor([30, 48], device=perfguard.device)), reference=reference)

# ---- shows ----
def shows():
    q, k, v = torch.randn(3, 12, 1, 4)
    ends = torch.tensor([4, 6, 10, 12])
    return attend(q, k, v, ends), reference(q, k, v, ends)
