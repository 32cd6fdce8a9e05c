"""Common operators written another way: what is right passes in every dtype and size, and what is a little wrong fails.

A right one rounds no more often than eager and adds in another order, as a kernel does. Wrong ones have an error that a
kernel may have, in all rows or in one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from perfguard.check.correctness import check
from perfguard.check.hard_inputs.search import run_hard
from perfguard.check.numerics.rule import compare
from perfguard.model.call import Call, Hard

Function = Callable[[Tensor, Tensor], Tensor]
SIZES = [(1, 16), (1, 256), (3, 64), (40, 33), (40, 64), (256, 256)]
EPS = 1e-5


def summed(x: Tensor, dim: int = -1) -> Tensor:
    """In four parts."""
    return torch.stack([part.sum(dim, keepdim=True) for part in x.float().chunk(4, dim)]).sum(0)


def multiplied(a: Tensor, b: Tensor) -> Tensor:
    return torch.stack([a.float()[:, start::4] @ b.float()[start::4] for start in range(4)]).sum(0).to(a.dtype)


class Multiplied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return multiplied(a, b)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        a, b = ctx.saved_tensors  # type: ignore[attr-defined]
        return multiplied(grad, b.t()), multiplied(a.t(), grad)


def rms_norm(x: Tensor, w: Tensor, eps: float = EPS) -> Tensor:
    y = x.float()
    return (y * torch.rsqrt(summed(y * y) / x.shape[-1] + eps) * w.float()).to(x.dtype)


def layer_norm(x: Tensor, w: Tensor) -> Tensor:
    y = x.float()
    y = y - summed(y) / x.shape[-1]
    return (y * torch.rsqrt(summed(y * y) / x.shape[-1] + EPS) * w.float()).to(x.dtype)


def softmax(x: Tensor, w: Tensor) -> Tensor:
    y = (x * w).float()
    y = torch.exp(y - y.amax(-1, keepdim=True))
    return (y / summed(y)).to(x.dtype)


def mlp(x: Tensor, w: Tensor) -> Tensor:
    y: Tensor = Multiplied.apply(F.silu(Multiplied.apply(x, w)), w.t())
    return y


def swiglu(x: Tensor, w: Tensor) -> Tensor:
    a, b = (x.float() * w.float()).chunk(2, -1)
    return (a / (1 + torch.exp(-a)) * b).to(x.dtype)


def losses(x: Tensor, w: Tensor) -> Tensor:
    y = (x * w).float()
    most = y.amax(-1, keepdim=True)
    return (most + torch.log(summed(torch.exp(y - most))))[:, 0].sub(y[:, 0]).to(x.dtype)


def loss(x: Tensor, w: Tensor) -> Tensor:
    return losses(x, w).float().mean().to(x.dtype)


def attention(x: Tensor, w: Tensor) -> Tensor:
    y = (x * w).float()
    scores = Multiplied.apply(y, y.t()) * y.shape[-1] ** -0.5
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    return (Multiplied.apply(weights, y) / summed(weights)).to(x.dtype)


def mean_square(x: Tensor, w: Tensor) -> Tensor:
    y = x.float() + w.float()
    return (summed(summed(y * y), 0) / y.numel())[0, 0].to(x.dtype)


def variance(x: Tensor, w: Tensor) -> Tensor:
    y = (x * w).float()
    y = y - summed(y) / y.shape[-1]
    return (summed(y * y) / (y.shape[-1] - 1))[:, 0].to(x.dtype)


def first_class(x: Tensor) -> Tensor:
    return torch.zeros(len(x), dtype=torch.int64)


# name -> eager, and the other way
OPERATORS: dict[str, tuple[Function, Function]] = {
    "rms_norm": (lambda x, w: F.rms_norm(x, x.shape[-1:], w, EPS), rms_norm),
    "layer_norm": (lambda x, w: F.layer_norm(x, x.shape[-1:], w, eps=EPS), layer_norm),
    "softmax": (lambda x, w: torch.softmax(x * w, -1), softmax),
    "mlp": (lambda x, w: F.silu(x @ w) @ w.t(), mlp),
    "swiglu": (lambda x, w: F.silu((x * w).chunk(2, -1)[0]) * (x * w).chunk(2, -1)[1], swiglu),
    "losses": (lambda x, w: F.cross_entropy(x * w, first_class(x), reduction="none"), losses),
    "loss": (lambda x, w: F.cross_entropy(x * w, first_class(x)), loss),
    "attention": (lambda x, w: F.scaled_dot_product_attention(*[(x * w)[None]] * 3)[0], attention),
    "mean_square": (lambda x, w: (x + w).square().mean(), mean_square),
    "variance": (lambda x, w: (x * w).var(-1), variance),
}


def problems(name: str, dtype: torch.dtype, other: Function | None = None, seeds: int = 4) -> Iterator[list[str]]:
    """By size and seed: what is said of the output and both gradients."""
    eager, right = OPERATORS[name]
    for rows, width in SIZES:
        for seed in range(seeds):
            random = torch.Generator().manual_seed(seed)
            width += width % 2
            x = torch.randn(rows, width, generator=random)
            w = torch.randn(width, 2 * width if name == "mlp" else 1, generator=random)
            w = w / width**0.5 if name == "mlp" else w[:, 0]
            found = []
            for function, within in ((other or right, dtype), (eager, dtype), (eager, torch.float64)):
                leaves = [each.to(dtype).to(within).requires_grad_() for each in (x, w)]
                out = function(*leaves)
                upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(within)
                found.append([out.detach(), *torch.autograd.grad(out, leaves, upstream)])
            yield [
                compare(*each, name=what, gradient_of=None if what == "output" else "argument").problem
                for what, *each in zip(("output", "dx", "dw"), *found, strict=True)
            ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", OPERATORS)
def test_what_is_right_is_not_accused(name: str, dtype: torch.dtype) -> None:
    assert [each for found in problems(name, dtype) for each in found if each] == []


def in_bfloat16(name: str) -> Function:
    return lambda x, w: OPERATORS[name][0](x.bfloat16(), w.bfloat16()).to(x.dtype)


def one_row(function: Function) -> Function:
    """The last row, or the last number, is a hundredth too large."""

    def wrong(x: Tensor, w: Tensor) -> Tensor:
        out = function(x, w)
        factor = torch.ones_like(out)
        factor[-1:] = 1.01 if out.dtype == torch.float32 else 1.06
        return out * factor

    return wrong


@pytest.mark.parametrize("name", OPERATORS)
def test_float32_by_way_of_bfloat16_is_wrong(name: str) -> None:
    assert all(any(found) for found in problems(name, torch.float32, in_bfloat16(name)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["rms_norm", "layer_norm", "softmax", "mlp", "swiglu", "losses", "attention"])
def test_a_row_that_is_too_large_is_wrong(name: str, dtype: torch.dtype) -> None:
    assert all(any(found) for found in problems(name, dtype, one_row(OPERATORS[name][1])))


def test_another_epsilon_is_wrong() -> None:
    assert all(any(found) for found in problems("rms_norm", torch.float32, lambda x, w: rms_norm(x, w, 1e-4)))


# -- attention, whose first row sees one key: its gradient of the query is 0 -------------------------------------------


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    later = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(1)
    return ((q @ k.mT) * q.shape[-1] ** -0.5).masked_fill(later, -torch.inf).softmax(-1) @ v


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Saving(torch.autograd.Function):
    """As kernels do it: logsumexp is saved, weights are rounded once to 16 bits."""

    share = 1.0  # of a row's sum that is subtracted

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = Saving.scores(q, k)
        sums = scores.logsumexp(-1, keepdim=True)
        out = ((scores - sums).exp().to(q.dtype).float() @ v.float()).to(q.dtype)
        ctx.save_for_backward(q, k, v, out, sums)
        return out

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor) -> tuple[Tensor, ...]:
        q, k, v, out, sums = ctx.saved_tensors
        dtype, grad = q.dtype, incoming[0].float()
        weights = (Saving.scores(q, k) - sums).exp()
        inner = grad @ v.float().mT - Saving.share * (grad * out.float()).sum(-1, keepdim=True)
        d_scores = (weights * inner).to(dtype).float() * q.shape[-1] ** -0.5
        d_v = weights.to(dtype).float().mT @ grad
        return (d_scores @ k.float()).to(dtype), (d_scores.mT @ q.float()).to(dtype), d_v.to(dtype)

    @staticmethod
    def scores(q: Tensor, k: Tensor) -> Tensor:
        later = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(1)
        return ((q.float() @ k.float().mT) * q.shape[-1] ** -0.5).masked_fill(later, -torch.inf)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("attention", [fused, Saving.apply], ids=["fused", "saving"])
@pytest.mark.parametrize(("rows", "width"), [(40, 32), (1, 32)], ids=str)
def test_fused_attention_is_right(attention: Any, dtype: torch.dtype, rows: int, width: int) -> None:
    """Where there is one key alone, the gradients of queries and keys vanish as a whole."""
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        inputs = [torch.randn(1, 2, rows, width, generator=generator).to(dtype).requires_grad_() for _ in range(3)]
        quirk = ["non-finite"] if rows == 1 else []
        hard = Hard(without=quirk, reason="of one key, torch's kernel takes a score of NaN for one that is masked")
        call = Call(attention, tuple(inputs), causal, seed=seed, hard=hard)
        assert check(call).wrong == []
        if seed == 0:
            assert run_hard(call, 5.0).problem == ""


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_sharp_attention_of_many_rows_is_right(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that see few keys have gradients that nearly cancel. The rounding of the saved output is one error of a
    whole row there, and is large in one of hundreds of rows."""
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        q, k, v = (torch.randn(1, 2, 256, 64, generator=generator) for _ in range(3))
        call = Call(Saving.apply, tuple(x.to(dtype).requires_grad_() for x in (4 * q, k, v)), causal, seed=seed)
        assert check(call, full=False).wrong == []
    monkeypatch.setattr(Saving, "share", 0.98)
    assert check(call, full=False).wrong != []


