"""Operators with the classic bugs of kernels, each right on the inputs that a test usually has: 8 rows of 64.

The classes are those of published work on test inputs of tensor programs: tails of softmax and norms, swapped strides,
mixed dtypes, accumulators, masks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

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


def _normal(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _one(seed: int) -> tuple[Any, ...]:
    return (_normal(seed, 8, 64),)


#: name: (candidate, reference, inputs by seed)
BUGGY: dict[str, tuple[Callable[[], Callable[..., Any]], Callable[..., Any], Callable[[int], tuple[Any, ...]]]] = {
    "softmax tail": (lambda: softmax_tail, lambda x: F.softmax(x, -1), _one),
    "norm tail": (lambda: norm_tail, lambda x: F.rms_norm(x, x.shape[-1:], eps=1e-6), _one),
    "swapped strides": (
        lambda: swapped_strides,
        lambda a, b: a @ b,
        lambda seed: (_normal(seed, 8, 32), _normal(seed + 99, 32, 16)),
    ),
    "narrow dtype": (
        lambda: narrow_dtype,
        lambda x: F.rms_norm(x, x.shape[-1:], eps=1e-6),
        lambda seed: (_normal(seed, 8, 64, dtype=torch.bfloat16),),
    ),
    "narrow accumulator": (
        lambda: narrow_accumulator,
        lambda x: x.sum(-1),
        lambda seed: (_normal(seed, 8, 64, dtype=torch.bfloat16),),
    ),
    "no maximum": (lambda: no_maximum, lambda x: F.softmax(x, -1), _one),
    "maximum from zero": (lambda: maximum_from_zero, lambda x: F.softmax(x, -1), _one),
    "no epsilon": (
        lambda: no_epsilon,
        lambda x: F.layer_norm(x, x.shape[-1:]),
        lambda seed: (_normal(seed, 8, 64, dtype=torch.bfloat16),),
    ),
    "lost last row": (lambda: lost_last_row, F.gelu, _one),
    "masked NaN": (lambda: masked_nan, F.relu, _one),
    "stale scale": (_stale, lambda x: x / x.abs().amax().clamp(min=1e-6), _one),
    "unstable log": (lambda: unstable_log, lambda x: F.log_softmax(x, -1), _one),
}
