"""A custom operator that returns contiguous rows, however its input lies.

kind: fake implementation
origin: pytorch/pytorch#196347
shows: strides of the fake result for a transposed input
words: fake
"""
import torch

@torch.library.custom_op(f"{__name__}::unit", mutates_args=())
def unit(x: torch.Tensor) -> torch.Tensor:
    x = x.contiguous()
    return x / x.norm(dim=-1, keepdim=True).clamp(min=1e-6)

@unit.register_fake
def _(x):
    return x.new_empty(x.shape)  # bad: return torch.empty_like(x)

# ---- test ----
def test_unit(perfguard):
    x = torch.randn(24, 40, device=perfguard.device)
    perfguard(unit, x, reference=lambda x: x / x.norm(dim=-1, keepdim=True).clamp(min=1e-6))

# ---- shows ----
def shows():
    x = torch.randn(40, 24).T
    with torch._subclasses.FakeTensorMode() as mode:
        fake = unit(mode.from_tensor(x))
    return fake.stride(), unit(x).stride()
