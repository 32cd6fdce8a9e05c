"""The product of each row, with a backward pass of its own.

kind: values
origin: tracel-ai/burn#5533
shows: the gradient of a row with one zero
words: zeros?|gradient|nan
"""
import torch
import triton
import triton.language as tl

@triton.jit
def _product(a, b):
    return a * b

@triton.jit
def _rows(x, out, width, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    value = tl.load(x + row * width + at, mask=at < width, other=1.0)
    tl.store(out + row, tl.reduce(value, 0, _product))

class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        out = x.new_ones(len(x))
        if x.numel():
            _rows[(len(x),)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        ctx.save_for_backward(x, out)
        return out

    @staticmethod
    def backward(ctx, g):
        x, out = ctx.saved_tensors  # noqa: RUF059
        ones = x.new_ones(len(x), 1)
        before = torch.cat([ones, x[:, :-1]], 1).cumprod(1)
        behind = torch.cat([x[:, 1:], ones], 1).flip(1).cumprod(1).flip(1)
        return g[:, None] * before * behind  # bad: return g[:, None] * out[:, None] / x

def product(x):
    return Product.apply(x)

# ---- test ----
def reference(x):
    return x.prod(-1)

def test_product(perfguard):
    x = torch.randn(24, 12, device=perfguard.device, requires_grad=True)
    perfguard(product, x, reference=reference)

# ---- shows ----
def shows():
    x = torch.tensor([[2.0, 0.0, 3.0, 4.0]], requires_grad=True)
    return tuple(torch.autograd.grad(fn(x).sum(), x)[0] for fn in (product, reference))
