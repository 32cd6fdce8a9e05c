"""`kernels.compat.torchao` against torchao 0.18 itself: signatures, results, shapes and strides.

torchao's Triton kernels need a GPU. Elsewhere its eager functions, the references of its own tests, are the rivals.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels import block_scaled, fp8
from kernels.compat import torchao as ours
from kernels.fp8.formats import FORMATS
from kernels.fp8.inputs import VALUES
from tests.kernels.paths import GPU, KernelPath
from tests.kernels.quantizers import E4M3FN, assert_bit_equal

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torchao's own
theirs = pytest.importorskip("torchao.prototype.moe_training", reason="torchao is not installed")

from torchao.float8.config import ScalingGranularity  # noqa: E402
from torchao.float8.float8_utils import tensor_to_scale, to_fp8_saturated  # noqa: E402
from torchao.prototype.blockwise_fp8_training import kernels as blockwise  # noqa: E402
from torchao.prototype.moe_training import fp8_grouped_mm, mxfp8_grouped_mm, utils  # noqa: E402
from torchao.prototype.moe_training.ep.kernels import generate_permute_indices  # noqa: E402
from torchao.prototype.moe_training.kernels import float8_rowwise, jagged_float8_scales  # noqa: E402
from torchao.prototype.moe_training.kernels.mxfp8 import quant as mxfp8  # noqa: E402
from torchao.prototype.mx_formats.config import ScaleCalculationMode  # noqa: E402
from torchao.prototype.mx_formats.mx_tensor import to_mx  # noqa: E402
from torchao.quantization.quantize_.common import KernelPreference  # noqa: E402

FP8 = torch.float8_e4m3fn
NAMES = {
    "triton_fp8_rowwise_2d_scale_and_cast": float8_rowwise,
    "triton_fp8_colwise_3d_scale_and_cast": float8_rowwise,
    "triton_fp8_rowwise_3d_transpose_rhs": float8_rowwise,
    "triton_fp8_rowwise_3d_transpose_rhs_fused_reduction": float8_rowwise,
    "triton_fp8_per_group_rowwise_scales": jagged_float8_scales,
    "triton_fp8_per_group_colwise_scales": jagged_float8_scales,
    "triton_fp8_per_group_colwise_scales_dual": jagged_float8_scales,
    "_to_fp8_rowwise_then_scaled_grouped_mm": fp8_grouped_mm,
}


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_torchao_s(name: str) -> None:
    def parameters(function: Any) -> list[tuple[str, Any]]:
        signature = inspect.signature(getattr(function, "_init_fn", function))  # custom operators, on a GPU
        return [(each.name, each.default) for each in signature.parameters.values()]

    function = getattr(NAMES[name], name)
    assert parameters(getattr(ours, name)) == parameters(function)


# torchao 0.18 gives this kernel an output of strides (K, 1), and the kernel writes row r, column c at r + c.
BROKEN = "triton_fp8_per_group_rowwise_scales"


@pytest.fixture(autouse=True)
def one_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchao tunes by some dozens of configurations, minutes for each kernel."""
    for module in (float8_rowwise, jagged_float8_scales):
        for each in vars(module).values():
            if hasattr(each, "configs"):
                monkeypatch.setattr(each, "configs", each.configs[:1])
    if hasattr(jagged_float8_scales, "kernel_configs_fused"):
        by_size = {each.kwargs["MAX_GROUP_SIZE"]: each for each in jagged_float8_scales.kernel_configs_fused}
        monkeypatch.setattr(jagged_float8_scales, "kernel_configs_fused", list(by_size.values()))


def axiswise(x: Tensor, dim: int, power_of_two: bool) -> tuple[Tensor, Tensor]:
    scales = tensor_to_scale(
        x,
        FP8,
        scaling_granularity=ScalingGranularity.AXISWISE,
        axiswise_dim=dim,
        round_scales_to_power_of_2=power_of_two,
    )
    return to_fp8_saturated(x.float() * scales, FP8), scales


