"""RMSNorm and the fp8 codes of its result in one pass: what stands before every fp8 linear layer and grouped product.

    out = rms_norm(x),    codes, scales = quantize_rowwise(out), or quantize_1x128(out)

Codes and scales are those of the quantiser of `out`, bit for bit, because the result is rounded to x's dtype before it
is scaled; `out` is that of `rms_norm` up to the order of a sum. With it written, an element of 16 bits moves 5 bytes
instead of the 7 of the two one after another; without, 3. Gradients flow through `out` and are those of `rms_norm`:
codes are what a product reads of it, and that product's backward pass gives the gradient of what they stand for. Fused
like this in TensorRT-LLM's and vLLM's norms with dynamic scales of tokens, which serve and have no gradients.

Shape suffixes: R rows of a tile, C columns of a tile, which are Q blocks of B columns.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from kernels.arguments import require_ndim
from kernels.fp8 import reference as quantisers
from kernels.fp8.formats import format_of
from kernels.hardware import default_fp8_dtype
from kernels.jit import jit, path_of, tl, triton
from kernels.launch import Launch, cdiv, operator, pick, refuse_tangents
from kernels.operators.configs import norm_candidates
from kernels.operators.launch import strides
from kernels.operators.rms_norm import differentiate_norm, first_tile, load_tile, normed, require_norm, save_norm
from kernels.operators.rms_norm import reference as norm_reference

if triton is not None:
    from kernels.fp8.encode import Encoding, encode, magnitude_bits, scale_of, stored_scale
    from kernels.fp8.launch import How, how_of
    from kernels.jit import named

BLOCK = 128  # columns that share a scale of "1x128"
Scaling = Literal["rowwise", "1x128"]


class Normed(NamedTuple):
    """What `rms_norm_quantize` returns.

    Attributes:
        out: the normed rows, (M, H) in x's dtype, differentiable; None without `keep_output`.
        codes: of them, (M, H) fp8, contiguous.
        scales: (M, 1) fp32 as `quantize_rowwise` has them, or (M, ceil(H / 128)) as `quantize_1x128` has.
    """

    out: Tensor | None
    codes: Tensor
    scales: Tensor


def reference(
    x: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-6,
    *,
    offset: float = 0.0,
    scaling: Scaling = "rowwise",
    dtype: torch.dtype | None = None,
    power_of_two: bool = False,
    keep_output: bool = True,
) -> Normed:
    """The truth: the reference of the norm, and that of the quantiser of its result."""
    out = norm_reference(x, weight, eps, offset=offset)
    quantise = quantisers.quantize_rowwise if scaling == "rowwise" else quantisers.quantize_1x128
    return Normed(out if keep_output else None, *quantise(out.detach(), dtype=dtype, power_of_two=power_of_two))


def rms_norm_quantize(
    x: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-6,
    *,
    offset: float = 0.0,
    scaling: Scaling = "rowwise",
    dtype: torch.dtype | None = None,
    power_of_two: bool = False,
    keep_output: bool = True,
    candidate: int | None = None,
) -> Normed:
    """`rms_norm` of x (M, H), any strides, and codes and scales of the result.

    Args:
        x, weight, eps, offset: as in `rms_norm`.
        scaling: "rowwise" scales as `kernels.fp8.quantize_rowwise` does, "1x128" as `kernels.fp8.quantize_1x128`.
        dtype, power_of_two: of codes and scales, as there.
        keep_output: False writes codes and scales alone, for a pass that needs no gradients: no result has any.
        candidate: an entry of the configuration table of `rms_norm`, for tests and sweeps.
    """
    require_norm(x, weight, eps)
    require_ndim(x, "x", 2)
    if scaling not in ("rowwise", "1x128"):
        raise ValueError(f"scaling: is {scaling!r}; may be 'rowwise' or '1x128'")
    refuse_tangents("rms_norm_quantize", x, weight)
    if dtype is not None:
        format_of(dtype)
    if not keep_output:
        x, weight = x.detach(), None if weight is None else weight.detach()
    given = x, weight, float(eps), float(offset), None if scaling == "rowwise" else BLOCK, dtype, power_of_two
    out, _, codes, scales = _rms_norm_quantize(*given, keep_output, candidate)
    return Normed(out if keep_output else None, codes, scales)


@operator("rms_norm_quantize")
def _rms_norm_quantize(
    x: Tensor,
    weight: Tensor | None,
    eps: float,
    offset: float,
    block: int | None,
    dtype: torch.dtype | None,
    power_of_two: bool,
    keep_output: bool,
    candidate: int | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The result, none of it unless `keep_output`, r of each row, (M,) fp32, codes and scales."""
    found = _outputs(x, weight, eps, offset, block, dtype, power_of_two, keep_output, candidate)
    out, norms, codes, scales = found
    rows, width = x.shape
    if path_of(_norm_and_quantize, x.device) == "eager" or x.numel() == 0:
        scaling: Scaling = "rowwise" if block is None else "1x128"
        true = reference(x, weight, eps, offset=offset, scaling=scaling, dtype=codes.dtype, power_of_two=power_of_two)
        norms.copy_(torch.rsqrt(x.float().square().mean(-1) + eps))
        codes.copy_(true.codes)
        scales.copy_(true.scales)
        if keep_output:
            out.copy_(true.out)  # type: ignore[arg-type]
        return found
    how = how_of(x.device, dtype, power_of_two, candidate, inverse=block is not None)
    rows_each, launch = _plan(how, width, block)
    operands = x, None if weight is None else weight.contiguous(), out if keep_output else None, norms
    stored = codes.view(torch.uint8), scales, rows, width, *strides(x, scales), eps, offset
    launch(x.device, cdiv(rows, rows_each), *operands, *stored)
    return found


