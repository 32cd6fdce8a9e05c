"""Tensor parallelism: heads of attention and widths of feed-forwards over ranks that hold the same tokens.

    first weights by output, last weight by input;  out = Σ over ranks of what each counts

The forward pass adds up once for each of attention and feed-forward, and so does the backward pass: a module's input
becomes one distributed tensor, however many weights it goes through.

Follows Megatron-LM (arXiv 1909.08053, 3) and torchtitan's `apply_tp` (models/llama3/infra/parallelize.py).
"""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)

from kernels.layers import Attention
from kernels.moe import SharedExperts
from kernels.parallel.weights import place, sum_products


def split_attention(attention: nn.Module, mesh: DeviceMesh) -> None:
    """Give each rank of `mesh` its share of the heads, in place.

    Raises:
        ValueError: not attention with grouped queries; or its heads of keys are no multiple of the ranks.
    """
    if not isinstance(attention, Attention):
        raise ValueError(f"attention: is a {type(attention).__name__}; only `Attention` is split over ranks")
    heads = attention.wk.out_features // attention.width
    if heads % mesh.size():
        raise ValueError(f"attention: has {heads} heads of keys for {mesh.size()} ranks; give a multiple")
    parallelize_module(
        attention,
        mesh,
        {
            # Once for all three, so that their gradients are added up before they are summed over ranks.
            "": PrepareModuleInput(input_layouts=(Replicate(), None), desired_input_layouts=(Replicate(), None)),
            "wq": ColwiseParallel(),
            "wk": ColwiseParallel(),
            "wv": ColwiseParallel(),
            "wo": RowwiseParallel(),
        },
        src_data_rank=None,
    )


def split_hidden(feed_forward: SharedExperts, mesh: DeviceMesh) -> None:
    """Give each rank of `mesh` its share of the width F of a SwiGLU on all tokens, in place.

    Raises:
        ValueError: F is no multiple of the ranks.
    """
    for name, dim in (("w1", 0), ("w3", 0), ("w2", 1)):
        place(feed_forward, name, getattr(feed_forward, name), mesh, [dim])
    sum_products(feed_forward, mesh)
