"""New keys are put into their slots of a cache; a batch may be padded beyond its slots.

kind: equal sizes
origin: vllm-project/vllm#13922
shows: 40 keys, of which 32 have slots
words: argument [0-9].*(cut|grown)|sizes?|guard|outside|out of
"""
import torch
import triton
import triton.language as tl

@triton.jit
def _put(key, cache, slots, width, BLOCK: tl.constexpr):
    token, at = tl.program_id(0), tl.arange(0, BLOCK)
    slot = tl.load(slots + token)
    v = tl.load(key + token * width + at, mask=at < width)
    tl.store(cache + slot * width + at, v, mask=at < width)

def put(key, cache, slots):
    key, cache, slots = key.contiguous(), cache.clone(memory_format=torch.contiguous_format), slots.contiguous()
    tokens = len(slots)  # bad: tokens = len(key)
    width = key.shape[1]
    _put[(tokens,)](key, cache, slots, width, BLOCK=triton.next_power_of_2(width))
    return cache

# ---- test ----
def reference(key, cache, slots):
    cache = cache.clone()
    cache[slots] = key[: len(slots)]
    return cache

def test_put(perfguard):
    key = torch.randn(32, 24, device=perfguard.device)
    cache = torch.zeros(128, 24, device=perfguard.device)
    slots = torch.randperm(128, device=perfguard.device)[:32]
    perfguard(put, key, cache, slots, reference=reference)

# ---- shows ----
def shows():
    slots = torch.arange(48, 96)
    slots[32:] = 5  # memory behind the 32 slots
    key, cache = torch.randn(40, 24), torch.zeros(128, 24)
    return put(key, cache, slots[:32]), reference(key, cache, slots[:32])
