"""Number of tokens of each expert, counted by programs of four experts each.

kind: scalars at neutral defaults
origin: ModelTC/LightLLM#1369
shows: 6 experts
words: experts|[0-9]+ for [0-9]+|option|argument 1
"""
import torch
import triton
import triton.language as tl

@triton.jit
def _count(ids, out, tokens, experts, BLOCK: tl.constexpr):
    expert = tl.program_id(0) * 4 + tl.arange(0, 4)
    valid = expert < experts
    # bad: expert, valid = expert % experts, expert >= 0
    total = tl.zeros((4,), dtype=tl.int32)
    for start in range(0, tokens, BLOCK):
        at = start + tl.arange(0, BLOCK)
        own = tl.load(ids + at, mask=at < tokens, other=-1)
        total += tl.sum((own[None, :] == expert[:, None]).to(tl.int32), 1)
    tl.atomic_add(out + expert, total, mask=valid)

def count(ids, experts):
    ids, out = ids.contiguous(), torch.zeros(experts, device=ids.device, dtype=torch.int32)
    _count[(triton.cdiv(experts, 4),)](ids, out, len(ids), experts, BLOCK=64)
    return out

# ---- test ----
def test_count(perfguard):
    from perfguard import ids

    chosen = torch.randint(8, (100,), device=perfguard.device)
    perfguard(count, ids(chosen, 8), 8, reference=lambda ids, n: ids.bincount(minlength=n).int())

# ---- shows ----
def shows():
    chosen = torch.arange(60) % 6
    return count(chosen, 6), chosen.bincount(minlength=6).int()
