"""Tensors that are hard on a quantiser: the layouts and the values that it has to survive.

Values are drawn from torch's global generator on the CPU, so that whoever seeds it owns the data.

Shape suffixes: S slices, L slice length.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable

import torch
from torch import Tensor

from kernels.fp8.formats import Format

# ---------------------------------------------------------------------------------------------------
# Layouts: the same values elsewhere in memory. Each takes a contiguous tensor of 2 or 3 dimensions and
# returns an equal one; the surroundings in the buffer are NaN, so that a read beside the view shows.


def _surrounded(values: Tensor, shape: tuple[int, ...]) -> Tensor:
    return torch.full(shape, torch.nan, dtype=values.dtype, device=values.device)


def row_major(values: Tensor) -> Tensor:
    return values.clone(memory_format=torch.contiguous_format)


def column_major(values: Tensor) -> Tensor:
    """The last two dimensions swapped in memory: the natural layout of a transposed weight."""
    return values.mT.contiguous().mT


def transposed_view(values: Tensor) -> Tensor:
    """`.mT` of a column slice: unit stride in the second last dimension, leading dimension too large."""
    *batch, rows, columns = values.shape
    buffer = _surrounded(values, (*batch, columns, rows + 3))
    view = buffer[..., :rows].mT
    return view.copy_(values)


def every_second_row(values: Tensor) -> Tensor:
    *batch, rows, columns = values.shape
    view = _surrounded(values, (*batch, 2 * rows, columns))[..., ::2, :]
    return view.copy_(values)


def every_second_column(values: Tensor) -> Tensor:
    """No dimension has stride 1."""
    *batch, rows, columns = values.shape
    view = _surrounded(values, (*batch, rows, 2 * columns))[..., ::2]
    return view.copy_(values)


def column_slice(values: Tensor) -> Tensor:
    """A row stride that is wider than the row, and rows that start anywhere."""
    *batch, rows, columns = values.shape
    view = _surrounded(values, (*batch, rows, columns + 5))[..., 2 : 2 + columns]
    return view.copy_(values)


def cat_split(values: Tensor) -> Tensor:
    """The second half of a fused projection: what the gradient of a `cat` looks like."""
    beside = torch.full_like(values, torch.nan)
    return torch.cat((beside, values), dim=-1).tensor_split(2, dim=-1)[1]


def storage_offset_one(values: Tensor) -> Tensor:
    """Contiguous, but no address is aligned to 16 bytes."""
    view = _surrounded(values, (values.numel() + 1,))[1:].view(values.shape)
    return view.copy_(values)


def batch_innermost(values: Tensor) -> Tensor:
    """The first dimension has stride 1; in two dimensions that is column-major."""
    return values.movedim(0, -1).contiguous().movedim(-1, 0)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "row-major": row_major,
    "column-major": column_major,
    "transposed-view": transposed_view,
    "every-second-row": every_second_row,
    "every-second-column": every_second_column,
    "column-slice": column_slice,
    "cat-split": cat_split,
    "storage-offset-1": storage_offset_one,
    "batch-innermost": batch_innermost,
}


def expanded_rows(values: Tensor) -> Tensor:
    """The first row everywhere: stride 0 down the rows, as a broadcast bias has."""
    return values[..., :1, :].expand(values.shape)


def expanded_columns(values: Tensor) -> Tensor:
    """The first column everywhere: stride 0 along the row, as the gradient of a row sum has."""
    return values[..., :1].expand(values.shape)


def expanded_scalar(values: Tensor) -> Tensor:
    """One element everywhere, all strides 0: the gradient of `.sum()`."""
    return values.flatten()[:1].view([1] * values.ndim).expand(values.shape)


def overlapping(values: Tensor) -> Tensor:
    """Windows of one line, element [.., i, j] = line[i + j]: different elements share an address."""
    rows, columns = values.shape[-2:]
    line = values.new_empty(values.numel() + rows + columns).copy_(
        torch.randn(values.numel() + rows + columns, dtype=torch.float32)
    )
    batch_strides = [rows + columns] * (values.ndim - 2)
    return line.as_strided(values.shape, [*batch_strides, 1, 1])


# These keep shape, dtype and device, but not the values: their elements share memory.
SHARING_LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "expanded-rows": expanded_rows,
    "expanded-columns": expanded_columns,
    "expanded-scalar": expanded_scalar,
    "overlapping": overlapping,
}


def far_apart(values: Tensor, dim: int, stride: int) -> Tensor:
    """Neighbours along `dim` lie `stride` elements apart, so that 32 bits do not hold the last ones' offsets.

    The buffer reaches as far below the first element as an offset that wraps can point, counted in elements
    or in 32-bit words: it then reads foreign memory of ours and does not crash.
    """
    moved = values.movedim(dim, 0)
    wrap = max(2**32, moved.shape[0] * stride)
    block = moved[0].contiguous()
    reach = wrap + (moved.shape[0] - 1) * stride + block.numel()
    buffer = _untouched(reach, values.dtype, values.device)
    view = buffer.as_strided(moved.shape, (stride, *block.stride()), storage_offset=wrap)
    return view.copy_(moved).movedim(0, dim)


def _untouched(elements: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory that costs address space alone, on a CPU, as long as nobody touches its pages."""
    if device.type != "cpu":
        return torch.empty(elements, dtype=dtype, device=device)
    no_reserve = 0x4000  # MAP_NORESERVE of Linux, which Python names from 3.13 on
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve
    return torch.frombuffer(mmap.mmap(-1, elements * dtype.itemsize, flags=flags), dtype=dtype)


