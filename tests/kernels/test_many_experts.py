"""256 experts, as DeepSeek V3 has, and 512, most of them without a row: tables of groups are longer than anything."""

from __future__ import annotations

import pytest
import torch

from kernels import block_scaled, fp8, grouped
from kernels.block_scaled import Scaling
from kernels.fp8 import reference, scaled
from kernels.fp8.shapes import Split
from kernels.moe import collect, plan, spread
from kernels.operators import scatter_for_grouped_gemm
from kernels.operators.scatter import reference as scatter_by_group
from tests.kernels.grouped_products import Product, assert_right
from tests.kernels.paths import GPU, KernelPath
from tests.kernels.quantizers import assert_bit_equal

EXPERTS = pytest.mark.parametrize("experts", [256, 512])


def few(experts: int) -> Split:
    """Rows for the first, the last and one in 67 of them, and rows past the last group."""
    sizes = [group % 5 + 1 if group % 67 == 3 or group in (0, experts - 1) else 0 for group in range(experts)]
    return Split("few", tuple(sizes), unused=5)


@pytest.mark.nightly
@pytest.mark.parametrize(("experts", "alignment"), [(256, 16), (512, 16)] if GPU else [(256, 16)])
def test_quantisers_by_group(experts: int, alignment: int | None, triton_path: KernelPath) -> None:
    """Programs for each group make this slow to interpret."""
    split = few(experts)
    x, offs = torch.randn(split.rows, 16).to(triton_path.device, torch.bfloat16), split.offs(triton_path.device)
    got = fp8.quantize_colwise_per_group(x, offs, alignment=alignment, candidate=None if GPU else 1)
    assert_bit_equal(got, reference.quantize_colwise_per_group(x, offs, alignment=alignment))


@EXPERTS
@pytest.mark.parametrize("form", ["rows", "groups"])
def test_grouped_mm(experts: int, form: str, triton_path: KernelPath) -> None:
    product = Product.draw(form, few(experts), 16, 8, triton_path.device)
    assert_right(product, grouped.grouped_mm, f"{experts} experts", impl="triton")


@EXPERTS
def test_fp8_products(experts: int, triton_path: KernelPath) -> None:
    """Both forms, of codes that the reference made."""
    split, device = few(experts), triton_path.device
    a, w = torch.randn(split.rows, 16), torch.randn(experts, 16, 16)
    offs = split.offs("cpu")
    a_codes, a_scales = reference.quantize_rowwise(a, power_of_two=True)
    w_codes, w_scales = reference.quantize_colwise_3d(w, power_of_two=True)
    rows = a_codes, 1 / a_scales, w_codes, 1 / w_scales.squeeze(1), offs
    columns, column_scales, ends = reference.quantize_colwise_per_group(a, offs, power_of_two=True, alignment=16)
    groups = columns.t(), 1 / column_scales, columns, 1 / column_scales, ends
    for multiply, operands in ((scaled.matmul_2d3d, rows), (scaled.matmul_2d2d, groups)):
        operands = tuple(operand.to(device) for operand in operands)
        got, expected = (multiply(*operands, False, backend) for backend in ("triton", "emulation"))
        torch.testing.assert_close(got, expected, rtol=2**-7, atol=1e-3)


@pytest.mark.parametrize("experts", [256, pytest.param(512, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("scaling", ["1x128", "mx"])
def test_block_scaled_mm(experts: int, scaling: Scaling, triton_path: KernelPath) -> None:
    """Forward and both gradients, with codes along both axes."""
    split, device = few(experts), triton_path.device
    a, w, grad = torch.randn(split.rows, 16), torch.randn(experts, 16, 16), torch.randn(split.rows, 16)
    offs = split.offs(device)
    found = []
    for multiply in (block_scaled.grouped_mm, block_scaled.reference.grouped_mm):
        leaves = [each.to(device).detach().requires_grad_() for each in (a, w)]
        out = multiply(leaves[0], leaves[1].mT, offs, scaling=scaling)
        found.append((out, *torch.autograd.grad(out, leaves, grad.to(out))))
    for got, expected in zip(*found, strict=True):
        torch.testing.assert_close(got, expected, rtol=2**-7, atol=1e-3)


@EXPERTS
def test_dispatch(experts: int, kernel_path: KernelPath) -> None:
    """Of eight experts a token: rows lie by expert, and come back as the sum of what each expert made of them."""
    chosen = torch.rand(24, experts).argsort(dim=1)[:, :8].contiguous().to(kernel_path.device)
    chosen[:, 0] = experts - 1
    x, weights = torch.randn(24, 16, device=chosen.device), torch.rand(24, 8, device=chosen.device)
    made = plan(chosen, experts)
    assert torch.equal(made.counts, chosen.flatten().bincount(minlength=experts))
    rows = spread(x, None, made)
    assert torch.equal(rows, x[made.token])
    scaled = rows * made.expert[:, None]
    expected = (x[:, None] * chosen[..., None] * weights[..., None]).sum(dim=1)
    torch.testing.assert_close(collect(scaled, weights, made), expected)


@pytest.mark.parametrize("experts", [256, 511, 512])  # 511 are the most that are counted; more are sorted
def test_scatter(experts: int, kernel_path: KernelPath) -> None:
    expert = torch.randint(experts, (70,)).to(kernel_path.device)
    expert[:9] = experts - 1
    x = torch.randn(70, 8).to(kernel_path.device, torch.bfloat16)
    got, expected = (scatter(x, expert, experts, 16) for scatter in (scatter_for_grouped_gemm, scatter_by_group))
    assert torch.equal(got.out, expected.out)
    assert torch.equal(got.rev, expected.rev)
    assert torch.equal(got.offs, expected.offs)
    assert got.ks == expected.ks
