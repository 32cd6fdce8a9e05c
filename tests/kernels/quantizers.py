"""The quantisers as data, how their inputs are built, and what it means that two results agree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from kernels import fp8
from kernels.fp8 import inputs, reference
from kernels.fp8.formats import FORMATS, Format
from kernels.fp8.shapes import Split
from tests.kernels.paths import GPU

Tensors = tuple[torch.Tensor, ...]
Layout = Callable[[torch.Tensor], torch.Tensor]

E4M3FN = FORMATS[torch.float8_e4m3fn]


@dataclass(frozen=True)
class Quantizer:
    """One entry of the suite; `kind` says what it takes."""

    name: str
    kind: str  # "matrix" (M, K), "grouped" (M, K), "grouped-transposed" (P, M), "dual", "weight" (E, K, N)
    flag: str = "power_of_two"  # its option of how scales are rounded

    @property
    def function(self) -> Callable[..., Tensors]:
        return getattr(fp8, f"quantize_{self.name}")  # type: ignore[no-any-return]

    @property
    def reference(self) -> Callable[..., Tensors]:
        return getattr(reference, f"quantize_{self.name}")  # type: ignore[no-any-return]

    @property
    def is_grouped(self) -> bool:
        return self.kind in ("grouped", "grouped-transposed", "dual")

    @property
    def keeps_layout(self) -> bool:
        """Reduces along memory and writes in the order it reads: the cheap family, also to interpret."""
        return self.name in ("rowwise", "colwise_3d")

    @property
    def reduces_over_rows(self) -> bool:
        """Whether a slice lies along dim 0 of the matrix, or dim 1 of a weight's (E, K, N)."""
        return self.kind in ("grouped", "dual") or self.name == "colwise_3d"

    def arguments(
        self,
        split: Split,
        width: int,
        device: torch.device | str,
        *,
        fill: inputs.Fill = inputs.normal,
        dtype: torch.dtype = torch.bfloat16,
        format_: Format = E4M3FN,
        layout: Layout = inputs.row_major,
    ) -> Tensors:
        """`width` slices beside each other, which `split` cuts into groups; `fill` draws them.

        What is not grouped takes `split` as the length of a slice, a weight also as its number of experts
        (three at most). Rows past the last group hold NaN.
        """
        if self.kind == "weight":
            experts = min(split.groups, 3)
            slices = fill(experts * width, split.rows, dtype, format_).view(experts, width, split.rows)
            weight = slices.mT.contiguous() if self.reduces_over_rows else slices
            return (layout(weight.to(device)),)
        widths = (width, width // 2 + 3) if self.kind == "dual" else (width,)
        operands = []
        for one_width in widths:
            slices = fill(one_width, split.rows, dtype, format_)
            if self.is_grouped:
                slices[:, sum(split.sizes) :] = torch.nan
            matrix = slices.t().contiguous() if self.reduces_over_rows else slices
            operands.append(layout(matrix.to(device)))
        return (*operands, split.offs(device)) if self.is_grouped else tuple(operands)


SEVEN = (
    Quantizer("rowwise", "matrix"),
    Quantizer("rowwise_per_group", "grouped-transposed"),
    Quantizer("colwise_per_group", "grouped"),
    Quantizer("colwise_per_group_dual", "dual"),
    Quantizer("transpose_3d_atomic", "weight"),
    Quantizer("transpose_3d_reduction", "weight"),
    Quantizer("colwise_3d", "weight"),
)
READ_ONCE = (
    Quantizer("rowwise_colwise_per_group", "grouped"),
    Quantizer("colwise_transpose_3d", "weight"),
)
QUANTIZERS = SEVEN + READ_ONCE
BLOCKS = (
    Quantizer("1x128", "matrix"),
    Quantizer("128x128", "weight"),
    Quantizer("mx", "matrix", "round_up"),
)


def name(quantizer: Quantizer) -> str:
    """The pytest id."""
    return quantizer.name


# One for each kernel and way through it: what the others launch are these, compared in test_quantize_edges.py.
KERNELS = ("rowwise", "colwise_3d", "colwise_per_group", "transpose_3d_atomic", "1x128", "128x128", "mx")


def param(q: Quantizer, *values: object, id: str) -> Any:
    """A case of a test. In the interpreter those whose kernel another one runs are tried every night."""
    return pytest.param(q, *values, id=id, marks=[] if GPU or q.name in KERNELS else [pytest.mark.nightly])


def by_kernel(quantizers: Sequence[Quantizer]) -> pytest.MarkDecorator:
    """A test of each, as `q`, in `param`'s share of nights."""
    return pytest.mark.parametrize("q", [param(q, id=q.name) for q in quantizers])


def without_nan(tensor: torch.Tensor) -> torch.Tensor:
    """For `opcheck`, to which a NaN is not equal to itself; rows past the last group have none then."""
    return tensor.nan_to_num() if tensor.is_floating_point() else tensor


# ---------------------------------------------------------------------------------------------------
# Agreement


def assert_bit_equal(got: Tensors, expected: Tensors, because: str = "") -> None:
    """The same shapes, dtypes, strides and bytes; a NaN scale is a NaN scale, whatever its payload."""
    _assert_same_form(got, expected, because)
    for index, (one, other) in enumerate(zip(got, expected, strict=True)):
        if other.dtype == torch.float32:
            _assert_scales_equal(one, other, index, because)
        else:
            differ = _bytes(one) != _bytes(other)
            assert not differ.any(), _describe(one, other, differ, index, because)


def _assert_same_form(got: Tensors, expected: Tensors, because: str) -> None:
    assert len(got) == len(expected), f"{because}: {len(got)} results, expected {len(expected)}"
    for index, (one, other) in enumerate(zip(got, expected, strict=True)):
        for attribute in ("dtype", "shape", "device"):
            ours, theirs = getattr(one, attribute), getattr(other, attribute)
            assert ours == theirs, f"{because}: result {index} has {attribute} {ours}, expected {theirs}"
        if other.numel():  # strides of nothing mean nothing
            assert one.stride() == other.stride(), (
                f"{because}: result {index} of shape {tuple(one.shape)} has strides {one.stride()}, "
                f"expected {other.stride()}"
            )


def _assert_scales_equal(got: torch.Tensor, expected: torch.Tensor, index: int, because: str) -> None:
    differ = got.view(torch.int32) != expected.view(torch.int32)
    differ &= ~(got.isnan() & expected.isnan())
    assert not differ.any(), _describe(got, expected, differ, index, because)


def _describe(got: torch.Tensor, expected: torch.Tensor, differ: torch.Tensor, index: int, because: str) -> str:
    first = tuple(differ.nonzero()[0].tolist())
    return (
        f"{because}: result {index}, shape {tuple(got.shape)}: "
        f"{int(differ.sum())} of {differ.numel()} differ, "
        f"first at {first}: {_show(got, first)}, expected {_show(expected, first)}"
    )


def _show(tensor: torch.Tensor, at: tuple[int, ...]) -> str:
    if tensor.dtype == torch.float32:
        return repr(tensor[at].item())
    return f"0x{_bytes(tensor)[at].item():02x}"


def _bytes(codes: torch.Tensor) -> torch.Tensor:
    return codes.view(torch.uint8)
