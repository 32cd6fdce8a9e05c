"""Rows that travel to the ranks of their experts, and back.

Rank r of a group of N owns the r-th E / N of the experts. Rows in the order of experts (`dispatch.plan`) lie in the
order of ranks as well, so that each rank sends one run of rows to each other one:

    agree      counts travel: who sends how many rows to whom. The one place that reads on the host.
    dispatch   rows (M, D) of this rank's tokens -> rows (R, D) for this rank's experts, in their order
    combine    rows (R, D) -> rows (M, D): the way back

Each is the other's backward pass. A rank without rows takes part as any other does: whoever returned early would leave
the others waiting.

Follows torchtitan's `ExpertParallel` (distributed/expert_parallel), where the order of received rows is a sort's; here
it is counted from the counts.

Shape suffixes: M rows of this rank's tokens, R rows that it received, D model width, E experts, N ranks, L = E / N.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from kernels.compat.collectives import all_to_all, wait
from kernels.moe.dispatch import Dispatch, collect, spread


@dataclass(frozen=True)
class ExpertGroup:
    """The ranks that experts lie on.

    Attributes:
        name: of the process group (`ProcessGroup.group_name`); in compiled code a constant.
        ranks: their number N.
        even: every rank sends as many rows to each other one, which is true where tokens go round the experts by rule
            (`MoEConfig.balanced`). Nothing is read on the host then, so that a CUDA graph may hold the layer, and
            tensors need no values.
    """

    name: str
    ranks: int
    even: bool = False

    @staticmethod
    def of(group: dist.ProcessGroup, *, even: bool = False) -> ExpertGroup:
        return ExpertGroup(group.group_name, group.size(), even)


class Exchange(NamedTuple):
    """Who sends how many rows to whom, and where those that arrive belong.

    sent, received   rows to and from each rank, N numbers each
    local            received row -> row in the order of this rank's L experts, as for tokens with one expert each
    group            name of the process group
    """

    sent: Sequence[int]
    received: Sequence[int]
    local: Dispatch
    group: str

    @property
    def back(self) -> Exchange:
        """The same rows on their way back."""
        return self._replace(sent=self.received, received=self.sent)


def agree(counts_E: Tensor, rows: int, group: ExpertGroup) -> Exchange:
    """Tell each rank of `group` how many rows come; counts (E,) int64, their sum is `rows`.

    Raises:
        ValueError: E is no multiple of the ranks; or `even` cannot be true of so many rows.
    """
    experts, ranks = counts_E.shape[0], group.ranks
    if experts % ranks:
        raise ValueError(f"experts: are {experts} on {ranks} ranks; give a multiple, so that each owns as many")
    even = [experts // ranks] * ranks
    counts_NL = wait(all_to_all(counts_E, even, even, group.name)).view(ranks, -1)
    if group.even:
        if rows % experts:
            raise ValueError(f"even: is not true of {rows} rows for {experts} experts; give a multiple, or even=False")
        sent = received = [rows // ranks] * ranks
    else:
        both = torch.cat([counts_E.view(ranks, -1).sum(dim=1), counts_NL.sum(dim=1)]).tolist()
        sent, received = both[:ranks], both[ranks:]
    return Exchange(sent, received, _order(counts_NL, sum(received)), group.name)


def _order(counts_NL: Tensor, rows: int) -> Dispatch:
    """Received rows lie by rank, then by expert; experts take them by expert, then by rank."""
    ranks, experts = counts_NL.shape
    start_NL = (counts_NL.flatten().cumsum(0) - counts_NL.flatten()).view(ranks, experts)
    by_expert_LN = counts_NL.t()
    place_NL = (by_expert_LN.flatten().cumsum(0) - by_expert_LN.flatten()).view(experts, ranks).t()
    shift_R = (place_NL - start_NL).flatten().repeat_interleave(counts_NL.flatten(), output_size=rows)
    place_R = torch.arange(rows, device=counts_NL.device) + shift_R
    counts_L = counts_NL.sum(dim=0)
    return Dispatch(place_R.unsqueeze(1), counts_L, counts_L.cumsum(0).to(torch.int32))


def dispatch(rows_MD: Tensor, exchange: Exchange) -> Tensor:
    """rows (M, D) in the order of all experts -> (R, D) in the order of this rank's. Saves where rows go, no rows."""
    return spread(_travel(rows_MD, exchange), None, exchange.local)


def combine(rows_RD: Tensor, exchange: Exchange) -> Tensor:
    """rows (R, D) in the order of this rank's experts -> (M, D) in the order of all. Saves where rows lie, no rows."""
    return _travel(collect(rows_RD, None, exchange.local), exchange.back)


def on_their_ranks(
    experts: Callable[[Tensor, Dispatch], Tensor], rows_MD: Tensor, plan: Dispatch, group: ExpertGroup
) -> Tensor:
    """What the experts of all ranks say of this rank's rows, (M, D); `experts` are this rank's L."""
    exchange = agree(plan.counts, rows_MD.shape[0], group)
    return combine(experts(dispatch(rows_MD, exchange), exchange.local), exchange)


def depart(rows: Tensor, exchange: Exchange) -> Tensor:
    """Start to send rows that lie in the order of ranks; without autograd. What is returned may be read after `wait`
    alone: work in between runs while rows travel."""
    return all_to_all(rows, exchange.received, exchange.sent, exchange.group)


def _travel(rows: Tensor, exchange: Exchange) -> Tensor:
    arrived: Tensor = _Travel.apply(rows, exchange.received, exchange.sent, exchange.group)
    return arrived


class _Travel(torch.autograd.Function):
    """Rows in the order of the ranks that they go to -> rows in the order of those that they come from."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, received: Sequence[int], sent: Sequence[int], group: str) -> Tensor:
        ctx.received, ctx.sent, ctx.group = received, sent, group
        return wait(all_to_all(rows, received, sent, group))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        return wait(all_to_all(grad, ctx.sent, ctx.received, ctx.group)), None, None, None
