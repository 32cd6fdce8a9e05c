"""Scales of blocks: what the definitions say, from truths in numpy that share nothing with the reference.

Kernels against the reference, bit for bit, are in test_quantize_edges.py with the other quantisers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels import fp8
from kernels.arguments import DTYPES
from kernels.fp8 import reference
from kernels.fp8.formats import FORMATS, Format
from kernels.fp8.inputs import VALUES, column_major
from tests.kernels.paths import KernelPath
from tests.kernels.quantizers import assert_bit_equal
from tests.kernels.test_quantize_reference import true_codes, true_slice

Quantise = Callable[..., tuple[Tensor, Tensor]]
EVERY_FORMAT = pytest.mark.parametrize("format_", FORMATS.values(), ids=str)


@EVERY_FORMAT
@pytest.mark.parametrize("power_of_two", [False, True], ids=["exact", "power-of-two"])
@pytest.mark.parametrize("values", VALUES)
def test_each_block_is_a_slice(values: str, power_of_two: bool, format_: Format) -> None:
    """Cut out by index; scales are the reciprocals of a slice's."""
    x = VALUES[values](3, 300, torch.bfloat16, format_)
    w = VALUES[values](129, 130, torch.bfloat16, format_)
    options = {"dtype": format_.dtype, "power_of_two": power_of_two}
    for of, rows, (codes, scales) in (
        (x, 1, reference.quantize_1x128(x, **options)),  # type: ignore[arg-type]
        (w, 128, reference.quantize_128x128(w, **options)),  # type: ignore[arg-type]
    ):
        for i, j in np.ndindex(*scales.shape):
            block = slice(i * rows, (i + 1) * rows), slice(j * 128, (j + 1) * 128)
            true, scale = true_slice(of[block].flatten(), format_, power_of_two)
            np.testing.assert_array_equal(codes[block].flatten().view(torch.uint8).numpy(), true)
            np.testing.assert_array_equal(scales[i, j].numpy(), np.float32(1) / scale)


def true_mx(x: np.ndarray, format_: Format, round_up: bool) -> tuple[np.ndarray, int]:
    """Codes and e8m0 byte of one block of fp32 values, by logarithms in exact arithmetic (`frexp`) and in float64."""
    if np.isnan(x).any():
        return np.full(x.shape, format_.nan_code, dtype=np.uint8), 255
    amax = np.float64(np.abs(x).max())
    if round_up:
        mantissa, power = np.frexp(np.float64(np.float32(amax) / np.float32(format_.max)))
        wanted = power - 1 if mantissa == 0.5 else power  # the least power of two that is not below
        if amax == 0:
            wanted = -127
    else:
        wanted = int(np.frexp(amax)[1]) - 1 - int(np.log2(format_.max)) if amax else -127
    if np.isinf(amax):
        wanted = 127 if round_up else 128 - int(np.log2(format_.max))
    wanted = max(int(wanted), -127)
    # torchao's and cuBLAS's choice for blocks so small that a scale of 2^-127 serves them.
    power = (0 if round_up else -126) if wanted == -127 else wanted
    return true_codes((x.astype(np.float64) * 2.0**-power).astype(np.float32), format_), wanted + 127


@EVERY_FORMAT
@pytest.mark.parametrize("round_up", [False, True], ids=["floor", "round-up"])
@pytest.mark.parametrize("values", VALUES)
def test_each_block_of_32_has_a_power_of_two(values: str, round_up: bool, format_: Format) -> None:
    for dtype in DTYPES:
        x = VALUES[values](7, 70, dtype, format_)
        codes, scales = reference.quantize_mx(x, dtype=format_.dtype, round_up=round_up)
        assert scales.dtype == torch.float8_e8m0fnu
        assert scales.shape == (7, 3)
        for i, j in np.ndindex(7, 3):
            block = i, slice(j * 32, (j + 1) * 32)
            true, exponent = true_mx(x[block].float().numpy(), format_, round_up)
            assert scales.view(torch.uint8)[i, j] == exponent
            np.testing.assert_array_equal(codes[block].view(torch.uint8).numpy(), true)


