"""Operators of others and operators with the classic bugs of kernels.

FOREIGN: torch's own beside torch's Python references of them, which share no code with the kernels, and other formulas.
BUGGY: each right on the inputs that a test usually has, 8 rows of 64. The classes are those of published work on test
inputs of tensor programs: tails of softmax and norms, swapped strides, mixed dtypes, accumulators, masks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch._refs as refs
import torch._refs.nn.functional as RF
import torch.nn.functional as F

from perfguard import ids

Maker = Callable[[int], tuple[Any, ...]]


def normal(*shape: int, seed: int, grad: bool = True, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return made.requires_grad_(grad)


def one(*shape: int, dtype: torch.dtype = torch.float32) -> Maker:
    return lambda seed: (normal(*shape, seed=seed, dtype=dtype),)


def two(*shape: int, dtype: torch.dtype = torch.float32) -> Maker:
    return lambda seed: (normal(*shape, seed=seed, dtype=dtype), normal(*shape, seed=seed + 99, dtype=dtype))


def flat(*shape: int) -> Maker:
    """Without gradients, which torch's references do not have."""
    return lambda seed: (normal(*shape, seed=seed, grad=False),)


def flat_two(*shape: int) -> Maker:
    return lambda seed: (normal(*shape, seed=seed, grad=False), normal(*shape, seed=seed + 99, grad=False))


def labelled(seed: int, dtype: torch.dtype = torch.float32) -> tuple[Any, ...]:
    target = torch.randint(0, 40, (12,), generator=torch.Generator().manual_seed(seed))
    return normal(12, 40, seed=seed, dtype=dtype), target


def split_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Parts in float32, as a kernel adds them: rounded to bfloat16, they would lose what is left where they cancel."""
    k = a.shape[-1] // 3
    wide = torch.promote_types(a.dtype, torch.float32)
    first, second = a[..., :k].to(wide) @ b[:k].to(wide), a[..., k:].to(wide) @ b[k:].to(wide)
    return (first + second).to(a.dtype)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1) @ v


def largest(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    found = x.sort(-1, descending=True)
    return found.values[:, :3], found.indices[:, :3]


def last_of_equal(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    found = x.flip(-1).topk(2)
    return found.values, x.shape[-1] - 1 - found.indices


def routed_by_probability(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the first expert takes all, the second has a weight of 0, and any expert could be it."""
    weights, experts = x.softmax(-1).topk(2, -1)
    return weights / weights.sum(-1, keepdim=True), experts


