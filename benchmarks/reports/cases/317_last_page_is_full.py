"""Mean of the keys of each sequence, which lie in pages; its table says where, its length how many.

kind: unmarked integers
origin: pegainfer-project/pegainfer#291
shows: a length that fills its last page
words: argument [12]
"""
import torch

def means(pages, table, lengths):
    size = pages.shape[1]
    made = []
    for row, length in zip(table, lengths.tolist(), strict=True):
        count = -(-length // size)  # bad: count = length // size + 1
        last = length - (count - 1) * size
        last = last if last else size
        keys = pages[row[:count].long()].flatten(0, 1)[: (count - 1) * size + last]
        made.append(keys.mean(0))
    return torch.stack(made)

# ---- test ----
def reference(pages, table, lengths):
    keys = pages[table.long()].flatten(1, 2)
    inside = torch.arange(keys.shape[1], device=pages.device) < lengths[:, None]
    return (keys * inside[..., None]).sum(1) / lengths[:, None]

def test_means(perfguard):
    pages = torch.randn(32, 8, 16, device=perfguard.device)
    table = torch.randperm(32, device=perfguard.device).view(4, 8).int()
    lengths = torch.tensor([5, 30, 43, 60], device=perfguard.device, dtype=torch.int32)
    perfguard(means, pages, table, lengths, reference=reference)

# ---- shows ----
def shows():
    pages, table = torch.randn(6, 4, 3), torch.tensor([[0, 3, 5], [1, 2, 4]], dtype=torch.int32)
    lengths = torch.tensor([8, 5], dtype=torch.int32)
    return means(pages, table, lengths), reference(pages, table, lengths)
