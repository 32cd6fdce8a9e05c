"""Data parallelism with sharded weights (FSDP2): each block gathers its weights and reduces their gradients by itself.

Experts have ranks of their own. Of W data-parallel ranks, `ep` of them share one set of experts: an expert's gradient
has the tokens of `ep` ranks in it already, and is summed over the W / ep ranks that hold the same expert. The loss is a
mean over ranks, so every gradient is divided by W: by its own ranks' number an expert's would be `ep` times too large.

Follows torchtitan's `apply_fsdp` (models/llama4/infra/parallelize.py).
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from itertools import pairwise
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import Shard

from kernels.compat.sharding import placements
from kernels.layers import MoEBlock
from kernels.layers.compile import blocks_of


def shard_data(
    model: nn.Module, mesh: DeviceMesh, experts: DeviceMesh | None = None, *, reshard_after_forward: bool = True
) -> None:
    """Shard every block of `model.layers` over `mesh`, then what is left of the model. While a block runs, the weights
    of the next one are gathered.

    Args:
        mesh: one dimension: all ranks whose tokens differ.
        experts: one dimension: of these the ranks that hold the same experts; by default all of `mesh`.
        reshard_after_forward: give a block's weights back after its forward pass, and gather them again for backward.
            What is left of the model, its first and last weights, is never given back: backward starts with them.
    """
    blocks = blocks_of(model)
    for block in blocks:
        own = set(block.moe.experts.parameters()) if experts is not None and isinstance(block, MoEBlock) else set()
        placed = None
        if experts is not None and experts.size() > 1:
            # By expert, or by the next dimension where a rank would get less than one.
            few = isinstance(block, MoEBlock) and block.moe.config.experts < mesh.size()
            elsewhere = placements(experts)(1 if few else 0)
            placed = partial(_place, own, elsewhere)
        alone = own if placed is None else set()
        fully_shard(
            block,
            mesh=mesh,
            reshard_after_forward=reshard_after_forward,
            shard_placement_fn=placed,
            ignored_params=alone,
        )
        # FSDP2 divides gradients of one rank alone twice where it cannot leave dividing to the collective: in float16
        # and float64, and on gloo (torch 2.13, `foreach_reduce`).
        for weight in alone:
            weight.register_hook(partial(_divide, mesh.size()))
    fully_shard(model, mesh=mesh)
    # Forward has no gathers ahead by itself: it counts on a host that runs ahead, which reads of split sizes stop.
    for block, following in pairwise(blocks):
        block.set_modules_to_forward_prefetch([following])  # type: ignore[operator]
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(mesh.size())
            if mesh.device_type == "cpu":  # gloo cannot multiply while it sums
                module.set_force_sum_reduction_for_comms(True)


def _place(own: Collection[nn.Parameter], elsewhere: Any, parameter: nn.Parameter) -> Any:
    return elsewhere if parameter in own else Shard(0)


def _divide(ranks: int, gradient: Tensor) -> Tensor:
    return gradient / ranks
