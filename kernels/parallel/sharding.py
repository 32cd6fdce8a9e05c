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


def _leading(rest: int) -> Dims:
    """All dimensions but the last ones."""
    return lambda x, *_: range(x.ndim - rest)


def _only(*dims: int) -> Dims:
    return lambda *_: dims


def _turned(_: Any, table: Any, *__: Any) -> tuple[int, ...]:
    """Sequences, unless each has positions of its own, and heads."""
    return (0, 2) if table.ndim == 3 else (2,)


# Operator, dimensions, results, tensors among the arguments, which come first.
RULES: tuple[tuple[str, Dims, Kinds, Kinds], ...] = (
    ("silu_mul", _leading(0), (SPLIT,), (SPLIT, SPLIT)),
    ("silu_mul_backward", _leading(0), (SPLIT, SPLIT), (SPLIT, SPLIT, SPLIT)),
    ("clamped_swiglu", _only(0), (SPLIT,), (SPLIT,)),
    ("clamped_swiglu_backward", _only(0), (SPLIT,), (SPLIT, SPLIT)),
    ("rms_norm", _leading(1), (SPLIT, SPLIT), (SPLIT, WHOLE)),
    ("rms_norm_backward", _leading(1), (SPLIT, SUM), (SPLIT, SPLIT, WHOLE, SPLIT)),
    ("rms_norm_quantize", _only(0), (SPLIT, SPLIT, SPLIT, SPLIT), (SPLIT, WHOLE)),
    ("rope", _turned, (SPLIT,), (SPLIT, WHOLE)),
    ("padded_index_gather", _only(1), (SPLIT,), (SPLIT, WHOLE)),
    ("padded_index_gather_backward", _only(1), (SPLIT,), (SPLIT, WHOLE)),
    ("permute_places", _only(), (WHOLE, WHOLE, WHOLE), (WHOLE,)),
    ("permute_rows", _only(1), (SPLIT,), (SPLIT, WHOLE, WHOLE)),
    ("vocab_row_parts", _only(0), (NEXT,), (SPLIT, SPLIT)),
    ("vocab_gradient", _only(0), (SPLIT,), (SPLIT, SPLIT, NEXT, SPLIT)),
    ("fp8_quantize_rowwise", _only(0), (SPLIT, SPLIT), (SPLIT,)),
    ("fp8_quantize_1x128", _leading(1), (SPLIT, SPLIT), (SPLIT,)),
    ("fp8_quantize_128x128", _leading(2), (SPLIT, SPLIT), (SPLIT,)),
    ("fp8_quantize_mx", _leading(1), (SPLIT, SPLIT), (SPLIT,)),
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
