"""Choices of the experts of this rank in order, each expert's filled up to whole blocks.

kind: cost of a call
origin: vllm-project/vllm#19590
shows: the bytes of what is allocated for 8 of 256 experts
words: memory|bytes|allocat|peak
"""
import torch

def aligned(chosen, local, experts, block=16):
    count = chosen.numel()
    mine = local[chosen.flatten()]
    per_expert = (mine[:, None] == torch.arange(experts, device=chosen.device)).sum(0)
    whole = (per_expert + block - 1) // block * block
    starts = whole.cumsum(0) - whole
    order = mine.argsort(stable=True)
    sorted_ids = mine[order]
    rank = torch.arange(count, device=chosen.device) - torch.searchsorted(sorted_ids, sorted_ids)
    room = count + experts * (block - 1)
    most = room  # bad: most = count + len(local) * block
    slots = torch.full((most + 1,), count, device=chosen.device)
    slots[torch.where(sorted_ids >= 0, starts[sorted_ids.clamp(min=0)] + rank, room)] = order
    return slots[:room], whole

# ---- test ----
def reference(chosen, local, experts, block=16):
    mine, slots, whole = local[chosen.flatten()], [], []
    for expert in range(experts):
        rows = (mine == expert).nonzero().flatten()
        filled = rows.new_full((-len(rows) % block,), chosen.numel())
        slots += [rows, filled]
        whole.append(len(rows) + len(filled))
    room = chosen.numel() + experts * (block - 1)
    slots = torch.cat(slots)
    rest = slots.new_full((room - len(slots),), chosen.numel())
    return torch.cat([slots, rest]), torch.tensor(whole, device=chosen.device)

def test_aligned(perfguard):
    local = torch.full((256,), -1, device=perfguard.device)
    local[64:72] = torch.arange(8, device=perfguard.device)
    chosen = torch.randint(48, 96, (48, 4), device=perfguard.device)
    perfguard(aligned, chosen, local, 8, reference=reference)

# ---- shows ----
def shows():
    local = torch.full((256,), -1)
    local[64:72] = torch.arange(8)
    slots, _ = aligned(torch.randint(48, 96, (48, 4)), local, 8)
    return slots.untyped_storage().nbytes() // 8, 48 * 4 + 8 * 15 + 1
