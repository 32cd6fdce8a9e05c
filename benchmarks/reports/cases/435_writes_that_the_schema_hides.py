"""A custom operator that puts rows into their slots of a cache.

kind: schemas
origin: sgl-project/sglang#3944
shows: whether the schema says that the cache is written
words: schema|mutat|writ|argument 2
"""
import torch
from torch import Tensor

WRITTEN = ("cache",)  # bad: WRITTEN = ()

@torch.library.custom_op("report::put", mutates_args=WRITTEN)
def put(rows: Tensor, slots: Tensor, cache: Tensor) -> None:
    cache[slots] = rows.to(cache.dtype)

@put.register_fake
def _(rows, slots, cache):
    return None

# ---- test ----
def reference(rows, slots, cache):
    cache.index_copy_(0, slots, rows.to(cache.dtype))

def test_put(perfguard):
    rows, cache = torch.randn(24, 32, device=perfguard.device), torch.zeros(64, 32, device=perfguard.device)
    slots = torch.randperm(64, device=perfguard.device)[:24]
    perfguard(put, rows, slots, cache, reference=reference, mutates=(2,))

# ---- shows ----
def shows():
    return torch.ops.report.put.default._schema.is_mutable, True
