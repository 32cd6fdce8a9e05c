"""padded_index_gather, scatter_for_grouped_gemm and indexed_bias_add: where rows go, and how gradients come back."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest
import torch

from kernels.fp8.shapes import Split, splits
from kernels.operators import indexed_bias_add, padded_index_gather, reference, scatter_for_grouped_gemm
from tests.kernels.operators import DTYPES, gradients, unchecked_indices
from tests.kernels.paths import GPU, KernelPath

# ---------------------------------------------------------------------------------------------------
# padded_index_gather


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17])
def test_gather_is_bit_equal_and_padded(count: int, kernel_path: KernelPath) -> None:
    """NaN payloads included; the memory is a multiple of `pad_to` rows, of which the result shows its own alone."""
    bits = torch.randint(-(2**15), 2**15, (9, 20), dtype=torch.int16)
    x = bits.view(torch.bfloat16).to(kernel_path.device)
    index = torch.randint(9, (count,)).to(x.device)
    out = padded_index_gather(x, index, 16)
    assert torch.equal(out.view(torch.int16), x[index].view(torch.int16))
    assert (out.shape, out.stride()) == ((count, 20), (20, 1))
    if count:
        assert out.untyped_storage().nbytes() == -(-count // 16) * 16 * 20 * 2


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gather_gradient_is_summed_in_fp32(dtype: torch.dtype, kernel_path: KernelPath) -> None:
    """A row that is asked for 200 times; in 16 bits a running sum would stop growing. A row nobody asked for: 0."""
    x = torch.zeros(3, 7, dtype=dtype, device=kernel_path.device, requires_grad=True)
    index = torch.tensor([0] * 150 + [2] + [0] * 50, device=x.device)
    upstream = torch.rand(201, 7).add(0.5).to(x)
    _, gradient = gradients(padded_index_gather, (x, index), upstream)
    expected = torch.stack([upstream.double()[index == row].sum(0) for row in range(3)])
    torch.testing.assert_close(gradient.double(), expected, rtol=max(torch.finfo(dtype).eps, 1e-6), atol=0)
    assert not gradient[1].any()


def test_gather_lets_go_of_x(kernel_path: KernelPath) -> None:
    """x may be freed before backward: what it held then does not matter."""
    leaf = torch.randn(5, 6, device=kernel_path.device, requires_grad=True)
    index = torch.tensor([4, 0, 4], device=leaf.device)
    x = leaf * 1.0
    out = padded_index_gather(x, index)
    with torch.no_grad():
        x.untyped_storage().resize_(0)
    out.sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.sum(1).tolist() == [6, 0, 0, 0, 12]


@pytest.mark.parametrize("bad", [-1, 5, 2**40])
def test_gather_of_a_bad_index(bad: int, kernel_path: KernelPath) -> None:
    """An error on a CPU; where the host does not read it a row of NaN, which gives no gradient."""
    x = torch.randn(5, 6, device=kernel_path.device, requires_grad=True)
    index = torch.tensor([1, bad, 3], device=x.device)
    if GPU is None:
        with pytest.raises(ValueError, match=f"^index: is {bad} at position 1; may be 0 to 4$"):
            padded_index_gather(x, index)
    with unchecked_indices():
        out, gradient = gradients(padded_index_gather, (x, index), torch.ones(3, 6, device=x.device))
    assert out[1].isnan().all()
    assert torch.equal(out[[0, 2]], x.detach()[[1, 3]])
    assert gradient.sum(1).tolist() == [0, 6, 0, 6, 0]


# ---------------------------------------------------------------------------------------------------
# scatter_for_grouped_gemm

EXPERTS = {
    "random": torch.tensor([2, 0, 4, 2, 2, 0, 1, 4, 4, 4, 4]),
    "one-expert": torch.full((11,), 3),
    "first": torch.zeros(11, dtype=torch.int64),
    "last": torch.full((11,), 4),
    "one-row": torch.tensor([2]),
    "no-rows": torch.tensor([], dtype=torch.int64),
    "exact": torch.tensor([1] * 4 + [3] * 8),
    "descending": torch.arange(5).flip(0).repeat_interleave(3),
}


@pytest.mark.parametrize("options", [(1, 1, True), (4, 1, True), (4, 16, True), (4, 1, False), (3, 7, False)], ids=str)
@pytest.mark.parametrize("experts", EXPERTS)
def test_scatter_against_its_reference(experts: str, options: tuple[int, int, bool], kernel_path: KernelPath) -> None:
    """Places, counts and zeros; rows keep their order; gradients come back bit for bit."""
    expert = EXPERTS[experts].to(kernel_path.device)
    x = torch.randn(len(expert), 10, device=kernel_path.device, requires_grad=True)
    got = scatter_for_grouped_gemm(x, expert, 5, *options)
    expected = reference.scatter_for_grouped_gemm(x, expert, 5, *options)
    assert got.ks == expected.ks
    for one, other in ((got.rev, expected.rev), (got.offs, expected.offs), (got.ks_tensor, expected.ks_tensor)):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    assert torch.equal(got.out, expected.out)
    upstream = torch.randn_like(expected.out)
    assert torch.equal(*(torch.autograd.grad(one.out, x, upstream)[0] for one in (got, expected)))


def test_scatter_is_bit_equal_and_reads_counts_only_if_asked(kernel_path: KernelPath) -> None:
    bits = torch.randint(-(2**15), 2**15, (11, 6), dtype=torch.int16, device=kernel_path.device)
    expert = EXPERTS["random"].to(kernel_path.device)
    out, rev, offs, ks, ks_tensor = scatter_for_grouped_gemm(bits.view(torch.bfloat16), expert, 5, 8, 1, False)
    assert torch.equal(out.view(torch.int16)[rev], bits)
    assert out.shape[0] == 11 + 5 * 7
    assert ks is None
    assert ks_tensor.tolist() == [8, 8, 8, 0, 8]
    assert offs.tolist() == [8, 16, 24, 24, 32]
    assert not out[offs[-1] :].any()


@pytest.mark.parametrize("bad", [-1, 5])
def test_scatter_of_a_bad_expert(bad: int, kernel_path: KernelPath) -> None:
    """An error on a CPU; where the host does not read it the row goes nowhere, and the others to their places."""
    x = torch.randn(4, 6, device=kernel_path.device, requires_grad=True)
    expert = torch.tensor([0, bad, 4, 0], device=x.device)
    if GPU is None:
        with pytest.raises(ValueError, match=f"^expert: is {bad} at position 1; may be 0 to 4$"):
            scatter_for_grouped_gemm(x, expert, 5)
    with unchecked_indices():
        got = scatter_for_grouped_gemm(x, expert, 5, 2)
        (gradient,) = torch.autograd.grad(got.out.sum(), x)
    assert got.rev.tolist() == [0, -1, 2, 1]
    assert got.ks == [2, 0, 0, 0, 2]
    assert torch.equal(got.out[:3], x.detach()[[0, 3, 2]])
    assert gradient.sum(1).tolist() == [6, 0, 6, 6]


def test_scatter_from_two_threads(compiled_path: KernelPath) -> None:
    """Calls with other sizes at the same time do not meet."""

    def call(seed: int) -> bool:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(40 + seed, 8, generator=generator).to(compiled_path.device)
        expert = torch.randint(5, (40 + seed,), generator=generator).to(compiled_path.device)
        got = scatter_for_grouped_gemm(x, expert, 5, 4 + seed % 3)
        return torch.equal(got.out[got.rev], x) and got.ks_tensor.tolist() == got.ks

    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(call, range(60)))


# ---------------------------------------------------------------------------------------------------
# indexed_bias_add


def grouped(split: Split, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """group_ids (M,) and offs (E,); rows of no group have an id past the last."""
    offs = split.offs(device)
    return torch.searchsorted(offs, torch.arange(split.rows, device=device), right=True), offs


@pytest.mark.parametrize("split", splits(block=16, hot_rows=256), ids=str)
def test_bias_over_splits(split: Split, kernel_path: KernelPath) -> None:
    """Empty, skewed and odd groups; rows of no group hold NaN gradients, which reach no bias."""
    ids, offs = grouped(split, kernel_path.device)
    x = torch.randn(split.rows, 17, device=kernel_path.device, requires_grad=True)
    bias = torch.randn(split.groups, 17, device=kernel_path.device, requires_grad=True)
    upstream = torch.randn_like(x).detach()
    expected = gradients(reference.indexed_bias_add, (x, bias, ids, offs), upstream)
    upstream[sum(split.sizes) :] = torch.nan
    out, dx, dbias = gradients(indexed_bias_add, (x, bias, ids, offs), upstream)
    assert torch.equal(out, expected[0])
    assert torch.equal(dx.nan_to_num(7.0), upstream.nan_to_num(7.0))
    torch.testing.assert_close(dbias, expected[2], rtol=1e-5, atol=1e-5)
    empty = [group for group, size in enumerate(split.sizes) if size == 0]
    assert not dbias[empty].any()


def test_bias_gradient_against_eager_bf16(kernel_path: KernelPath) -> None:
    """The largest error is under a fifth of that of eager indexing, which adds in bf16."""
    ids, offs = grouped(Split("", (150, 10, 340)), kernel_path.device)
    x = torch.randn(500, 33, dtype=torch.bfloat16, device=kernel_path.device, requires_grad=True)
    bias = torch.randn(3, 33, dtype=torch.bfloat16, device=kernel_path.device, requires_grad=True)
    upstream = torch.randn(500, 33).add(0.5).to(x)
    borders = [0, *offs.tolist()]
    truth = torch.stack([upstream[a:b].double().sum(0) for a, b in pairwise(borders)])

    def by_rows(x: torch.Tensor, bias: torch.Tensor, ids: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
        return x + torch.stack([bias[row] for row in ids.tolist()])

    ours, theirs = (
        (gradients(function, (x, bias, ids, offs), upstream)[2].double() - truth).abs().max().item()
        for function in (indexed_bias_add, by_rows)
    )
    assert ours < theirs / 5


@pytest.mark.parametrize("integer", [torch.int32, torch.int64])
def test_bias_ids_and_offs_are_clamped(integer: torch.dtype, kernel_path: KernelPath) -> None:
    x = torch.zeros(4, 3, device=kernel_path.device, requires_grad=True)
    bias = torch.arange(6.0, device=kernel_path.device).view(2, 3).requires_grad_()
    ids = torch.tensor([-7, 0, 9, 2**31 - 1], device=kernel_path.device).to(integer)
    offs = torch.tensor([1, 1000], device=kernel_path.device).to(integer)
    out, _, dbias = gradients(indexed_bias_add, (x, bias, ids, offs), torch.ones(4, 3, device=kernel_path.device))
    assert torch.equal(out, bias.detach()[[0, 0, 1, 1]])
    assert dbias.tolist() == [[1] * 3, [3] * 3]


def test_bias_of_another_dtype(kernel_path: KernelPath) -> None:
    """fp32 biases on bf16 rows: added in fp32, the gradient stays fp32."""
    ids, offs = grouped(Split("", (4, 0, 5)), kernel_path.device)
    x = torch.randn(9, 5, dtype=torch.bfloat16, device=kernel_path.device, requires_grad=True)
    bias = torch.randn(3, 5, device=kernel_path.device, requires_grad=True)
    arguments = (x, bias, ids, offs)
    got, expected = (gradients(one, arguments) for one in (indexed_bias_add, reference.indexed_bias_add))
    for one, other in zip(got, expected, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(("rows", "experts"), [(0, 3), (4, 0), (0, 0)])
def test_bias_of_nothing(rows: int, experts: int, kernel_path: KernelPath) -> None:
    x = torch.randn(rows, 5, device=kernel_path.device, requires_grad=True)
    bias = torch.randn(experts, 5, device=kernel_path.device, requires_grad=True)
    ids = torch.zeros(rows, dtype=torch.int64, device=x.device)
    offs = torch.zeros(experts, dtype=torch.int32, device=x.device)
    out, dx, dbias = gradients(indexed_bias_add, (x, bias, ids, offs))
    assert torch.equal(out, x.detach())
    assert dx.shape == x.shape
    assert dbias.shape == (experts, 5)
    assert not dbias.any()


# ---------------------------------------------------------------------------------------------------
# Wrong arguments

X, INDEX, OFFS = torch.zeros(4, 8), torch.zeros(4, dtype=torch.int64), torch.tensor([1, 4])


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (padded_index_gather, (X[0], INDEX), "x: has 1 dimensions, shape (8,); may have 2"),
        (padded_index_gather, (X, INDEX.short()), "index: is torch.int16; may be torch.int64, torch.int32"),
        (padded_index_gather, (X, [0]), "index: is a list; may be a tensor of one dimension"),
        (padded_index_gather, (X, INDEX, 0), "pad_to: is 0; may be 1 or more"),
        (scatter_for_grouped_gemm, (X, INDEX[:3], 2), "expert: has 3 elements; may have 4, one for each row of x"),
        (scatter_for_grouped_gemm, (X, INDEX, 0), "G: is 0; may be 1 or more"),
        (scatter_for_grouped_gemm, (X, INDEX, 2, 0), "alignment: is 0; may be 1 or more"),
        (scatter_for_grouped_gemm, (X, INDEX, 2, 1, -1), "row_multiple: is -1; may be 1 or more"),
        (
            scatter_for_grouped_gemm,
            (X, INDEX, 2, 2**30),
            "x: has 4 rows, which with padding may take 2147483650; may take 2147418112",
        ),
        (indexed_bias_add, (X, X[:2, :7], INDEX, OFFS), "bias: has 7 columns; may have 8, as x has"),
        (indexed_bias_add, (X, X[:2], INDEX[:2], OFFS), "group_ids: has 2 elements; may have 4, one for each row of x"),
        (indexed_bias_add, (X, X[:3], INDEX, OFFS), "offs: has 2 elements; may have 3, one for each row of bias"),
        (indexed_bias_add, (X, X[:2], INDEX, OFFS.float()), "offs: is torch.float32; may be torch.int64, torch.int32"),
        (indexed_bias_add, (X, X[:2].to("meta"), INDEX, OFFS), "bias: is on meta; may be on cpu, where x is"),
    ],
)
def test_wrong_arguments_are_named(function: Any, arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        function(*arguments)
