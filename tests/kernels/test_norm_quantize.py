"""RMSNorm that writes fp8 codes: beside the norm and the quantiser of its result, one after the other."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from kernels import fp8, operators
from kernels.fp8.formats import FORMATS, Format
from kernels.operators import reference
from tests.kernels.guards import guarded_allocations, no_device_waits, no_host_reads
from tests.kernels.operators import DTYPES, gradients
from tests.kernels.paths import KernelPath, every_candidate, every_second
from tests.kernels.quantizers import assert_bit_equal

QUANTISERS = {"rowwise": fp8.quantize_rowwise, "1x128": fp8.quantize_1x128}
SCALINGS = pytest.mark.parametrize("scaling", QUANTISERS)


def drawn(
    path: KernelPath, rows: int = 13, width: int = 300, dtype: torch.dtype = torch.bfloat16
) -> tuple[Tensor, Tensor]:
    """x, and a weight in fp32, whatever x is."""
    x = (torch.randn(rows, width) * 3).to(path.device, dtype)
    return x.requires_grad_(), torch.randn(width, device=path.device).requires_grad_()


def assert_norm_and_codes(found: operators.Normed, x: Tensor, scaling: str, *given: Any, **how: Any) -> None:
    """The norm to the order of a sum, and the very codes of what is returned."""
    offset = how.pop("offset", 0.0)
    assert found.out is not None
    torch.testing.assert_close(found.out, operators.rms_norm(x, *given, offset=offset), equal_nan=True)
    assert_bit_equal(found[1:], QUANTISERS[scaling](found.out.detach(), **how), scaling)


@pytest.mark.parametrize(("dtype", "offset"), list(zip(DTYPES, (0.0, 1.0, -0.5), strict=True)), ids=str)
@pytest.mark.parametrize("width", [1, 2, 47, 127, 128, 129, 1000, 1408, 4097])
@SCALINGS
def test_codes_are_those_of_the_norm(
    scaling: str, width: int, dtype: torch.dtype, offset: float, kernel_path: KernelPath
) -> None:
    x, weight = drawn(kernel_path, 13 if width < 1000 else 3, width, dtype)
    found = operators.rms_norm_quantize(x, weight, 1e-5, offset=offset, scaling=scaling)
    assert_norm_and_codes(found, x, scaling, weight, 1e-5, offset=offset)
    assert not found.codes.requires_grad
    assert not found.scales.requires_grad


@pytest.mark.parametrize("format_", FORMATS.values(), ids=str)
@pytest.mark.parametrize("power_of_two", [False, True], ids=["exact", "power-of-two"])
@SCALINGS
def test_every_format(scaling: str, power_of_two: bool, format_: Format, kernel_path: KernelPath) -> None:
    x, _ = drawn(kernel_path)
    how = {"dtype": format_.dtype, "power_of_two": power_of_two}
    found = operators.rms_norm_quantize(x, scaling=scaling, **how)
    assert_norm_and_codes(found, x, scaling, **how)
    assert found.codes.dtype == format_.dtype


@SCALINGS
def test_the_gradient_is_that_of_the_norm(scaling: str, kernel_path: KernelPath) -> None:
    """Which test_norms.py holds beside float64."""
    x, weight = drawn(kernel_path, 37)
    found, expected = (
        gradients(f, (x, weight))
        for f in (
            partial(operators.rms_norm_quantize, offset=1, scaling=scaling),
            partial(operators.rms_norm, offset=1),
        )
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, which multiplies in the interpreter
@SCALINGS
def test_what_is_not_finite_spoils_its_own_slice(scaling: str, kernel_path: KernelPath) -> None:
    """A NaN or an infinity in a row, a weight that takes bf16 to infinity, and a row of zeros."""
    x = torch.randn(6, 300, device=kernel_path.device).bfloat16()
    x[1, 3], x[2, 140], x[4] = torch.nan, torch.inf, 0
    weight = torch.ones(300, device=x.device)
    clean = operators.rms_norm_quantize(x, weight, scaling=scaling)
    assert_norm_and_codes(clean, x, scaling, weight)
    assert clean.scales[1].isnan().all()
    assert clean.scales[[0, 3, 4, 5]].isfinite().all()
    weight[200] = 3e38
    found = operators.rms_norm_quantize(x[[0, 3]] * 8, weight, scaling=scaling)
    assert_norm_and_codes(found, x[[0, 3]] * 8, scaling, weight)


@SCALINGS
def test_codes_alone_have_no_gradient(scaling: str, kernel_path: KernelPath) -> None:
    x, weight = drawn(kernel_path)
    with_output = operators.rms_norm_quantize(x, weight, scaling=scaling)
    without = operators.rms_norm_quantize(x, weight, scaling=scaling, keep_output=False)
    assert without.out is None
    assert_bit_equal(without[1:], with_output[1:])
    assert not without.codes.requires_grad


@SCALINGS
def test_any_strides_and_every_candidate(scaling: str, triton_path: KernelPath) -> None:
    """The norm's sum may have another order in another candidate; the codes are those of what it returns."""
    x, weight = drawn(triton_path, width=5000, rows=3)
    wide = x.detach().t().contiguous().t()
    for each in (wide, every_second(x.detach())):
        for number, found in every_candidate(
            lambda number, each=each: operators.rms_norm_quantize(each, weight, scaling=scaling, candidate=number)  # type: ignore[misc]
        ):
            assert_norm_and_codes(found, each, scaling, weight)
            assert number < 4


