"""A custom operator with a fake implementation, so that it can be compiled.

kind: fake implementation
origin: handed; as KellerJordan/modded-nanogpt#83
shows: strides of the fake result
words: fake
"""
import torch

@torch.library.custom_op(f"{__name__}::swap_scale", mutates_args=())
def swap_scale(x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return (x * s).T.contiguous()

@swap_scale.register_fake
def _(x, s):
    return x.new_empty(x.shape[1], x.shape[0])  # bad: return x.new_empty(x.shape[0], x.shape[1]).T

# ---- test ----
def test_swap_scale(perfguard):
    x = torch.randn(24, 40, device=perfguard.device)
    s = torch.rand(24, 1, device=perfguard.device)
    perfguard(swap_scale, x, s, reference=lambda x, s: (x * s).T.contiguous())

# ---- shows ----
def shows():
    x, s = torch.randn(24, 40), torch.rand(24, 1)
    with torch._subclasses.FakeTensorMode() as mode:
        fake = swap_scale(mode.from_tensor(x), mode.from_tensor(s))
    return fake.stride(), swap_scale(x, s).stride()