class Projected(torch.nn.Module):
    """Attention of projections of x; `off` is an error in the queries' gradient, as a share of the values'."""

    def __init__(self, attention: Any, off: float = 0.0) -> None:
        super().__init__()
        self.attention, self.off = attention, off
        generator = torch.Generator().manual_seed(5)
        self.weights = torch.nn.Parameter(torch.randn(3, 16, 16, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (x @ weight for weight in self.weights)
        return self.attention(q, k, v) + self.off * (q - q.detach())


class Separate(Projected):
    """With a parameter each, so that the gradients of two vanish, and that of the third does not."""

    def __init__(self, attention: Any, off: float = 0.0) -> None:
        super().__init__(attention, off)
        weights = self.weights.detach()
        del self.weights
        self.weights = torch.nn.ParameterList(weights.unbind())  # type: ignore[assignment]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("off", "right"), [(0.0, True), (0.5, False)])
def test_weights_of_scores_of_one_key_have_no_gradient(dtype: torch.dtype, off: float, right: bool) -> None:
    x = torch.randn(1, 1, 1, 16, generator=torch.Generator().manual_seed(6)).to(dtype)
    for attention in (fused, Saving.apply if dtype != torch.float64 else fused):
        wrong = check(Call(Separate(attention, off).to(dtype), (x,), Separate(causal).to(dtype))).wrong
        assert (wrong == []) is right, wrong
        assert right or wrong[0].startswith("gradient of parameter weights.0")
