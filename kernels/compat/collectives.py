"""Collectives that compiled code holds as they are, waited for apart; torch's names for them are private.

Their public counterparts are rewritten to these by the compiler, with a copy of what arrived.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_ops = torch.ops._c10d_functional


def all_to_all(rows: Tensor, received: Sequence[int], sent: Sequence[int], group: str) -> Tensor:
    """Start to send `sent[r]` rows to each rank r of the process group of that name, in order.

    Returns rows that are on their way, `received[r]` from each rank r: nobody may read them before `wait`.
    """
    in_flight: Tensor = _ops.all_to_all_single(rows.contiguous(), list(received), list(sent), group)
    return in_flight


def wait(in_flight: Tensor) -> Tensor:
    """The same memory, once it has arrived; on a GPU the stream waits, not the host."""
    arrived: Tensor = _ops.wait_tensor(in_flight)
    return arrived


def all_reduce(x: Tensor, group: str) -> Tensor:
    """Start to sum x over the ranks of the process group of that name; the sum may be read after `wait`."""
    in_flight: Tensor = _ops.all_reduce(x.contiguous(), "sum", group)
    return in_flight
