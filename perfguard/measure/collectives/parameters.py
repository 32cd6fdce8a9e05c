"""Parameters that FSDP shards: the padding of a gather, and parameters that stay gathered after a pass."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from perfguard.model.mesh import Mesh, dimension_of


def sharded(module: object) -> dict[str, Any]:
    """The DTensors among a module's parameters by name; empty if no part of the module is under FSDP."""
    if not isinstance(module, torch.nn.Module) or not any(isinstance(part, FSDPModule) for part in module.modules()):
        return {}
    return {name: value for name, value in module.named_parameters() if isinstance(value, DTensor)}


@dataclass(frozen=True)
class Padded:
    """The gather of one parameter: `rows` of its sharded dimension over `ranks`, which all have equally many rows."""

    name: str
    dimension: str
    rows: int
    ranks: int
    bytes: int  # without padding

    @property
    def factor(self) -> float:
        """Bytes gathered for each byte of the parameter."""
        return self.ranks * math.ceil(self.rows / self.ranks) / self.rows


def padded(module: object, mesh: Mesh) -> Iterator[Padded]:
    """The padding of each parameter under FSDP that has rows, over the dimension of the mesh that FSDP shards.

    FSDP's dimension is the outermost sharded one. Inner dimensions (tensor parallelism) split the parameter before.
    """
    for name, value in sharded(module).items():
        cuts = [(at, placement.dim) for at, placement in enumerate(value.placements) if hasattr(placement, "dim")]
        if not cuts or not value.numel():
            continue
        (outer, dim), inside = cuts[0], cuts[1:]
        taken = math.prod(value.device_mesh.size(at) for at, _ in inside)
        rows = math.ceil(value.shape[dim] / math.prod(value.device_mesh.size(at) for at, cut in inside if cut == dim))
        ranks = dist.get_process_group_ranks(value.device_mesh.get_group(outer))
        if len(ranks) == 1:
            continue
        yield Padded(
            name, dimension_of(ranks, mesh), rows, len(ranks), math.ceil(value.numel() * value.itemsize / taken)
        )


def still_gathered(module: object, before: Mapping[str, object]) -> Mapping[str, int]:
    """Bytes by name of the parameters that were DTensors `before` a pass and are plain tensors now."""
    if not before:
        return {}
    assert isinstance(module, torch.nn.Module)
    return {
        name: value.numel() * value.itemsize
        for name, value in module.named_parameters()
        if name in before and type(value) is not type(before[name])
    }
