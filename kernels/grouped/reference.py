"""The eager truth of the grouped product: a loop over groups, any floating dtype, any device, differentiable.

Shape suffixes: R rows allocated, K inner width, N outer width, E experts (groups).

Rows [offs[e-1], offs[e]) are group e's. Rows past `offs[-1]` are ignored as inputs and zero in the output; an
empty group contributes nothing and receives a zero gradient. The semantics are those of PyTorch's
`_grouped_mm`, made whole where that leaves memory as it was.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from kernels.arguments import require_valid_offs


def grouped_mm(a: Tensor, b: Tensor, offs: Tensor) -> Tensor:
    """The product by groups, in the dtype of `a`; autograd in both arguments is PyTorch's own.

    a (R, K), b (E, K, N), offs (E,) int32 -> (R, N) contiguous: out[s:e] = a[s:e] @ b[g].
    a (K, R), b (R, N),    offs (E,) int32 -> (E, K, N) contiguous: out[g] = a[:, s:e] @ b[s:e].

    Raises ValueError where `offs` decreases or ends past R; reads it on the host.
    """
    ends = offs.tolist()
    rows = b.shape[0] if b.ndim == 2 else a.shape[0]
    require_valid_offs(ends, rows)
    borders = list(pairwise([0, *ends]))
    zero = a[:0].sum() + b[:0].sum()  # whose gradients are zeros: without groups there is still a graph
    if b.ndim == 3:
        products = [a[start:end] @ b[group] for group, (start, end) in enumerate(borders)]
        unused = zero.expand(rows - (ends[-1] if ends else 0), b.shape[2])
        return torch.cat([*products, unused])
    if not borders:
        return zero.expand(0, a.shape[0], b.shape[1]).clone()
    return torch.stack([a[:, start:end] @ b[start:end] for start, end in borders])
