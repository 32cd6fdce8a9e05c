"""The eager references against truths that share nothing with them.

A value table decoded by the formula of the format stands in for torch's casts, a search for the nearest
entry for its rounding, and float64 in numpy for the scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
import torch

from kernels.arguments import DTYPES
from kernels.fp8 import reference
from kernels.fp8.formats import FORMATS, Format, format_of
from kernels.fp8.inputs import LAYOUTS, SHARING_LAYOUTS, VALUES
from kernels.fp8.shapes import Split, splits
from tests.kernels.quantizers import READ_ONCE, SEVEN, Quantizer, assert_bit_equal, name

ALL = SEVEN + READ_ONCE
EVERY_FORMAT = pytest.mark.parametrize("format_", FORMATS.values(), ids=str)


# ---------------------------------------------------------------------------------------------------
# The truth


def code_values(format_: Format) -> np.ndarray:
    """What the 256 codes stand for, decoded from sign, exponent and mantissa in float64."""
    codes = np.arange(256)
    sign = np.where(codes >= 128, -1.0, 1.0)
    exponent = (codes & 0x7F) >> format_.mantissa_bits
    mantissa = (codes & ((1 << format_.mantissa_bits) - 1)) / 2.0**format_.mantissa_bits
    normal = (1 + mantissa) * 2.0 ** (exponent - format_.bias)
    values = sign * np.where(exponent == 0, mantissa * 2.0 ** (1 - format_.bias), normal)
    special = np.abs(values) > format_.max
    values[special] = np.nan
    if format_.dtype == torch.float8_e5m2:
        values[[0x7C, 0xFC]] = np.inf, -np.inf
    if not format_.has_negative_zero:
        values[0x80] = np.nan
    return values


def true_codes(scaled: np.ndarray, format_: Format) -> np.ndarray:
    """Nearest code to each fp32 value, ties to the even one, anything past MAX at MAX."""
    values = code_values(format_)[: format_.max_code + 1]
    magnitude = np.minimum(np.abs(scaled.astype(np.float64)), format_.max)
    upper = np.searchsorted(values, magnitude).clip(1, len(values) - 1)
    lower = upper - 1
    below, above = magnitude - values[lower], values[upper] - magnitude
    even = np.where(lower % 2 == 0, lower, upper)
    code = np.where(below < above, lower, np.where(above < below, upper, even))
    negative = np.signbit(scaled) & (format_.has_negative_zero | (code > 0))
    return np.where(negative, code | 0x80, code).astype(np.uint8)


def true_slice(x: torch.Tensor, format_: Format, power_of_two: bool) -> tuple[np.ndarray, np.float32]:
    """Codes and scale of one slice."""
    values = x.double().numpy()
    if not np.isfinite(values).all():
        return np.full(values.shape, format_.nan_code, dtype=np.uint8), np.float32(np.nan)
    amax = np.abs(values).max(initial=0.0)
    scale = np.float32(format_.max / max(amax, 1e-12))
    if power_of_two:
        scale = np.float32(2.0 ** (int(np.frexp(scale)[1]) - 1))
    return true_codes(values.astype(np.float32) * scale, format_), scale


def assert_slice(
    x: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor, format_: Format, power_of_two: bool
) -> None:
    expected_codes, expected_scale = true_slice(x, format_, power_of_two)
    np.testing.assert_array_equal(scale.numpy(), expected_scale)
    np.testing.assert_array_equal(codes.view(torch.uint8).numpy(), expected_codes)


# ---------------------------------------------------------------------------------------------------
# Formats


@EVERY_FORMAT
def test_format_describes_what_torch_decodes(format_: Format) -> None:
    decoded = torch.arange(256, dtype=torch.uint8).view(format_.dtype).double().numpy()
    np.testing.assert_array_equal(decoded, code_values(format_))
    finite = decoded[np.isfinite(decoded)]
    assert finite.max() == format_.max == decoded[format_.max_code]
    assert np.isnan(decoded[format_.nan_code])
    assert (decoded[0x80] == 0) == format_.has_negative_zero


def test_unknown_format_lists_the_known() -> None:
    with pytest.raises(ValueError, match=r"dtype: is torch.bfloat16; may be .*float8_e4m3fn,.*float8_e5m2fnuz"):
        format_of(torch.bfloat16)


# ---------------------------------------------------------------------------------------------------
# Codes and scales of single slices


@EVERY_FORMAT
@pytest.mark.parametrize("power_of_two", [False, True], ids=["exact", "power-of-two"])
@pytest.mark.parametrize("values", VALUES)
def test_rowwise_is_the_float64_formula(values: str, power_of_two: bool, format_: Format) -> None:
    for dtype in DTYPES:
        x = VALUES[values](13, 1100, dtype, format_)  # long enough for every tie of every format
        codes, scales = reference.quantize_rowwise(x, dtype=format_.dtype, power_of_two=power_of_two)
        for row in range(13):
            assert_slice(x[row], codes[row], scales[row, 0], format_, power_of_two)


KNOWN = [
    # format, x, codes, scale, power of two. Written by hand.
    (torch.float8_e4m3fn, [448.0, 17.0, 18.0, 19.0], [0x7E, 0x58, 0x59, 0x5A], 1.0),  # 17, 19 ties: to even
    (torch.float8_e4m3fn, [1.0, -1.0, 0.5], [0x7E, 0xFE, 0x76], 448.0),
    (torch.float8_e4m3fn, [448.0, 2**-9, 2**-10, 1.5 * 2**-9], [0x7E, 0x01, 0x00, 0x02], 1.0),  # subnormals
    (torch.float8_e4m3fn, [448.0, -(2.0**-11)], [0x7E, 0x80], 1.0),  # underflow keeps its sign in fn
    (torch.float8_e4m3fnuz, [240.0, -(2.0**-12)], [0x7F, 0x00], 1.0),  # and must not in fnuz
    (torch.float8_e4m3fnuz, [1.0, -1.0, 0.5], [0x7F, 0xFF, 0x77], 240.0),
    (torch.float8_e5m2, [57344.0, -57344.0, 1.0], [0x7B, 0xFB, 0x3C], 1.0),
    (torch.float8_e5m2fnuz, [57344.0, -57344.0, 1.0], [0x7F, 0xFF, 0x40], 1.0),
    (torch.float8_e4m3fn, [0.0, 0.0], [0, 0], 4.48e14),  # the floor of amax
    (torch.float8_e4m3fnuz, [0.0, -0.0], [0, 0], 2.4e14),
    (torch.float8_e5m2, [0.0, 0.0], [0, 0], 5.7344e16),
    (torch.float8_e5m2fnuz, [0.0, -0.0], [0, 0], 5.7344e16),
]


@pytest.mark.parametrize(("dtype", "x", "codes", "scale"), KNOWN)
def test_known_answers(dtype: torch.dtype, x: list[float], codes: list[int], scale: float) -> None:
    got_codes, got_scale = reference.quantize_rowwise(torch.tensor([x]), dtype=dtype)
    assert got_scale.item() == np.float32(scale)
    assert got_codes.view(torch.uint8).tolist() == [codes]


@pytest.mark.parametrize(
    ("dtype", "amax", "scale"),
    [
        (torch.float8_e4m3fn, 7.0000005, 32.0),  # the exact scale is 63.999996; by exp2(floor(log2)) 64
        (torch.float8_e4m3fn, 7.0, 64.0),  # exactly a power: it stays
        (torch.float8_e4m3fn, 0.0, 2.0**48),
        (torch.float8_e4m3fnuz, 0.0, 2.0**47),
        (torch.float8_e5m2, 0.0, 2.0**55),
        (torch.float8_e5m2fnuz, 0.0, 2.0**55),
    ],
)
def test_known_powers_of_two(dtype: torch.dtype, amax: float, scale: float) -> None:
    _, got = reference.quantize_rowwise(torch.tensor([[amax]]), dtype=dtype, power_of_two=True)
    assert got.item() == scale


# ---------------------------------------------------------------------------------------------------
# Slices where the contract says they are: each entry against single slices cut out by index


def slices_of(q: Quantizer, arguments: tuple[torch.Tensor, ...]) -> list[list[tuple[tuple[object, ...], ...]]]:
    """For each pair of results, every slice as (index of input, index of its codes, index of its scale)."""
    if q.kind == "weight":
        experts, inner, outer = arguments[0].shape
        over_inner = [
            ((e, slice(None), n), (e, slice(None), n), (e, 0, n)) for e in range(experts) for n in range(outer)
        ]
        over_outer = [((e, k, slice(None)), (e, slice(None), k), (e, k)) for e in range(experts) for k in range(inner)]
        both = {"colwise_3d": [over_inner], "colwise_transpose_3d": [over_inner, over_outer]}
        return both.get(q.name, [over_outer])  # type: ignore[return-value]

    rows, width = arguments[0].shape
    by_row = [((m,), (m,), (m, 0)) for m in range(rows)]
    if q.kind == "matrix":
        return [by_row]  # type: ignore[list-item]
    borders = list(pairwise([0, *arguments[-1].tolist()]))
    if q.kind == "grouped-transposed":
        return [
            [
                ((p, slice(*border)), (p, slice(*border)), (group * rows + p,))
                for group, border in enumerate(borders)
                for p in range(rows)
            ]
        ]

    def by_column(columns: int) -> list[tuple[tuple[object, ...], ...]]:
        return [
            ((slice(*border), k), (slice(*border), k), (group * columns + k,))
            for group, border in enumerate(borders)
            for k in range(columns)
        ]

    if q.kind == "dual":
        return [by_column(arguments[0].shape[1]), by_column(arguments[1].shape[1])]
    return [by_row, by_column(width)] if q.name.startswith("rowwise_") else [by_column(width)]  # type: ignore[list-item]


def true_strides(q: Quantizer, arguments: tuple[torch.Tensor, ...]) -> Sequence[tuple[int, ...]]:
    """Strides of the codes, from the table of the contract."""
    if q.kind == "weight":
        _, inner, outer = arguments[0].shape
        colwise, transposed = (inner * outer, 1, inner), (inner * outer, 1, outer)
        return {"colwise_3d": [colwise], "colwise_transpose_3d": [colwise, transposed]}.get(q.name, [transposed])
    rows, width = arguments[0].shape
    return {
        "matrix": [(width, 1)],
        "grouped-transposed": [(width, 1)],
        "dual": [(1, rows), (1, rows)],
        "grouped": [(width, 1), (1, rows)] if q.name.startswith("rowwise_") else [(1, rows)],
    }[q.kind]


SHORT_SPLITS = [split for split in splits() if split.rows < 200]
SLICED = [  # a weight has no tokens: its empty dimensions are below
    pytest.param(q, split, id=f"{q.name}-{split}")
    for q in ALL
    for split in SHORT_SPLITS
    if split.rows or q.kind != "weight"
]


@pytest.mark.parametrize("power_of_two", [False, True], ids=["exact", "power-of-two"])
@pytest.mark.parametrize(("q", "split"), SLICED)
def test_every_entry_is_made_of_slices(q: Quantizer, split: Split, power_of_two: bool) -> None:
    arguments = q.arguments(split, 7, "cpu")
    format_ = FORMATS[torch.float8_e4m3fn]
    results = q.reference(*arguments, dtype=format_.dtype, power_of_two=power_of_two)
    pairs = list(zip(results[::2], results[1::2], strict=True))
    inputs = arguments[:2] if q.kind == "dual" else arguments[:1] * len(pairs)
    for x, (codes, scales), slices in zip(inputs, pairs, slices_of(q, arguments), strict=True):
        covered = torch.zeros(codes.shape, dtype=torch.bool)
        for at_input, at_codes, at_scale in slices:
            assert_slice(x[at_input], codes[at_codes], scales[at_scale], format_, power_of_two)  # type: ignore[index]
            covered[at_codes] = True  # type: ignore[index]
        assert len(slices) == scales.numel()
        assert (codes.view(torch.uint8)[~covered] == 0).all()  # rows past the last group


@pytest.mark.parametrize("q", ALL, ids=name)
def test_strides_are_those_of_the_contract(q: Quantizer) -> None:
    arguments = q.arguments(Split("", (5, 0, 8)), 7, "cpu")
    results = q.reference(*arguments)
    assert [codes.stride() for codes in results[::2]] == true_strides(q, arguments)
    assert all(scales.is_contiguous() and scales.dtype == torch.float32 for scales in results[1::2])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("q", ALL, ids=name)
def test_layout_of_the_input_does_not_show(q: Quantizer, layout: str) -> None:
    plain = q.arguments(Split("", (5, 0, 8)), 7, "cpu")
    moved = tuple(LAYOUTS[layout](x) if x.is_floating_point() else x for x in plain)
    assert_bit_equal(q.reference(*moved), q.reference(*plain), layout)


@pytest.mark.parametrize("layout", SHARING_LAYOUTS)
@pytest.mark.parametrize("q", ALL, ids=name)
def test_elements_that_share_memory_are_read_as_they_stand(q: Quantizer, layout: str) -> None:
    arguments = q.arguments(Split("", (5, 0, 8)), 7, "cpu", layout=SHARING_LAYOUTS[layout])
    copies = tuple(x.clone(memory_format=torch.contiguous_format) for x in arguments)
    assert_bit_equal(q.reference(*arguments), q.reference(*copies), layout)


# ---------------------------------------------------------------------------------------------------
# Nothing to reduce, and what is refused


def test_empty_dimensions_have_scales_of_zeros() -> None:
    empty, none = torch.empty(0, 32), torch.zeros(3, dtype=torch.int32)
    zero_scale = np.float32(4.48e14)
    codes, scales = reference.quantize_rowwise(empty)
    assert codes.shape == (0, 32)
    assert scales.shape == (0, 1)
    codes, scales = reference.quantize_rowwise(empty.t())
    assert codes.shape == (32, 0)
    assert scales.tolist() == [[zero_scale]] * 32
    codes, scales = reference.quantize_colwise_per_group(empty, none)
    assert codes.shape == (0, 32)
    assert scales.tolist() == [zero_scale] * 96
    codes, scales = reference.quantize_rowwise_per_group(empty.t(), none)
    assert codes.shape == (32, 0)
    assert scales.tolist() == [zero_scale] * 96
    codes, scales = reference.quantize_colwise_3d(torch.empty(2, 0, 5))
    assert codes.shape == (2, 0, 5)
    assert scales.tolist() == [[[zero_scale] * 5]] * 2
    codes, scales = reference.quantize_transpose_3d_reduction(torch.empty(2, 5, 0))
    assert codes.shape == (2, 0, 5)
    assert scales.tolist() == [[zero_scale] * 5] * 2


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        ([3, 2], r"offs: decreases to 2 at group 1, after 3"),
        ([-1, 4], r"offs: decreases to -1 at group 0, after 0"),
        ([4, 9], r"offs: ends at 9; may end at 8 at most"),
    ],
)
def test_offs_that_only_the_host_can_see_wrong(ends: list[int], message: str) -> None:
    x, offs = torch.zeros(8, 8), torch.tensor(ends, dtype=torch.int32)
    for quantize in (
        reference.quantize_colwise_per_group,
        reference.quantize_rowwise_per_group,
        reference.quantize_rowwise_colwise_per_group,
    ):
        with pytest.raises(ValueError, match=message):
            quantize(x, offs)
    with pytest.raises(ValueError, match=message):
        reference.quantize_colwise_per_group_dual(x, x, offs)