# ---------------------------------------------------------------------------------------------------
# Values: slices (S, L) that share one scale along L. `format_` is the fp8 format aimed at.

Fill = Callable[[int, int, torch.dtype, Format], Tensor]


def normal(slices: int, length: int, dtype: torch.dtype, format_: Format) -> Tensor:
    return torch.randn(slices, length).to(dtype)


def _outlier(slices: int, length: int, dtype: torch.dtype, format_: Format) -> Tensor:
    x_SL = torch.randn(slices, length)
    x_SL[torch.arange(slices), torch.arange(slices) % length] = 1e4
    return x_SL.to(dtype)


def _zeros(slices: int, length: int, dtype: torch.dtype, format_: Format) -> Tensor:
    return torch.zeros(slices, length, dtype=dtype)


def _zero_slice(slices: int, length: int, dtype: torch.dtype, format_: Format) -> Tensor:
    x_SL = torch.randn(slices, length)
    x_SL[slices // 2] = 0.0
    return x_SL.to(dtype)


def _constant(slices: int, length: int, dtype: torch.dtype, format_: Format) -> Tensor:
    """Each slice one value, either sign, over many powers of two: every code is MAX or -MAX."""
    x_S1 = torch.linspace(-12.0, 12.0, slices).exp2().view(slices, 1)
    x_S1[::2] *= -1.0
    return x_S1.expand(slices, length).to(dtype)


def _signed_zeros(slices: int, length: int, dtype: torch.dtype, format_: Format) -> Tensor:
    """+0 and -0 in turn, in odd slices beside one ordinary value; 0x80 must not appear in fnuz."""
    x_SL = torch.zeros(slices, length, dtype=dtype)
    x_SL[:, ::2] = -0.0
    x_SL[1::2, -1] = 1.0
    return x_SL


def _small_codes(slices: int, length: int, dtype: torch.dtype, format_: Format) -> Tensor:
    """MAX first, then values that land among the fp8 subnormals, just above and just below zero."""
    x_SL = torch.randn(slices, length) * 4 * torch.finfo(format_.dtype).smallest_normal
    x_SL[:, 1::3] *= 2.0 ** -(format_.mantissa_bits + 2)  # below half of the smallest: to +0 or -0
    x_SL[:, 0] = format_.max
    return x_SL.to(dtype)


def _input_subnormals(slices: int, length: int, dtype: torch.dtype, format_: Format) -> Tensor:
    """Nothing but the input dtype's own subnormals: below the floor of amax, and not to be flushed."""
    smallest = torch.finfo(dtype).smallest_normal
    return (torch.rand(slices, length, dtype=torch.float64).sub(0.5) * smallest).to(dtype)


def _around_floor(slices: int, length: int, dtype: torch.dtype, format_: Format) -> Tensor:
    """amax below, near and above 1e-12, slice by slice; in fp16 all of it is zero."""
    x_SL = torch.rand(slices, length) * 1e-12
    return (x_SL * torch.linspace(0.25, 4.0, slices).view(slices, 1)).to(dtype)


def _around_max(slices: int, length: int, dtype: torch.dtype, format_: Format) -> Tensor:
    """amax one step under, at, one step over MAX and far over it; 248 rounds to 256 in e4m3fnuz."""
    x_SL = torch.randn(slices, length) * format_.max / 4
    at_max = torch.tensor(format_.max, dtype=dtype)
    infinity = torch.tensor(torch.inf, dtype=dtype)
    tops = (
        torch.nextafter(at_max, -infinity),
        at_max,
        torch.nextafter(at_max, infinity),
        at_max * 1.03125,  # rounds to a code past MAX, were MAX not the largest
        at_max * 1.125,
        -at_max,
    )
    x_SL = x_SL.clamp(-format_.max, format_.max).to(dtype)
    for slice_ in range(slices):
        x_SL[slice_, slice_ % length] = tops[slice_ % len(tops)]
    return x_SL


def _near_limit(slices: int, length: int, dtype: torch.dtype, format_: Format) -> Tensor:
    """The largest that the input holds, and everything just below it: the scale is tiny, no overflow."""
    top = torch.finfo(dtype).max
    x_SL = torch.rand(slices, length, dtype=torch.float64).mul(0.25).add(0.75) * top
    x_SL[:, 0] = -top
    return x_SL.to(dtype)


def _ties(slices: int, length: int, dtype: torch.dtype, format_: Format) -> Tensor:
    """MAX first, so that the scale is 1; then the middle between two codes, a step below, a step above."""
    codes = torch.arange(format_.max_code + 1, dtype=torch.uint8)
    values = codes.view(format_.dtype).double()
    middles = ((values[:-1] + values[1:]) / 2).to(dtype)
    infinity = torch.tensor(torch.inf, dtype=dtype)
    above, below = torch.nextafter(middles, infinity), torch.nextafter(middles, -infinity)
    points = torch.cat((middles, above, below, values[1:].to(dtype)))
    points = torch.cat((points, -points))
    count = slices * (length - 1)
    x_SL = points.repeat(-(-count // points.numel()))[:count].view(slices, length - 1)
    return torch.cat((torch.full((slices, 1), format_.max, dtype=dtype), x_SL), dim=1)


def _below_power(slices: int, length: int, dtype: torch.dtype, format_: Format) -> Tensor:
    """Scales just under, at and just over a power of two, where exp2(floor(log2)) goes wrong."""
    x_SL = torch.randn(slices, length).clamp(-3.0, 3.0)
    significand = format_.max / 2.0 ** (int(format_.max).bit_length() - 1)
    tops = torch.tensor([significand * 4 * (1 + step * 2.0**-23) for step in (0, 1, 2, 3, -1)])
    x_SL[:, 0] = tops.repeat(-(-slices // tops.numel()))[:slices]
    return x_SL.to(dtype)


def _one_element(value: float) -> Fill:
    def fill(slices: int, length: int, dtype: torch.dtype, format_: Format) -> Tensor:
        x_SL = torch.randn(slices, length)
        x_SL[slices // 2, length // 2] = value
        return x_SL.to(dtype)

    return fill


def _nan_payloads(slices: int, length: int, dtype: torch.dtype, format_: Format) -> Tensor:
    """NaN and Inf of both signs, also together in a slice; every second slice stays ordinary."""
    x_SL = torch.randn(slices, length).to(dtype)
    specials = (torch.nan, -torch.nan, torch.inf, -torch.inf)
    for slice_ in range(0, slices, 2):
        x_SL[slice_, -1] = specials[slice_ // 2 % 4]
        x_SL[slice_, 0] = specials[slice_ // 8 % 4]
    return x_SL


VALUES: dict[str, Fill] = {
    "normal": normal,
    "outlier": _outlier,
    "zeros": _zeros,
    "zero-slice": _zero_slice,
    "constant": _constant,
    "signed-zeros": _signed_zeros,
    "small-codes": _small_codes,
    "input-subnormals": _input_subnormals,
    "around-floor": _around_floor,
    "around-max": _around_max,
    "near-limit": _near_limit,
    "ties": _ties,
    "below-power": _below_power,
    "one-nan": _one_element(torch.nan),
    "one-inf": _one_element(torch.inf),
    "one-minus-inf": _one_element(-torch.inf),
    "nan-payloads": _nan_payloads,
}