KNOWN = [
    # A block's value; e4m3fn's code and the exponent's byte, with floor and rounded up. By hand: 448 = 1.75 * 2^8.
    (448.0, (0x7E, 127), (0x7E, 127)),
    (500.0, (0x7E, 127), (0x78, 128)),  # clamped; 250, to 256
    (1.75, (0x7E, 119), (0x7E, 119)),
    (1.0, (0x78, 119), (0x78, 119)),
    (2.0**-118, (0x78, 1), (0x78, 1)),
    (2.0**-119, (0x70, 0), (0x00, 0)),  # multiplied by 2^126, and by 1
    (0.0, (0x00, 0), (0x00, 0)),
    (float("inf"), (0x7E, 247), (0x7E, 254)),
    (float("nan"), (0x7F, 255), (0x7F, 255)),
]


@pytest.mark.parametrize(("value", "floor", "up"), KNOWN)
def test_known_exponents(value: float, floor: tuple[int, int], up: tuple[int, int], kernel_path: KernelPath) -> None:
    x = torch.full((1, 32), value, device=kernel_path.device)
    for round_up, expected in ((False, floor), (True, up)):
        codes, scales = fp8.quantize_mx(x, dtype=torch.float8_e4m3fn, round_up=round_up)
        assert codes.view(torch.uint8).unique().tolist() == [expected[0]]
        assert scales.view(torch.uint8).tolist() == [[expected[1]]]


def test_a_ratio_just_above_a_power_of_two_is_rounded_up(kernel_path: KernelPath) -> None:
    """Logarithms in fp32 do not tell it from the power: torchao's eager function halves the scale there, and clamps."""
    x = torch.full((1, 32), 448.0 * 2.0**20 * (1 + 2.0**-22), device=kernel_path.device)
    ratio = x[0, 0] / 448
    assert ratio > 2.0**20
    assert torch.log2(ratio) == 20
    assert fp8.quantize_mx(x, dtype=torch.float8_e4m3fn, round_up=True)[1].view(torch.uint8).item() == 127 + 21


@pytest.mark.parametrize("quantise", [fp8.quantize_1x128, fp8.quantize_128x128, fp8.quantize_mx])
def test_experts_are_quantised_each_by_itself(quantise: Quantise, triton_path: KernelPath) -> None:
    w = torch.randn(3, 140, 50, dtype=torch.bfloat16, device=triton_path.device).mT
    codes, scales = quantise(w)
    for expert in range(3):
        assert_bit_equal((codes[expert], scales[expert]), quantise(w[expert]))


def test_scales_of_activations_lie_as_matrix_units_read_them(kernel_path: KernelPath) -> None:
    """Rows side by side: `torch._scaled_mm` and DeepGEMM refuse others."""
    x = torch.randn(20, 300, device=kernel_path.device)
    assert fp8.quantize_1x128(x)[1].stride() == (1, 20)
    assert fp8.quantize_128x128(x)[1].stride() == (3, 1)
    assert fp8.quantize_mx(x)[1].stride() == (10, 1)
    assert all(codes.is_contiguous() for codes, _ in (fp8.quantize_1x128(x.mT), fp8.quantize_mx(column_major(x))))


def test_values_are_codes_times_scales(kernel_path: KernelPath) -> None:
    """Within half a step of e4m3fn, or of its smallest number below the normals."""
    x = torch.randn(128, 256, device=kernel_path.device)
    for quantise, rows, columns in (
        (fp8.quantize_1x128, 1, 128), (fp8.quantize_128x128, 128, 128), (partial(fp8.quantize_mx, round_up=True), 1, 32)
    ):  # fmt: skip
        codes, scales = quantise(x, dtype=torch.float8_e4m3fn)
        factor = scales.float().repeat_interleave(rows, 0).repeat_interleave(columns, 1)
        error = (codes.float() * factor - x).abs()
        assert (error <= (x.abs() * 2.0**-4).maximum(factor * 2.0**-10) * 1.0001).all()
