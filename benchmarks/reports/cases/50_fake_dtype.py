"""A custom operator that computes in float32 and returns the dtype of its input.

kind: fake implementation
origin: vllm-project/vllm-gguf-plugin#82
shows: the dtype of the fake result for bfloat16
words: fake
"""
import torch

@torch.library.custom_op(f"{__name__}::gelu_mul", mutates_args=())
def gelu_mul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (torch.nn.functional.gelu(x.float()) * y.float()).to(x.dtype)

@gelu_mul.register_fake
def _(x, y):
    return torch.empty_like(x)  # bad: return torch.empty_like(x, dtype=torch.float32)

# ---- test ----
def test_gelu_mul(perfguard):
    x, y = torch.randn(2, 16, 40, device=perfguard.device)
    perfguard(gelu_mul, x, y, reference=lambda x, y: torch.nn.functional.gelu(x) * y)

# ---- shows ----
def shows():
    with torch._subclasses.FakeTensorMode() as mode:
        x = mode.from_tensor(torch.randn(16, 40).bfloat16())
        return gelu_mul(x, x).dtype, torch.bfloat16
