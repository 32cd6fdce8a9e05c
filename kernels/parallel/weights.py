"""Weights of which each rank has a part, and products that are parts of a sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

from kernels.compat.collectives import all_reduce, wait
from kernels.moe.experts import GroupedMatmuls


def place(owner: GroupedMatmuls, name: str, weight: nn.Parameter, mesh: DeviceMesh, dims: Sequence[int]) -> None:
    """Make a parameter of `owner` a DTensor, sharded at one of `dims` for each dimension of `mesh`; each rank keeps its
    part of what it has.

    Raises:
        ValueError: a dimension is no multiple of its ranks.
    """
    for ranks, dim in zip(mesh.shape, dims, strict=True):
        if weight.shape[dim] % ranks:
            raise ValueError(
                f"{name}: is {weight.shape[dim]} long at dimension {dim} for {ranks} ranks; give a multiple"
            )
    sharded = distribute_tensor(weight.detach(), mesh, [Shard(dim) for dim in dims], src_data_rank=None)
    setattr(owner, name, nn.Parameter(sharded, requires_grad=weight.requires_grad))
    owner.placed = True


def sum_products(owner: nn.Module, mesh: DeviceMesh) -> None:
    """`owner` takes the same first argument on all ranks of `mesh`, and what it returns is summed over them: one
    all-reduce in the forward pass, of the result, and one in the backward pass, of the argument's gradient."""
    group = mesh.get_group().group_name

    def enter(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return _Copied.apply(args[0], group), *args[1:]

    def leave(_: nn.Module, args: tuple[Any, ...], out: Tensor) -> Any:
        return _Summed.apply(out, group)

    owner.register_forward_pre_hook(enter)
    owner.register_forward_hook(leave)


class _Copied(torch.autograd.Function):
    """x, the same on all ranks; its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: str) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return wait(all_reduce(grad, ctx.group)), None


class _Summed(torch.autograd.Function):
    """The sum over ranks; the gradient of each part is its gradient."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, group: str) -> Tensor:
        return wait(all_reduce(part, group))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return grad, None