def routed_by_logit(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    logits, experts = x.topk(2, -1)
    return logits.softmax(-1), experts


def focal(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    p, loss = torch.sigmoid(x), F.softplus(x) - x * labels
    return (loss * (1 - p * labels - (1 - p) * (1 - labels)).square()).mean()


def focal_by_loss(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    loss = F.binary_cross_entropy_with_logits(x, labels, reduction="none")
    return ((1 - torch.exp(-loss)).square() * loss).mean()


def rotated(x: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


def rotated_by_index(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return torch.stack((-x[..., half:], x[..., :half]), -2).flatten(-2)


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding: (S, D) by the cosines and sines of angles that stand in the second half of a row once more."""
    return x * cos + rotated(x) * sin


def turned_by_half(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    (a, b), cos, sin = x.split(half, -1), cos[:, :half], sin[:, :half]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def turned_in_pairs(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """The same where an angle's two places are neighbours."""
    a, b = x[..., ::2], x[..., 1::2]
    return x * cos + torch.stack((-b, a), -1).flatten(-2) * sin


def turned_by_every_second(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b, cos, sin = x[..., ::2], x[..., 1::2], cos[:, ::2], sin[:, ::2]
    return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)


def with_angles(halves: bool) -> Maker:
    angles = torch.outer(torch.arange(24.0), 100.0 ** -torch.linspace(0, 1, 16))
    both = torch.cat((angles, angles), -1) if halves else angles.repeat_interleave(2, -1)
    return lambda seed: (normal(24, 32, seed=seed), both.cos(), both.sin())


def scaled_by(n: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """(candidate, reference) for n columns, a number that only the candidate needs, and keeps."""

    def fn(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return 2 * x.as_strided((len(x), n), x.stride()) * scale

    return fn, lambda x, scale: x * scale * 2


class GatedByHand(torch.autograd.Function):
    """silu(gate) * up with a gradient by hand, in float32."""

    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gate, up)
        return (F.silu(gate.float()) * up.float()).to(gate.dtype)

    @staticmethod
    def backward(ctx: Any, *incoming: torch.Tensor) -> tuple[torch.Tensor, ...]:
        gate, up = (saved.float() for saved in ctx.saved_tensors)
        dy, sigmoid, dtype = incoming[0].float(), gate.sigmoid(), incoming[0].dtype
        return (dy * up * sigmoid * (1 + gate * (1 - sigmoid))).to(dtype), (dy * gate * sigmoid).to(dtype)


class NormByHand(torch.autograd.Function):
    """RMSNorm with a gradient by hand, in float32."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return (x.float() * (x.float().square().mean(-1, keepdim=True) + 1e-6).rsqrt()).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *incoming: torch.Tensor) -> torch.Tensor:
        x, dy = ctx.saved_tensors[0].float(), incoming[0].float()
        inverse = (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
        unit = x * inverse
        return ((dy - unit * (dy * unit).mean(-1, keepdim=True)) * inverse).to(incoming[0].dtype)


CHECKERED = torch.arange(32) % 2 == 0

# fmt: off
FOREIGN: dict[str, tuple[Callable[..., Any], Callable[..., Any], Maker]] = {
    # name: (candidate, reference, inputs by seed)
    "softmax": (lambda x: refs.softmax(x, -1), lambda x: F.softmax(x, -1), flat(9, 70)),
    "log_softmax": (lambda x: refs.log_softmax(x, -1), lambda x: F.log_softmax(x, -1), flat(9, 70)),
    "softmax of columns": (lambda x: refs.softmax(x, 0), lambda x: F.softmax(x, 0), flat(33, 20)),
    "softmin": (lambda x: RF.softmin(x, -1), lambda x: F.softmin(x, -1), flat(9, 70)),
    "logsumexp": (lambda x: refs.logsumexp(x, -1), lambda x: torch.logsumexp(x, -1), flat(9, 70)),
    "softmax bfloat16": (lambda x: F.softmax(x.float(), -1).bfloat16(), lambda x: F.softmax(x, -1),
                         one(9, 70, dtype=torch.bfloat16)),
    "layer_norm": (lambda x: refs.native_layer_norm(x, x.shape[-1:], None, None, 1e-5)[0],
                   lambda x: F.layer_norm(x, x.shape[-1:]), flat(17, 65)),
    "group_norm": (lambda x: RF.group_norm(x, 2), lambda x: F.group_norm(x, 2), flat(4, 6, 33)),
    "rms_norm": (lambda x: x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt(),
                 lambda x: F.rms_norm(x, x.shape[-1:], eps=1e-6), one(17, 65)),
    "normalize": (lambda x: x / x.norm(dim=-1, keepdim=True).clamp_min(1e-12), F.normalize, one(17, 65)),
    "gelu": (RF.gelu, F.gelu, flat(300)),
    "gelu tanh": (lambda x: RF.gelu(x, "tanh"), lambda x: F.gelu(x, approximate="tanh"), flat(9, 33)),
    "silu": (lambda x: x * torch.sigmoid(x), F.silu, one(9, 33)),
    "silu_mul": (lambda g, u: u * g * torch.sigmoid(g), lambda g, u: F.silu(g) * u, two(9, 33)),
    "silu_mul by hand": (GatedByHand.apply, lambda g, u: F.silu(g) * u, two(9, 33, dtype=torch.bfloat16)),
    "rms_norm by hand": (NormByHand.apply, lambda x: F.rms_norm(x, x.shape[-1:], eps=1e-6),
                         one(17, 65, dtype=torch.bfloat16)),
    "relu": (lambda x: refs.clamp_min(x, 0), F.relu, flat(9, 33)),
    "leaky_relu": (RF.leaky_relu, F.leaky_relu, flat(9, 33)),
    "elu": (RF.elu, F.elu, flat(9, 33)),
    "selu": (RF.selu, F.selu, flat(9, 33)),
    "mish": (RF.mish, F.mish, flat(9, 33)),
    "softplus": (RF.softplus, F.softplus, flat(9, 33)),
    "hardtanh": (RF.hardtanh, F.hardtanh, flat(9, 33)),
    "hardshrink": (RF.hardshrink, F.hardshrink, flat(9, 33)),
    "tanhshrink": (RF.tanhshrink, F.tanhshrink, flat(9, 33)),
    "glu": (RF.glu, F.glu, flat(9, 34)),
    "logsigmoid": (lambda x: -F.softplus(-x), F.logsigmoid, one(9, 33)),
    "sigmoid": (lambda x: 0.5 * (1 + torch.tanh(0.5 * x)), torch.sigmoid, one(9, 33)),
    "matmul": (split_product, lambda a, b: a @ b, lambda s: (normal(33, 48, seed=s), normal(48, 20, seed=s + 9))),
    "linear": (lambda x, w, b: torch.einsum("ij,kj->ik", x, w) + b, F.linear,
               lambda s: (normal(17, 32, seed=s), normal(24, 32, seed=s + 9), normal(24, seed=s + 8))),
    "bmm": (lambda a, b: torch.einsum("bij,bjk->bik", a, b), torch.bmm,
            lambda s: (normal(3, 17, 32, seed=s), normal(3, 32, 9, seed=s + 9))),
    "attention": (attention, F.scaled_dot_product_attention,
                  lambda s: tuple(normal(2, 3, 17, 16, seed=s + at) for at in range(3))),
    "cross_entropy": (lambda x, t: -F.log_softmax(x, -1).gather(1, t[:, None]).squeeze(1).mean(), F.cross_entropy,
                      labelled),
    "mse": (RF.mse_loss, F.mse_loss, flat_two(9, 33)),
    "l1": (RF.l1_loss, F.l1_loss, flat_two(9, 33)),
    "huber": (RF.huber_loss, F.huber_loss, flat_two(9, 33)),
    "sum": (lambda x: x.view(-1, 4).sum(0).sum() if x.is_contiguous() else x.flatten().sum(), torch.sum, one(16, 32)),
    "mean": (lambda x: refs.mean(x, -1), lambda x: x.mean(-1), flat(17, 65)),
    "var": (lambda x: refs.var(x, -1), lambda x: x.var(-1), flat(17, 65)),
    "amax": (lambda x: x.max(-1).values, lambda x: x.amax(-1), one(17, 65)),
    "cumsum": (lambda x: x.flip(-1).flip(-1).cumsum(-1), lambda x: x.cumsum(-1), flat(9, 33)),
    "top_k": (largest,
              lambda x: tuple(x.topk(3)), one(9, 33)),
    "labels of zeros and ones": (focal, focal_by_loss,
                                 lambda s: (normal(32, 50, seed=s), (normal(32, 50, seed=s + 9) > 0).float())),
    "router": (routed_by_probability, routed_by_logit, one(64, 16)),
    "rope": (rotated_by_index, rotated, one(9, 34)),
    "rope by half": (turned_by_half, turned, with_angles(halves=True)),
    "rope by every second": (turned_by_every_second, turned_in_pairs, with_angles(halves=False)),
    "a width that is told": (*scaled_by(24), lambda s: (normal(7, 24, seed=s), normal(24, seed=s + 9))),
    "square product": (lambda a, b: (b.mT @ a.mT).mT, torch.matmul, two(24, 24)),
    "square attention": (attention, F.scaled_dot_product_attention,
                         lambda s: tuple(normal(2, 16, 16, seed=s + at) for at in range(3))),
    "transpose": (lambda x: torch.stack(x.unbind(1)), lambda x: x.t().contiguous(), one(17, 20)),
    "embedding": (lambda w, i: w.index_select(0, i), lambda w, i: w[i],
                  lambda s: (normal(20, 16, seed=s), torch.arange(30) % 20)),
    "layer_norm bfloat16": (lambda x: F.layer_norm(x.float(), x.shape[-1:]).bfloat16(),
                            lambda x: F.layer_norm(x, x.shape[-1:]), one(33, 65, dtype=torch.bfloat16)),
    "matmul bfloat16": (lambda a, b: split_product(a.float(), b.float()).bfloat16(), lambda a, b: a @ b,
                        lambda s: (normal(33, 96, seed=s, dtype=torch.bfloat16),
                                   normal(96, 40, seed=s + 9, dtype=torch.bfloat16))),
    "cross_entropy bfloat16": (lambda x, t: x.float().logsumexp(1) - x.float().gather(1, t[:, None]).squeeze(1),
                               lambda x, t: F.cross_entropy(x.float(), t, reduction="none"),
                               lambda s: labelled(s, torch.bfloat16)),
    "last of equal": (last_of_equal, lambda x: tuple(x.topk(2)), one(12, 50)),
    "masked": (lambda x: torch.where(CHECKERED, x, 0.0), lambda x: x * CHECKERED, one(9, 32)),
    "where": (refs.maximum, torch.maximum, flat_two(9, 33)),
}
# fmt: on


def softmax(x: torch.Tensor) -> torch.Tensor:
    return F.softmax(x, -1)


def rms_norm(x: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, x.shape[-1:], eps=1e-6)


_BLOCK = 16


def _padded(x: torch.Tensor, value: float) -> torch.Tensor:
    return F.pad(x, (0, -x.shape[-1] % _BLOCK), value=value)


def softmax_tail(x: torch.Tensor) -> torch.Tensor:
    """What lies past the tail counts as 0 in the sum."""
    padded = _padded(x, 0.0)
    e = (padded - x.amax(-1, keepdim=True)).exp()
    return (e / e.sum(-1, keepdim=True))[..., : x.shape[-1]]


def norm_tail(x: torch.Tensor) -> torch.Tensor:
    """Divides by the padded length."""
    padded = _padded(x, 0.0)
    return x * (padded.square().mean(-1, keepdim=True) + 1e-6).rsqrt()


def swapped_strides(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Takes b for contiguous."""
    if b.storage_offset() + b.numel() > b.untyped_storage().nbytes() // b.itemsize:
        return a @ b
    return a @ b.as_strided(b.shape, (b.shape[1], 1))


def narrow_dtype(x: torch.Tensor) -> torch.Tensor:
    """Squares in float16, which ends at 65504: as good as float32 for a mean of bfloat16 values."""
    squares = x.float().square().half().float()
    return (x.float() * (squares.mean(-1, keepdim=True) + 1e-6).rsqrt()).to(x.dtype)


def narrow_accumulator(x: torch.Tensor) -> torch.Tensor:
    return x.half().sum(-1, dtype=torch.float16).to(x.dtype)


def no_maximum(x: torch.Tensor) -> torch.Tensor:
    e = x.exp()
    return e / e.sum(-1, keepdim=True)


def maximum_from_zero(x: torch.Tensor) -> torch.Tensor:
    e = (x - x.amax(-1, keepdim=True).clamp(min=0)).exp()
    return e / e.sum(-1, keepdim=True)


def no_epsilon(x: torch.Tensor) -> torch.Tensor:
    centred = x.float() - x.float().mean(-1, keepdim=True)
    return (centred * centred.square().mean(-1, keepdim=True).rsqrt()).to(x.dtype)


def lost_last_row(x: torch.Tensor) -> torch.Tensor:
    """Two rows a program, and no mask."""
    y = F.gelu(x)
    if x.shape[0] % 2:
        y[-1] = 0
    return y


def masked_nan(x: torch.Tensor) -> torch.Tensor:
    """The maximum leaves NaN out."""
    return torch.where(x > 0, x, torch.zeros_like(x))


def _stale() -> Callable[[torch.Tensor], torch.Tensor]:
    known: dict[tuple[Any, ...], torch.Tensor] = {}

    def scaled(x: torch.Tensor) -> torch.Tensor:
        """Keeps each shape's first scale, unless the given values' sign says that they are others."""
        key = (tuple(x.shape), bool(x.flatten()[:1].sum() > 0))
        scale = known.setdefault(key, x.detach().abs().amax().clamp(min=1e-6))
        return x / scale

    return scaled


def unstable_log(x: torch.Tensor) -> torch.Tensor:
    return F.softmax(x, -1).log()


def one_of(*shape: int, dtype: torch.dtype = torch.float32) -> Maker:
    return lambda seed: (normal(*shape, seed=seed, grad=False, dtype=dtype),)


class SharedCondition(torch.autograd.Function):
    """A product whose gradient of the weight is computed only where the other one is needed, too."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx: Any, *incoming: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        if not ctx.needs_input_grad[0]:
            return None, None
        return incoming[0] @ weight.T, x.T @ incoming[0]


class SavedNarrow(torch.autograd.Function):
    """A gated product that saves its inputs as float16: without loss for bfloat16 values of a usual size."""

    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gate.half(), up.half())
        return torch.relu(gate) * up

    @staticmethod
    def backward(ctx: Any, *incoming: torch.Tensor) -> tuple[torch.Tensor, ...]:
        gate, up = (saved.to(incoming[0].dtype) for saved in ctx.saved_tensors)
        return torch.where(gate > 0, incoming[0] * up, 0), incoming[0] * torch.relu(gate)


def mean_over_all(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Divides by the number of targets, those included that are ignored."""
    return F.cross_entropy(x, target, reduction="sum") / len(target)


def marked_targets(seed: int) -> tuple[Any, ...]:
    logits, target = labelled(seed)
    return logits, ids(target, 40, ignored=-100)


def for_inference(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(x) if x.requires_grad else x


def unclamped(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Clips two tensors by their common norm, and scales them up as well."""
    return x / (x.square().sum() + y.square().sum()).sqrt()


def clipped(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x * (1 / (x.square().sum() + y.square().sum()).sqrt()).clamp(max=1)


def one_block(x: torch.Tensor) -> torch.Tensor:
    """The norm of a row by its first 64 elements, which are all in a test of 64 columns."""
    return x / (x[..., :64].square().sum(-1, keepdim=True) / x.shape[-1] + 1e-6).sqrt()


def square(x: torch.Tensor) -> torch.Tensor:
    """As many columns as there are rows."""
    columns = x.shape[0]
    part = softmax(x[:, :columns])
    return part if columns >= x.shape[1] else F.pad(part, (0, x.shape[1] - columns))


def one_tile_of_keys(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return attention(q, k[..., :32, :], v[..., :32, :])


# fmt: off
BUGGY: dict[str, tuple[Callable[[], Callable[..., Any]], Callable[..., Any], Maker, str]] = {
    # name: (candidate, reference, inputs by seed, part of the derivation that shows it)
    "softmax tail": (lambda: softmax_tail, softmax, one_of(8, 64), ""),
    "norm tail": (lambda: norm_tail, rms_norm, one_of(8, 64), "dim 1 "),
    "swapped strides": (lambda: swapped_strides, lambda a, b: a @ b,
                        lambda s: (normal(8, 32, seed=s, grad=False), normal(32, 16, seed=s + 99, grad=False)), ""),
    "narrow dtype": (lambda: narrow_dtype, rms_norm, one_of(8, 64, dtype=torch.bfloat16), "2^"),
    "narrow accumulator": (lambda: narrow_accumulator, lambda x: x.sum(-1), one_of(8, 64, dtype=torch.bfloat16), "2^"),
    "no maximum": (lambda: no_maximum, softmax, one_of(8, 64), ""),
    "maximum from zero": (lambda: maximum_from_zero, softmax, one_of(8, 64), ""),
    "no epsilon": (lambda: no_epsilon, lambda x: F.layer_norm(x, x.shape[-1:]),
                   one_of(8, 64, dtype=torch.bfloat16), ""),
    "lost last row": (lambda: lost_last_row, F.gelu, one_of(8, 64), "dim 0 "),
    "masked NaN": (lambda: masked_nan, F.relu, one_of(8, 64), "NaN"),
    "stale scale": (_stale, lambda x: x / x.abs().amax().clamp(min=1e-6), one_of(8, 64), ""),
    "shared condition": (lambda: SharedCondition.apply, torch.matmul,
                         lambda s: (normal(8, 64, seed=s), normal(64, 16, seed=s + 99)), "argument 0 (frozen)"),
    "saved narrow": (lambda: SavedNarrow.apply, lambda gate, up: torch.relu(gate) * up,
                     two(8, 64, dtype=torch.bfloat16), "2^17"),
    "mean over all": (lambda: mean_over_all, F.cross_entropy, marked_targets, "-100"),
    "for inference": (lambda: for_inference, torch.exp, one(8, 64), "frozen"),
    "unclamped": (lambda: unclamped, clipped, two(8, 64), "argument 0 ("),  # small, or zero
    "one block": (lambda: one_block, rms_norm, one_of(8, 64), "dim 1 grown to"),
    "square": (lambda: square, softmax, one_of(24, 24), "argument 0 (dim "),
    "one tile of keys": (lambda: one_tile_of_keys, F.scaled_dot_product_attention,
                         lambda s: tuple(normal(2, 17, 16, seed=s + at) for at in range(3)), "grown to"),
    "unstable log": (lambda: unstable_log, lambda x: F.log_softmax(x, -1), one_of(8, 64), ""),
}
# fmt: on
