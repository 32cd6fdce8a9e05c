"""Grouped matmul for training with block scales: forward, dgrad and wgrad in fp8.

out[rows of group g] = a[rows of g] @ b_t[g]. "1x128" is DeepSeek-V3's recipe: a scale for 128 neighbours of an
activation and of a gradient, along whatever the product contracts, and for a square of 128 of a weight. "mx" is OCP's
MXFP8: 32 neighbours of every operand share a power of two, rounded up. Formulas: `reference.py`; kernels of both:
`quantize.py` and `products.py`. One operator a pass, so that the host is asked once.

Shape suffixes: M rows, K inner width, N outer width, E experts, P padded rows.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from kernels import fp8
from kernels.arguments import refuse_second_derivative
from kernels.block_scaled import reference
from kernels.block_scaled.reference import MX_BLOCK, SQUARE, Coded, codes_dtype, padded_blocks
from kernels.fp8.arguments import ALIGNMENT, require_matmul_operands
from kernels.jit import Path, path_of, triton
from kernels.launch import operator

if triton is not None:
    from kernels.block_scaled import launch
else:  # the operators run their reference
    launch = None  # type: ignore[assignment]

Scaling = Literal["1x128", "mx"]


def path(device: torch.device | str) -> Path:
    """What a call on this device runs now (`kernels.jit`)."""
    return path_of(None if launch is None else launch.multiply_rows, device)


def grouped_mm(
    a: Tensor,
    b_t: Tensor,
    offs: Tensor,
    *,
    scaling: Scaling = "1x128",
    power_of_two: bool = False,
    candidate: int | None = None,
) -> Tensor:
    """a (M, K), b_t (E, K, N), offs (E,) int32 -> out (M, N) bf16, contiguous; differentiable once in a and b_t.

    a and b_t are bf16 or fp32, each by itself, with any strides; b_t is normally the transposed view of a weight
    (E, N, K). offs holds the inclusive running end of each group; groups may be of any size and empty. Rows past
    `offs[-1]` are ignored, NaN among them too, and are zero in out and in the gradient of a. The gradient of an empty
    group's weight is zero. Gradients have their input's dtype, in which they are rounded once.

    Args:
        scaling: "1x128" or "mx", see above. Codes are of the device's fp8 format, those of "mx" always float8_e4m3fn.
        power_of_two: scales of "1x128" are rounded to powers of two, as DeepGEMM wants them on sm_100.
        candidate: an entry of the configuration table of the products, for tests and sweeps.

    Kept for backward: where b_t needs a gradient, the codes of a by columns, K * P bytes with P = 128 * floor((M +
    127 E) / 128), and their scales; b_t itself; offs. Nothing reads the device on the host, but on a CPU.

    Errors: ValueError for wrong arguments, RuntimeError for a backward with create_graph=True.
    """
    require_matmul_operands(a, b_t, offs)
    if scaling not in ("1x128", "mx"):
        raise ValueError(f"scaling: is {scaling!r}; may be '1x128' or 'mx'")
    inner, outer = b_t.shape[1:]
    needs_wgrad = torch.is_grad_enabled() and b_t.requires_grad
    if inner % ALIGNMENT or outer % ALIGNMENT:  # zeros change no scale, and rows become whole units of the copy engine
        a = pad(a, (0, -inner % ALIGNMENT))
        b_t = pad(b_t.mT, (0, -inner % ALIGNMENT, 0, -outer % ALIGNMENT)).mT
    out, _, _ = _forward(a, b_t, offs, scaling == "mx", power_of_two, needs_wgrad, candidate)
    return out if out.shape[1] == outer else out[:, :outer].contiguous()  # type: ignore[no-any-return]


grouped_mm.path = path  # type: ignore[attr-defined]


@operator("block_scaled_mm")
def _forward(
    a: Tensor, b_t: Tensor, offs: Tensor, mx: bool, power_of_two: bool, keeps_columns: bool, candidate: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """(out, codes of a by columns as bytes, their scales); without `keeps_columns` the last two have no element."""
    how = mx, power_of_two
    out, column_codes, column_scales = _outputs(a, b_t, offs, *how, keeps_columns, candidate)
    columns = _seen((column_codes, column_scales), mx) if keeps_columns else None
    _multiply_rows(_quantize(a, offs, columns, *how), _quantize_along(b_t.mT, *how, weight=True), offs, out, candidate)
    return out, column_codes, column_scales


@_forward.register_fake
def _outputs(
    a: Tensor, b_t: Tensor, offs: Tensor, mx: bool, _: bool, keeps_columns: bool, *__: Any
) -> tuple[Tensor, Tensor, Tensor]:
    out = a.new_empty((a.shape[0], b_t.shape[2]), dtype=torch.bfloat16)
    if not keeps_columns:
        return out, a.new_empty((0,), dtype=torch.uint8), a.new_empty((0,), dtype=torch.uint8)
    codes, scales = _columns_of(a, offs, mx)
    return out, codes.view(torch.uint8), scales.view(torch.uint8) if mx else scales


@operator("block_scaled_mm_backward")
def _backward(
    grad: Tensor,
    b_t: Tensor,
    offs: Tensor,
    column_codes: Tensor,
    column_scales: Tensor,
    dtype: torch.dtype,
    mx: bool,
    power_of_two: bool,
    needs_dgrad: bool,
    candidate: int | None,
) -> tuple[Tensor, Tensor]:
    """(gradient of a in `dtype`, of b_t as (E, N, K)); without columns the second, without `needs_dgrad` the first has
    no element."""
    how, needs_wgrad = (mx, power_of_two), column_codes.ndim == 2
    grad_a, grad_w = _gradients(grad, b_t, offs, column_codes, column_scales, dtype, *how, needs_dgrad, candidate)
    columns = _columns_of(grad, offs, mx) if needs_wgrad else None
    rows = _quantize(grad, offs, columns, *how)
    if needs_dgrad:
        _multiply_rows(rows, _quantize_along(b_t, *how, weight=True), offs, grad_a, candidate)
    if columns is not None:
        of_a = _seen((column_codes, column_scales), mx)
        if path(grad.device) == "eager":
            grad_w.copy_(reference.multiply_groups(columns, of_a, offs, len(grad)))
        elif grad_w.numel():
            launch.groups_product(columns, of_a, offs.contiguous(), len(grad), grad_w, candidate)
    return grad_a, grad_w


@_backward.register_fake
def _gradients(
    grad: Tensor, b_t: Tensor, _: Tensor, columns: Tensor, __: Tensor, dtype: torch.dtype, *how: Any
) -> tuple[Tensor, Tensor]:
    experts, inner, outer = b_t.shape
    *_, needs_dgrad, _ = how
    grad_a = grad.new_empty((grad.shape[0], inner) if needs_dgrad else (0,), dtype=dtype)
    return grad_a, grad.new_empty((experts, outer, inner) if columns.ndim == 2 else (0,), dtype=b_t.dtype)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    a, b_t, offs, *ctx.how, _, ctx.candidate = inputs
    ctx.dtype = a.dtype
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(b_t, offs, *output[1:])


def _differentiate(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    refuse_second_derivative("grouped_mm", "fp8 codes have none of their own", "a bf16 matmul")
    if grad is None:
        return (None,) * 7
    needs_dgrad = ctx.needs_input_grad[0]
    grad_a, grad_w = _backward(grad, *ctx.saved_tensors, ctx.dtype, *ctx.how, needs_dgrad, ctx.candidate)
    return grad_a if needs_dgrad else None, grad_w.mT if grad_w.ndim == 3 else None, *(None,) * 5


_forward.register_autograd(_differentiate, setup_context=_save)


# ---- what both passes share ------------------------------------------------------------------------------------------


def _empty(x: Tensor, rows: int, width: int, mx: bool) -> Coded:
    """Codes (rows, width) and scales along them: exponents by row, the others of a block side by side."""
    codes = x.new_empty((rows, width), dtype=codes_dtype(x.device, mx))
    if mx:
        return codes, x.new_empty((rows, -(-width // MX_BLOCK)), dtype=torch.float8_e8m0fnu)
    return codes, x.new_empty((-(-width // SQUARE), rows), dtype=torch.float32).mT


def _columns_of(x_MK: Tensor, offs: Tensor, mx: bool) -> Coded:
    """Codes (K, P) and scales (K, B)."""
    return _empty(x_MK, x_MK.shape[1], padded_blocks(x_MK.shape[0], offs.shape[0]) * SQUARE, mx)


def _seen(coded: Coded, mx: bool) -> Coded:
    """Bytes as the numbers that they are."""
    codes, scales = coded
    return codes.view(codes_dtype(codes.device, mx)), scales.view(torch.float8_e8m0fnu) if mx else scales


def _quantize(x_MK: Tensor, offs: Tensor, columns: Coded | None, mx: bool, power_of_two: bool) -> Coded:
    """Codes and scales along rows; fills `columns` in the same pass."""
    eager = path(x_MK.device) == "eager"
    if eager and columns is not None:
        for place, found in zip(columns, reference.quantize_columns(x_MK, offs, mx, power_of_two), strict=True):
            place.copy_(found)
    if eager or columns is None:
        return _quantize_along(x_MK, mx, power_of_two)
    codes, scales = _empty(x_MK, *x_MK.shape, mx)
    if codes.numel():
        launch.quantize(x_MK, offs.contiguous(), (codes, scales), columns, mx, power_of_two)
    return codes, scales


def _quantize_along(x: Tensor, mx: bool, power_of_two: bool, weight: bool = False) -> Coded:
    """Along the last dimension; a weight for "1x128" in squares."""
    if mx:
        return fp8.quantize_mx(x, dtype=codes_dtype(x.device, mx), round_up=True)
    return (fp8.quantize_128x128 if weight else fp8.quantize_1x128)(x, power_of_two=power_of_two)


def _multiply_rows(a: Coded, b: Coded, offs: Tensor, out_MN: Tensor, candidate: int | None) -> None:
    if path(out_MN.device) == "eager":
        out_MN.copy_(reference.multiply_rows(a, b, offs))
    elif 0 in b[0].shape:
        out_MN.zero_()
    elif out_MN.numel():
        launch.rows_product(a, b, offs.contiguous(), out_MN, candidate)
