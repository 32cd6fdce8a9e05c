"""A model of blocks on a mesh of ranks: what is split, in which order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from kernels.compat.sharding import flatten, without_modes
from kernels.layers import Block, MoEBlock, apply_compile
from kernels.layers.compile import blocks_of
from kernels.parallel.data import shard_data
from kernels.parallel.experts import shard_experts
from kernels.parallel.tensors import split_attention, split_hidden

DATA, TENSOR = ("dp", "efsdp", "ep"), "tp"


def parallelize(
    model: nn.Module,
    mesh: DeviceMesh,
    *,
    backend: str | Callable[..., Any] | None = None,
    expert_tensors: bool = False,
    reshard_after_forward: bool = True,
) -> None:
    """Spread the blocks of `model.layers`, and the rest of the model, over `mesh`, in place.

    Args:
        model: the same on all ranks, weights included.
        mesh: its dimensions are some of "dp" (ranks with other tokens), or "efsdp" and "ep" instead (the same, of which
            "ep" are those that one set of experts lies on), then "tp" (ranks with the same tokens).
        backend: compiles each block with it; None: eager.
        expert_tensors: splits the width of routed experts over "tp" (ETP); otherwise each of its ranks computes them.
        reshard_after_forward: as in `shard_data`.

    Raises:
        ValueError: another dimension; or a width, or number of heads or experts, that is no multiple of its ranks.
    """
    names = mesh.mesh_dim_names or ()
    data = tuple(name for name in names if name != TENSOR)
    if data not in ((DATA[0],), DATA[1:]) or names[: len(data)] != data:
        raise ValueError(f"mesh: has dimensions {names}; may have dp, or efsdp and ep, and then tp")
    with without_modes():
        _split(model, mesh, expert_tensors)
        if backend is not None:
            apply_compile(model, backend=backend)
        same = mesh["efsdp"] if "efsdp" in data else None
        shard_data(model, flatten(mesh[data], "dp"), same, reshard_after_forward=reshard_after_forward)


def _split(model: nn.Module, mesh: DeviceMesh, expert_tensors: bool) -> None:
    """What is not data over "ep" and "tp"."""
    names = mesh.mesh_dim_names or ()
    # Each once: compiled blocks share a graph only if their meshes are the same object.
    tensors = mesh[TENSOR] if TENSOR in names else None
    over = tuple(name for name in names if name == "ep" or (name == TENSOR and expert_tensors))
    experts = mesh[over] if over else None
    for block in blocks_of(model):
        assert isinstance(block, Block)
        if tensors is not None:
            split_attention(block.attention, tensors)
            dense = block.moe.shared if isinstance(block, MoEBlock) else block.feed_forward
            if dense is not None:
                split_hidden(dense, tensors)
        if experts is not None and isinstance(block, MoEBlock):
            shard_experts(block.moe, experts)
