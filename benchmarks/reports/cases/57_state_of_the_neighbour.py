"""The last row of each packed sequence, which its tokens and its end both name.

kind: integers that agree
origin: fla-org/flash-linear-attention#1184
shows: an empty sequence
words: empty|ends
"""
import torch

def last_rows(x, sequence, ends):
    at = (ends - 1).clamp(min=0)
    own = sequence[at] == torch.arange(len(ends), device=x.device)
    return x[at].where(own[:, None], 0)  # bad: return x[at]

# ---- test ----
def reference(x, sequence, ends):
    rows = [x[sequence == number] for number in range(len(ends))]
    return torch.stack([each[-1] if len(each) else x.new_zeros(x.shape[1]) for each in rows])

def test_last_rows(perfguard):
    from perfguard import offsets

    x = torch.randn(40, 16, device=perfguard.device)
    ends = torch.tensor([8, 24, 40], device=perfguard.device)
    sequence = torch.tensor([0] * 8 + [1] * 16 + [2] * 16, device=perfguard.device)
    perfguard(last_rows, x, sequence, offsets(ends, ids=sequence), reference=reference)

# ---- shows ----
def shows():
    x, sequence, ends = torch.randn(40, 16), torch.tensor([0] * 8 + [2] * 32), torch.tensor([8, 8, 40])
    return last_rows(x, sequence, ends), reference(x, sequence, ends)
