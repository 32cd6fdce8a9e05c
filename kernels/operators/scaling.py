"""A saved gradient times the incoming one, a scalar or one for each row, in fp32 with one rounding.

Shape suffixes: C columns of a block.
"""

from __future__ import annotations

from functools import cache

from torch import Tensor

from kernels.hardware import arch_of
from kernels.jit import jit, path_of, tl
from kernels.launch import Launch, cdiv, operator, pick
from kernels.operators.configs import ScaleConfig, scale_candidates
from kernels.operators.launch import matrices
from kernels.rounding import rounded


@operator("cross_entropy_scaled")
def scaled(gradient: Tensor, factor: Tensor, candidate: int | None) -> Tensor:
    """gradient * factor, a scalar or one for each row, in fp32, rounded once, contiguous."""
    scaled = _scaled_output(gradient, factor, candidate)
    _run_scale(gradient, factor, scaled, candidate)
    return scaled


@scaled.register_fake
def _scaled_output(gradient: Tensor, factor: Tensor, candidate: int | None) -> Tensor:
    return gradient.new_empty(gradient.shape)


@operator("cross_entropy_scale_", mutates=("gradient",))
def scale_(gradient: Tensor, factor: Tensor, candidate: int | None) -> None:
    """gradient *= factor; the device finds out by itself whether there is anything to do."""
    _run_scale(gradient, factor, gradient, candidate)


@scale_.register_fake
def _scale_nothing(gradient: Tensor, factor: Tensor, candidate: int | None) -> None:
    return None


def _run_scale(gradient: Tensor, factor: Tensor, out: Tensor, candidate: int | None) -> None:
    if gradient.numel() == 0:
        return
    if path_of(_scale, gradient.device) == "eager":
        out.copy_(gradient.float() * (factor[:, None] if factor.ndim else factor).float())
        return
    config, launch = _scale_launch(arch_of(gradient.device), out is gradient, candidate)
    source, result = (gradient, out) if factor.ndim else matrices(gradient, out)
    rows, width = source.shape
    programs = min(rows * cdiv(width, config.columns), config.programs)
    steps = *source.stride(), *result.stride(), factor.stride(0) if factor.ndim else None
    launch(gradient.device, programs, source, factor, result, rows, width, *steps)


@cache
def _scale_launch(arch: str, inplace: bool, candidate: int | None) -> tuple[ScaleConfig, Launch]:
    config = pick(scale_candidates(arch), candidate)
    sizes = {"C": config.columns, "num_warps": config.warps}
    return config, Launch(_scale, INPLACE=inplace, BY_HAND=arch == "cpu", **sizes)


@jit(do_not_specialize=["rows"])
def _scale(  # type: ignore[no-untyped-def]
    source_ptr, factor_ptr, result_ptr, rows, width, source_row, source_column, result_row, result_column, factor_row,
    INPLACE: tl.constexpr, BY_HAND: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Every so-manieth block of C columns a program; none if in place and the factor is 1. With `factor_row`, the
    stride of the factors, each row has its own."""
    across = tl.cdiv(width, C).to(tl.int64)
    blocks = across * rows
    if factor_row is None:
        factor = tl.load(factor_ptr).to(tl.float32)
        if INPLACE:
            blocks = tl.where(factor == 1.0, 0, blocks)
    for block in range(tl.program_id(0), blocks, tl.num_programs(0)):
        row = block // across
        if factor_row is not None:
            factor = tl.load(factor_ptr + row * factor_row).to(tl.float32)
        column_C = block % across * C + tl.arange(0, C)
        inside_C = column_C < width
        value_C = tl.load(source_ptr + row * source_row + column_C * source_column, mask=inside_C, other=0.0)
        value_C = rounded(value_C.to(tl.float32) * factor, result_ptr.dtype.element_ty, BY_HAND)
        tl.store(result_ptr + row * result_row + column_C * result_column, value_C, mask=inside_C)