def eager(name: str) -> Callable[..., tuple[Tensor, ...]]:
    """torchao's eager function for a kernel of this name."""
    if name == "triton_fp8_rowwise_2d_scale_and_cast":
        return lambda x, dtype, two: axiswise(x, -1, two)
    if name == "triton_fp8_colwise_3d_scale_and_cast":
        return lambda w, dtype, two: axiswise(w, -2, two)
    if name == "triton_fp8_per_group_rowwise_scales":
        return utils.torch_to_float8_per_group_rowwise
    if name == "triton_fp8_per_group_colwise_scales":
        return utils.torch_to_float8_per_group_colwise
    if name == "triton_fp8_per_group_colwise_scales_dual":
        one = utils.torch_to_float8_per_group_colwise
        return lambda x, y, offs, dtype, two: (*one(x, offs, dtype, two), *one(y, offs, dtype, two))

    def transposed(w: Tensor, dtype: torch.dtype, power_of_two: bool) -> tuple[Tensor, Tensor]:
        codes, scales = utils.torch_to_3d_rowwise_float8_transpose_rhs(w, dtype, power_of_two)
        return codes, scales.squeeze(1)

    return transposed


def inputs(name: str, device: torch.device) -> tuple[Tensor, ...]:
    draw = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw).bfloat16().to(device)

    if name == "triton_fp8_rowwise_2d_scale_and_cast":
        return (normal(96, 64),)
    if "3d" in name:
        return (normal(3, 48, 64).transpose(1, 2),)  # column-major, as torchao wants it
    if name == "triton_fp8_per_group_rowwise_scales":
        return (normal(32, 96), torch.tensor([32, 48, 96], dtype=torch.int32, device=device))
    offs = torch.tensor([32, 48, 96], dtype=torch.int32, device=device)
    # torchao 0.18 stores scales past a width that its block of 32 or 64 columns does not divide, into those of the next
    # group, and which of the two writes is last is chance.
    first = normal(96, 64).t().contiguous().t()
    return (first, normal(96, 128).t().contiguous().t(), offs) if name.endswith("dual") else (first, offs)


QUANTISERS = [name for name in NAMES if name.startswith("triton")]


@pytest.mark.parametrize("power_of_two", [False, True])
@pytest.mark.parametrize("name", QUANTISERS)
def test_codes_and_scales_are_torchao_s(name: str, power_of_two: bool, compiled_path: KernelPath) -> None:
    given = inputs(name, compiled_path.device)
    found = getattr(ours, name)(*given, FP8, power_of_two)
    rival = getattr(NAMES[name], name) if GPU and name != BROKEN else eager(name)
    wanted = rival(*given, FP8, power_of_two)
    for got, want in zip(found, wanted, strict=True):
        assert got.shape == want.shape
        assert got.dtype == want.dtype
        if got.dtype == FP8:
            steps = (got.view(torch.uint8).int() - want.view(torch.uint8).int()).abs()
            assert steps.max() <= 1
            assert (steps > 0).float().mean() <= 0.001  # a code at a tie, where the scale's last bit differs
        else:
            torch.testing.assert_close(got, want, rtol=0 if power_of_two else 2**-23, atol=0)


@pytest.mark.parametrize("name", QUANTISERS)
def test_strides_are_those_of_torchao_s_kernels(name: str, compiled_path: KernelPath) -> None:
    given = inputs(name, compiled_path.device)
    codes = [each for each in getattr(ours, name)(*given, FP8, True) if each.dtype == FP8]
    for each in codes:
        if "3d" in name:
            rows, columns = each.shape[1:]
            assert each.stride() == (rows * columns, 1, rows)
        elif "colwise" in name:
            assert each.stride() == (1, each.shape[0])
        else:
            assert each.stride() == (each.shape[1], 1)


# ---- block scales and MXFP8 ------------------------------------------------------------------------------------------

# Of all values but NaN and infinities, of which torchao makes other codes.
FINITE = [values for values in VALUES if "nan" not in values and "inf" not in values]
FULL = pytest.mark.parametrize("values", FINITE)
WIDE = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)


@WIDE
@FULL
def test_block_scales_are_torchao_s(values: str, dtype: torch.dtype, compiled_path: KernelPath) -> None:
    x = VALUES[values](256, 384, dtype, E4M3FN).to(compiled_path.device).contiguous()
    assert_bit_equal(fp8.quantize_1x128(x, dtype=FP8), blockwise.torch_blockwise_scale_act_quant_lhs(x, dtype=FP8))
    assert_bit_equal(fp8.quantize_128x128(x, dtype=FP8), blockwise.torch_blockwise_scale_weight_quant(x, dtype=FP8))
    codes, scales = fp8.quantize_1x128(x[:, :128].mT, dtype=FP8)
    columns = blockwise.torch_blockwise_scale_act_quant_rhs(x[:, :128].float().contiguous(), dtype=FP8)
    assert_bit_equal((codes.mT, scales.mT), columns)


