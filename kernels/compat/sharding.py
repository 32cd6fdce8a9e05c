"""Meshes of several dimensions as one, and parameters of one module on meshes of their own under `fully_shard`.

Torch has both under names that are private.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard
from torch.utils._python_dispatch import _disable_current_modes


def without_modes() -> AbstractContextManager[None]:
    """Within, tensors are made as they are even where a mode makes fake ones: a mesh keeps its ranks in tensors."""
    return _disable_current_modes()


def flatten(mesh: DeviceMesh, name: str) -> DeviceMesh:
    """All dimensions of `mesh` as one of that name; equal for equal ranks, however often it is asked for."""
    return mesh if mesh.ndim == 1 else mesh._flatten(name)


def placements(mesh: DeviceMesh) -> Callable[[int], Any]:
    """dim -> for `fully_shard(shard_placement_fn=…)`: dimension `dim` of a parameter over `mesh`, of one dimension.

    All parameters of a module that share ranks have to come from one call.

    Raises:
        RuntimeError: this torch has one mesh a module.
    """
    try:
        from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo, ShardPlacementResult
    except ImportError as error:
        raise RuntimeError("experts on a mesh of their own need torch 2.12 or later; give them efsdp=1") from error
    ranks = FSDPMeshInfo(mesh, shard_mesh_dim=0)
    return lambda dim: ShardPlacementResult(Shard(dim), ranks)
