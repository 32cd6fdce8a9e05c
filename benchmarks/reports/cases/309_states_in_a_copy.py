"""One token of a linear attention: states of all heads are decayed and updated where they lie.

kind: layouts
origin: flashinfer-ai/flashinfer#2509
shows: states that are a slice of a wider pool
words: argument 3|layout|slice|transposed|strid
"""
import torch

def step(q, k, v, state, decay):
    flat = state.reshape(-1, *state.shape[-2:])
    key, value = k.reshape(-1, k.shape[-1], 1), v.reshape(-1, 1, v.shape[-1])
    new = flat * decay + key * value
    state.copy_(new.view(state.shape))  # bad: flat.copy_(new)
    return (q[..., None, :] @ new.view(state.shape)).squeeze(-2)

# ---- test ----
def reference(q, k, v, state, decay):
    state.mul_(decay).add_(torch.einsum("bhk,bhv->bhkv", k, v))
    return torch.einsum("bhk,bhkv->bhv", q, state)

def test_step(perfguard):
    q, k = torch.randn(2, 4, 6, 16, device=perfguard.device)
    v = torch.randn(4, 6, 24, device=perfguard.device)
    state = torch.randn(4, 6, 16, 24, device=perfguard.device)
    perfguard(step, q, k, v, state, 0.9, reference=reference, mutates=(3,))

# ---- shows ----
def shows():
    q, k = torch.randn(2, 2, 3, 4)
    v, pool = torch.randn(2, 3, 5), torch.randn(2, 3, 4, 10)
    got, want = (pool.transpose(0, 1).contiguous().transpose(0, 1)[..., :5] for _ in range(2))
    step(q, k, v, got, 0.5)
    reference(q, k, v, want, 0.5)
    return got, want