@SCALINGS
def test_nothing_is_written_beside_or_read_on_the_host(scaling: str, kernel_path: KernelPath) -> None:
    x, weight = drawn(kernel_path, 7, 131)
    with guarded_allocations(), no_host_reads(), no_device_waits():
        found = operators.rms_norm_quantize(x, weight, scaling=scaling)
    assert_norm_and_codes(found, x, scaling, weight)


@pytest.mark.parametrize("shape", [(0, 8), (3, 0)])
@SCALINGS
def test_nothing_gives_nothing(scaling: str, shape: tuple[int, int], kernel_path: KernelPath) -> None:
    x = torch.zeros(shape, device=kernel_path.device).requires_grad_()
    found = operators.rms_norm_quantize(x, scaling=scaling)
    assert found.out is not None
    assert found.out.shape == found.codes.shape == shape
    assert found.scales.shape == QUANTISERS[scaling](x.detach())[1].shape
    found.out.sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize("keep_output", [True, False], ids=["both", "codes"])
@SCALINGS
def test_is_registered(scaling: str, keep_output: bool, compiled_path: KernelPath) -> None:
    x, weight = drawn(compiled_path, 6, 140)
    block = None if scaling == "rowwise" else 128
    raw = torch.ops.perfguard_kernels.rms_norm_quantize.default
    fixed = x.detach(), weight.detach()
    how = 1e-5, 0.5, block, torch.float8_e4m3fn, True, keep_output, None
    torch.library.opcheck(raw, (*fixed, *how))
    if keep_output:  # the check of what is traced adds all results up, of which torch has no sum in fp8
        checks = "test_schema", "test_autograd_registration", "test_faketensor"
        torch.library.opcheck(raw, (x, weight, *how), test_utils=checks)
    norm = partial(operators.rms_norm_quantize, scaling=scaling, keep_output=keep_output)
    real = norm(x, weight)
    with FakeTensorMode() as mode:
        fake = norm(*map(mode.from_tensor, fixed))
    for one, other in zip(fake, real, strict=True):
        assert (one is None) == (other is None)
        assert one is None or (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)
    compiled = torch.compile(norm, fullgraph=True, backend="aot_eager")
    assert_bit_equal(compiled(x, weight)[1:], real[1:])
    if keep_output:
        for one, other in zip(gradients(compiled, (x, weight)), gradients(norm, (x, weight)), strict=True):
            assert torch.equal(one, other)


def test_is_right_beside_the_reference(kernel_path: KernelPath) -> None:
    """To half of a code's distance and a rounding: the reference may round the norm to the other side."""
    x, weight = drawn(kernel_path, 5, 256)
    for scaling in QUANTISERS:
        found, true = (
            f(x, weight, scaling=scaling) for f in (operators.rms_norm_quantize, reference.rms_norm_quantize)
        )
        torch.testing.assert_close(found.scales, true.scales, rtol=1e-2, atol=0)
        steps = found.codes.view(torch.uint8).int() - true.codes.view(torch.uint8).int()
        assert steps.abs().max() <= 1
        assert (steps != 0).float().mean() < 0.02


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"x": torch.zeros(2, 2, 3)}, "x: has 3 dimensions, shape (2, 2, 3); may have 2"),
        ({"x": torch.zeros(2, 3, dtype=torch.float64)}, "x: is torch.float64; may be"),
        ({"weight": torch.zeros(4)}, "weight: has 4 elements; may have 3, one for each column of x"),
        ({"eps": -1.0}, "eps: is -1.0; may be 0 or more"),
        ({"scaling": "mx"}, "scaling: is 'mx'; may be 'rowwise' or '1x128'"),
        ({"dtype": torch.int8}, "dtype: is torch.int8; may be torch.float8_e4m3fn"),
    ],
)
def test_refuses_by_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        operators.rms_norm_quantize(**{"x": torch.zeros(2, 3), "weight": torch.zeros(3), **given})
