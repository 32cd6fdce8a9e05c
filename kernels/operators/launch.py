"""From tensors to launches: how operands lie in memory, the grid, the device."""

from __future__ import annotations

from functools import cache
from typing import Any

from torch import Tensor

from kernels.launch import Launch, pick
from kernels.operators.configs import Layout, TileConfig, tile_candidates


def matrices(*tensors: Tensor) -> list[Tensor]:
    """Tensors of one shape as matrices (rows, width) over the same memory. More than two dimensions that do not
    collapse (a permuted batch) are copied."""
    if tensors[0].ndim == 1:
        return [tensor[None] for tensor in tensors]
    return [tensor.reshape(-1, tensor.shape[-1]) for tensor in tensors]


def layout_of(*matrices: Tensor) -> Layout:
    """Whether neighbouring columns are neighbours in memory, in all operands."""
    return "unit" if all(matrix.stride(-1) == 1 or matrix.shape[-1] == 1 for matrix in matrices) else "strided"


def strides(*matrices: Tensor) -> list[int]:
    """Row and column stride of each; a stride of 1 becomes a constant of the kernel, as Triton specialises it."""
    return [stride for matrix in matrices for stride in matrix.stride()]


@cache
def tiled(
    kernel: Any, arch: str, width: int, layout: Layout, flat: bool, candidate: int | None
) -> tuple[TileConfig, Launch]:
    """An element-wise kernel in tiles of R rows and C columns. `flat`: everything lies in one row, of any length."""
    config = pick(tile_candidates(arch, width, layout, flat), candidate)
    return config, Launch(kernel, BY_HAND=arch == "cpu", R=config.rows, C=config.columns, num_warps=config.warps)


def after(overlap: bool) -> dict[str, bool]:
    """Options of a launch that, with `overlap`, may begin while the one ahead of it ends; its kernel then waits for
    that one before it touches memory. Where each of a row of kernels does, the end of one is the end of all before."""
    return {"OVERLAP": True, "launch_pdl": True} if overlap else {"OVERLAP": False}
