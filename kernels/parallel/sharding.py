"""How element-wise and row-wise operators take distributed tensors: `import kernels.parallel.sharding`, once.

DTensor asks for a rule of each operator: which placements of arguments give which placements of results while no rank
hears of another. What lies otherwise it moves first. An operator that has no rule, as products of groups have none,
keeps DTensor's own error. `register_sharding` is torch's, and experimental there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

import kernels.block_scaled.permute
import kernels.fp8
import kernels.operators
import kernels.parallel.vocab_cross_entropy  # noqa: F401  (these make the operators)

Dims = Callable[..., Iterable[int]]  # of the arguments: along which dimensions a "split" tensor may be split
Kinds = tuple[str, ...]
SPLIT, WHOLE, SUM = "split along it", "whole on every rank", "to be added up over ranks"
NEXT = "split along the dimension behind it"


def _any(x: Any, *_: Any) -> range:
    return range(x.ndim)


def _but_last(x: Any, *_: Any) -> range:
    return range(x.ndim - 1)


def _experts(w: Any, *_: Any) -> range:
    return range(w.ndim - 2)


def _nowhere(*_: Any) -> tuple[()]:
    return ()


def _rows(*_: Any) -> tuple[int]:
    return (0,)


def _columns(*_: Any) -> tuple[int]:
    return (1,)


def _turned(_: Any, table: Any, *__: Any) -> tuple[int, ...]:
    """Sequences, unless each has positions of its own, and heads."""
    return (0, 2) if table.ndim == 3 else (2,)


# Operator, dimensions, results, tensors among the arguments, which come first.
RULES: tuple[tuple[str, Dims, Kinds, Kinds], ...] = (
    ("silu_mul", _any, (SPLIT,), (SPLIT, SPLIT)),
    ("silu_mul_backward", _any, (SPLIT, SPLIT), (SPLIT, SPLIT, SPLIT)),
    ("clamped_swiglu", _rows, (SPLIT,), (SPLIT,)),
    ("clamped_swiglu_backward", _rows, (SPLIT,), (SPLIT, SPLIT)),
    ("rms_norm", _but_last, (SPLIT, SPLIT), (SPLIT, WHOLE)),
    ("rms_norm_backward", _but_last, (SPLIT, SUM), (SPLIT, SPLIT, WHOLE, SPLIT)),
    ("rms_norm_quantize", _rows, (SPLIT, SPLIT, SPLIT, SPLIT), (SPLIT, WHOLE)),
    ("rope", _turned, (SPLIT,), (SPLIT, WHOLE)),
    ("padded_index_gather", _columns, (SPLIT,), (SPLIT, WHOLE)),
    ("padded_index_gather_backward", _columns, (SPLIT,), (SPLIT, WHOLE)),
    ("permute_places", _nowhere, (WHOLE, WHOLE, WHOLE), (WHOLE,)),
    ("permute_rows", _columns, (SPLIT,), (SPLIT, WHOLE, WHOLE)),
    ("vocab_row_parts", _rows, (NEXT,), (SPLIT, SPLIT)),
    ("vocab_gradient", _rows, (SPLIT,), (SPLIT, SPLIT, NEXT, SPLIT)),
    ("fp8_quantize_rowwise", _rows, (SPLIT, SPLIT), (SPLIT,)),
    ("fp8_quantize_1x128", _but_last, (SPLIT, SPLIT), (SPLIT,)),
    ("fp8_quantize_128x128", _experts, (SPLIT, SPLIT), (SPLIT,)),
    ("fp8_quantize_mx", _but_last, (SPLIT, SPLIT), (SPLIT,)),
)


def _register(name: str, dims: Dims, results: Kinds, tensors: Kinds) -> None:
    def placed(kind: str, split: Any) -> Any:
        if kind == WHOLE or split == Replicate():
            return Replicate()
        return {SPLIT: split, NEXT: Shard(split.dim + 1), SUM: Partial()}[kind]

    def rule(*given: Any) -> list[tuple[list[Any], list[Any]]]:
        found = []
        for split in (Replicate(), *map(Shard, dims(*given))):
            arguments = [
                None if each is None else placed(kind, split) for kind, each in zip(tensors, given, strict=False)
            ]
            arguments += [None] * (len(given) - len(tensors))
            found.append(([placed(kind, split) for kind in results], arguments))
        return found

    register_sharding(getattr(torch.ops.perfguard_kernels, name).default)(rule)


for _each in RULES:
    _register(*_each)