@_rms_norm_quantize.register_fake
def _outputs(x: Tensor, *given: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    _, _, _, block, dtype, _, keep_output, _ = given
    rows, width = x.shape
    codes = x.new_empty(rows, width, dtype=default_fp8_dtype(x.device) if dtype is None else dtype)
    wide = x.new_empty(1 if block is None else -(-width // block), rows, dtype=torch.float32)
    scales = wide.view(rows, 1) if block is None else wide.mT
    norms = x.new_empty(rows, dtype=torch.float32)
    return x.new_empty((rows, width) if keep_output else (0,)), norms, codes, scales


_rms_norm_quantize.register_autograd(differentiate_norm, setup_context=save_norm)


@cache
def _plan(how: How, width: int, block: int | None) -> tuple[int, Launch]:
    """Rows of a program. A tile that is a block wide, where the norm's is narrower, has fewer rows."""
    config = pick(norm_candidates(how.arch, width), how.candidate)
    columns = max(config.columns, block or 0)
    rows = max(1, config.rows * config.columns // columns)
    constants = {"BY_HAND": how.arch == "cpu", "WHOLE": width <= columns, "B": block, "encoding": how.encoding}
    return rows, Launch(_norm_and_quantize, **constants, R=rows, C=columns, num_warps=config.warps)


@jit(do_not_specialize=["rows", "eps", "offset"])
def _norm_and_quantize(  # type: ignore[no-untyped-def]
    x_ptr, weight_ptr, out_ptr, norms_ptr, codes_ptr, scales_ptr, rows, width, x_row, x_column, scale_row, scale_block,
    eps, offset, BY_HAND: tl.constexpr, WHOLE: tl.constexpr, B: tl.constexpr, encoding: tl.constexpr,
    R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """A wide row is read twice, for one scale three times, while it is still in cache."""
    ENCODING: tl.constexpr = named(Encoding, encoding)
    DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    row_R = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    real_R = row_R < rows
    column_C = tl.arange(0, C).to(tl.int64)
    x_RC, norm_R = first_tile(x_ptr, row_R, real_R, column_C, width, x_row, x_column, eps, WHOLE, C)
    tl.store(norms_ptr + row_R, norm_R, mask=real_R)

    if B is None:
        amax_R = tl.zeros((R,), tl.int32)
        for first in range(0, width, C):
            at_C = first + column_C
            if not WHOLE:
                x_RC = load_tile(x_ptr, row_R, real_R, at_C, width, x_row, x_column)
            out_RC = normed(x_RC, norm_R, weight_ptr, at_C, width, offset, DTYPE, BY_HAND)
            amax_R = tl.maximum(amax_R, tl.max(magnitude_bits(out_RC).to(tl.int32), 1))
        scale_R, spoilt_R = scale_of(amax_R, DTYPE, ENCODING)
        tl.store(scales_ptr + row_R * scale_row, stored_scale(scale_R, ENCODING), mask=real_R)

    for first in range(0, width, C):
        at_C = first + column_C
        if not WHOLE:
            x_RC = load_tile(x_ptr, row_R, real_R, at_C, width, x_row, x_column)
        out_RC = normed(x_RC, norm_R, weight_ptr, at_C, width, offset, DTYPE, BY_HAND)
        at_RC = row_R[:, None] * width + at_C[None, :]
        inside_RC = real_R[:, None] & (at_C < width)[None, :]
        if out_ptr is not None:
            tl.store(out_ptr + at_RC, out_RC, mask=inside_RC)
        if B is None:
            code_RC = encode(out_RC, scale_R[:, None], spoilt_R[:, None], ENCODING)
        else:
            out_RQB = tl.reshape(out_RC, (R, C // B, B))
            scale_RQ, spoilt_RQ = scale_of(tl.max(magnitude_bits(out_RQB).to(tl.int32), 2), DTYPE, ENCODING)
            code_RQB = encode(out_RQB, scale_RQ[:, :, None], spoilt_RQ[:, :, None], ENCODING)
            code_RC = tl.reshape(code_RQB, (R, C))
            block_Q = first // B + tl.arange(0, C // B).to(tl.int64)
            scales_at_RQ = scales_ptr + row_R[:, None] * scale_row + block_Q[None, :] * scale_block
            there_RQ = real_R[:, None] & (block_Q < tl.cdiv(width, B))[None, :]
            tl.store(scales_at_RQ, stored_scale(scale_RQ, ENCODING), mask=there_RQ)
        tl.store(codes_ptr + at_RC, code_RC, mask=inside_RC)