@WIDE
@FULL
@pytest.mark.parametrize("code", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_mxfp8_is_torchao_s(values: str, code: torch.dtype, dtype: torch.dtype, compiled_path: KernelPath) -> None:
    """Rounded up too, but for ratios within 2^-20 of a power of two, whose logarithm in fp32 is the power's."""
    x = VALUES[values](64, 96, dtype, FORMATS[code]).to(compiled_path.device)
    for mode in (ScaleCalculationMode.FLOOR, ScaleCalculationMode.RCEIL):
        if mode == ScaleCalculationMode.RCEIL and dtype == torch.float32:
            ratio = (x.unflatten(1, (-1, 32)).abs().amax(-1) / FORMATS[code].max).double()
            near = (ratio.log2() - ratio.log2().round()).abs() < 2.0**-12
            x = x.masked_fill((near & (ratio.log2() != ratio.log2().round())).repeat_interleave(32, 1), 1.0)
        for given in (x, x.mT):
            scales, codes = to_mx(given.contiguous(), code, 32, mode)
            found = fp8.quantize_mx(given, dtype=code, round_up=mode == ScaleCalculationMode.RCEIL)
            assert_bit_equal(found, (codes, scales))


@WIDE
def test_scales_of_each_expert_s_weight_are_torchao_s(dtype: torch.dtype, compiled_path: KernelPath) -> None:
    """(E, N, K): squares of each matrix, and MXFP8 along its rows and along its columns."""
    w = torch.randn(3, 256, 384).mul(torch.exp2(torch.randint(-9, 9, (3, 256, 1)).float()))
    w = w.to(compiled_path.device, dtype)
    for found, matrix in zip(zip(*fp8.quantize_128x128(w, dtype=FP8), strict=True), w, strict=True):
        assert_bit_equal(found, blockwise.torch_blockwise_scale_weight_quant(matrix, dtype=FP8))
    for mode in (ScaleCalculationMode.FLOOR, ScaleCalculationMode.RCEIL):
        how: dict[str, Any] = {"dtype": FP8, "round_up": mode == ScaleCalculationMode.RCEIL}
        assert_bit_equal(fp8.quantize_mx(w, **how), to_mx(w, FP8, 32, mode)[::-1])
        codes, scales = fp8.quantize_mx(w.mT, **how)
        assert_bit_equal((codes.mT, scales.mT.contiguous()), mxfp8._mxfp8_quantize_reference_3d(
            w, block_size=32, scale_block_dim1=32, scale_block_dim2=1, scaling_mode=mode.value,
            blocked_scale_output=False,
        ))  # fmt: skip


# ---- rows of groups: padded, and quantised along the group -----------------------------------------------------------

ENDS = (30, 30, 50, 320)  # an empty group, and one that is longer than two blocks


@pytest.mark.parametrize("alignment", [16, 32, 128])
def test_padded_groups_are_torchao_s(alignment: int, compiled_path: KernelPath) -> None:
    x = torch.randn(ENDS[-1], 24, device=compiled_path.device)
    offs = torch.tensor(ENDS, dtype=torch.int32, device=x.device)
    rows, starts, ends = mxfp8.torch_pad_token_groups(x, offs, alignment)
    padded = block_scaled.permute_and_pad(x, torch.diff(offs, prepend=offs.new_zeros(1)), alignment)
    assert_bit_equal((padded.offs,), (ends,))
    assert_bit_equal((padded.rows[: ends[-1]],), (rows[: ends[-1]],))  # torchao's bound of them is looser
    back = mxfp8.torch_unpad_token_groups(rows, offs, starts, ENDS[-1], alignment)
    assert_bit_equal((block_scaled.unpermute(padded.rows, padded),), (back,))


def test_rows_of_ranks_are_permuted_as_torchao_s(compiled_path: KernelPath) -> None:
    """Of experts that have rows: torchao pads a group of no row to a whole block, here it stays empty."""
    counts = torch.tensor([[3, 0, 40], [1, 5, 0]], device=compiled_path.device)
    padded = block_scaled.permute_and_pad(torch.randn(49, 8, device=counts.device), counts, 16)
    origin, _, ends = generate_permute_indices(counts.flatten().cpu(), 3, 2, len(padded.rows), 16, use_cpu=True)
    assert_bit_equal((padded.origin.cpu(), padded.offs.cpu()), (origin, ends))


@WIDE
@pytest.mark.parametrize("mx", [False, True], ids=["1x128", "mx"])
def test_columns_of_padded_groups_are_torchao_s(mx: bool, dtype: torch.dtype) -> None:
    """What a weight gradient contracts. Every path has the bits of this reference, in test_block_scaled.py."""
    x = torch.randn(ENDS[-1], 128).to(dtype)
    offs = torch.tensor(ENDS, dtype=torch.int32)
    rows, _, ends = mxfp8.torch_pad_token_groups(x, offs, 128)
    codes, scales = (each[:, :end] for each, end in zip(
        block_scaled.reference.quantize_columns(x, offs, mx, False), (ends[-1], ends[-1] // (32 if mx else 128)),
        strict=True,
    ))  # fmt: skip
    if mx:
        wanted = to_mx(rows[: ends[-1]].mT.contiguous(), FP8, 32, ScaleCalculationMode.RCEIL)[::-1]
    else:
        wanted = blockwise.torch_blockwise_scale_act_quant_rhs(rows[: ends[-1]].float().contiguous(), dtype=FP8)
        wanted = tuple(each.mT for each in wanted)
    assert_bit_equal((codes.contiguous(), scales.contiguous()), tuple(each.contiguous() for each in wanted))


def products(device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(4)
    a = torch.randn(96, 64, generator=draw).bfloat16().to(device).requires_grad_()
    w = torch.randn(3, 96, 64, generator=draw).bfloat16().to(device).requires_grad_()
    offs = torch.tensor([32, 48, 96], dtype=torch.int32, device=device)
    return a, w, offs, torch.randn(96, 96, generator=draw).bfloat16().to(device)


def backward(function: Callable[..., Tensor], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    a, w, offs, upstream = products(device)
    out = function(a, w.transpose(1, 2), offs, torch.bfloat16, FP8, False)
    out.backward(upstream)
    assert a.grad is not None
    assert w.grad is not None
    return out.detach(), a.grad, w.grad


@pytest.mark.skipif(not GPU, reason="torchao's grouped matmul needs a GPU")
def test_the_grouped_matmul_and_its_gradients_are_torchao_s() -> None:
    device = torch.device(GPU)
    found = backward(ours._to_fp8_rowwise_then_scaled_grouped_mm, device)
    wanted = backward(fp8_grouped_mm._to_fp8_rowwise_then_scaled_grouped_mm, device)
    for got, want in zip(found, wanted, strict=True):
        assert got.shape == want.shape
        assert got.dtype == want.dtype
        error = (got.double() - want.double()).norm() / want.double().norm()
        assert error < 0.01  # fast accumulation sums in another order


def test_the_mxfp8_grouped_matmul_and_its_gradients_are_torchao_s(compiled_path: KernelPath) -> None:
    """Beside its emulation in bf16, which pads groups to 32 first. Codes are the same: sums differ by their order."""

    def emulated(a: Tensor, b_t: Tensor, offs: Tensor, *_: Any) -> Tensor:
        return mxfp8_grouped_mm._to_mxfp8_then_scaled_grouped_mm(
            a, b_t, offs=offs, kernel_preference=KernelPreference.EMULATED, pad_token_groups_for_grouped_mm=True
        )

    def ours(a: Tensor, b_t: Tensor, offs: Tensor, *_: Any) -> Tensor:
        return block_scaled.grouped_mm(a, b_t, offs, scaling="mx")

    device = compiled_path.device
    for got, want in zip(backward(ours, device), backward(emulated, device), strict=True):
        assert got.shape == want.shape
        assert got.dtype == want.dtype
        assert (got.double() - want.double()).norm() < 2**-9 * want.double().norm()


def test_the_grouped_matmul_is_that_of_this_repository(compiled_path: KernelPath) -> None:
    """Padding is asked for by default, and makes no difference: groups may have any size."""

    def by_default(a: Tensor, b_t: Tensor, offs: Tensor, *_: Any) -> Tensor:
        return ours._to_fp8_rowwise_then_scaled_grouped_mm(a, b_t, offs)

    def direct(a: Tensor, b_t: Tensor, offs: Tensor, *_: Any) -> Tensor:
        return fp8.grouped_mm(a, b_t, offs, dtype=FP8)

    for got, want in zip(
        backward(by_default, compiled_path.device), backward(direct, compiled_path.device), strict=True
    ):
        assert torch.equal(got, want)
