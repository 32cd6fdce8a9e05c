"""Distributed tensors through element-wise and row-wise operators: where results lie, and that they are this rank's
part of the whole. Ranks are pretended, as no rule lets one hear of another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

import kernels.parallel.sharding  # noqa: F401
from kernels import block_scaled, fp8, operators
from tests.kernels.vocabulary import vocab_parallel_cross_entropy

RANKS, RANK = 2, 1


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    dist.init_process_group("fake", store=FakeStore(), rank=RANK, world_size=RANKS)
    try:
        yield init_device_mesh("cpu", (RANKS,))
    finally:
        dist.destroy_process_group()


def own(whole: Tensor, placement: Placement) -> Tensor:
    """This rank's part."""
    return whole.chunk(RANKS, placement.dim)[RANK] if isinstance(placement, Shard) else whole


def placed(whole: Tensor, placement: Placement, mesh: DeviceMesh) -> DTensor:
    part = own(whole.detach(), placement).contiguous()
    return DTensor.from_local(part, mesh, [placement], run_check=False).requires_grad_(whole.requires_grad)


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape).requires_grad_()


W = Replicate()
TABLE = torch.randn(4, 4, 2)
INDEX = torch.tensor([3, 0, 3, 1, 5, 2])
COUNTS, TARGET = torch.tensor([[2, 1], [0, 2]]), torch.tensor([3, 0, -100, 7, 2, 5])


def there_and_back(x: Tensor, counts: Tensor) -> Tensor:
    padded = block_scaled.permute_and_pad(x, counts, 4)
    return block_scaled.unpermute(padded.rows * 2, padded)


# Name, function, arguments, placements of tensors, of the result and of gradients.
CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], tuple[Placement, ...], Placement]] = {
    "silu_mul rows": (operators.silu_mul, (drawn(6, 8), drawn(6, 8)), (Shard(0), Shard(0)), Shard(0)),
    "silu_mul columns": (operators.silu_mul, (drawn(6, 8), drawn(6, 8)), (Shard(1), Shard(1)), Shard(1)),
    "silu_mul whole": (operators.silu_mul, (drawn(6, 8), drawn(6, 8)), (W, W), W),
    "clamped_swiglu": (operators.clamped_swiglu, (drawn(6, 8),), (Shard(0),), Shard(0)),
    "rms_norm tokens": (operators.rms_norm, (drawn(6, 8), drawn(8)), (Shard(0), W), Shard(0)),
    "rms_norm sequences": (operators.rms_norm, (drawn(3, 4, 8), drawn(8)), (Shard(1), W), Shard(1)),
    "rms_norm without": (operators.rms_norm, (drawn(6, 8),), (Shard(0),), Shard(0)),
    "rope heads": (operators.rope, (drawn(2, 4, 6, 8), TABLE), (Shard(2), W), Shard(2)),
    "rope sequences": (operators.rope, (drawn(2, 4, 6, 8), TABLE), (Shard(0), W), Shard(0)),
    "gather columns": (operators.padded_index_gather, (drawn(6, 8), INDEX), (Shard(1), W), Shard(1)),
    "permute columns": (there_and_back, (drawn(6, 8), COUNTS), (Shard(1), W), Shard(1)),
    "loss of rows": (
        partial(vocab_parallel_cross_entropy, reduction="none"),
        (drawn(6, 8), TARGET),
        (Shard(0), Shard(0)),
        Shard(0),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_results_and_gradients_lie_with_their_rank(case: str, mesh: DeviceMesh) -> None:
    function, whole, placements, result = CASES[case]
    given = [placed(tensor, placement, mesh) for tensor, placement in zip(whole, placements, strict=True)]
    out = function(*given)
    assert isinstance(out, DTensor)
    assert out.placements == (result,)
    expected = function(*whole)
    torch.testing.assert_close(out.to_local(), own(expected, result))
    upstream = torch.randn(expected.shape)
    leaves = [tensor for tensor in whole if tensor.requires_grad]
    gradients = torch.autograd.grad(expected, leaves, upstream)
    out.backward(placed(upstream, result, mesh))
    found = [tensor.grad for tensor in given if tensor.requires_grad]
    for got, right, leaf, at in zip(found, gradients, leaves, placements, strict=False):
        assert isinstance(got, DTensor)
        assert got.shape == leaf.shape
        if at == W and result != W:  # each rank has what its own rows give: here those of one are known
            assert got.placements == (Partial(),)
            parts = [own(each.detach(), place).requires_grad_() for each, place in zip(whole, placements, strict=True)]
            (right,) = torch.autograd.grad(function(*parts), parts[-1], own(upstream, result))
            torch.testing.assert_close(got.to_local(), right)
        else:
            assert got.placements == (at,)
            torch.testing.assert_close(got.to_local(), own(right, at))


@pytest.mark.parametrize(
    ("quantise", "shape"),
    [
        (lambda x: operators.rms_norm_quantize(x, scaling="1x128"), (6, 140)),
        (fp8.quantize_rowwise, (6, 32)),
        (fp8.quantize_1x128, (6, 140)),
        (fp8.quantize_mx, (6, 40)),
        (fp8.quantize_128x128, (2, 6, 32)),
    ],
    ids=["norm", "rowwise", "1x128", "mx", "128x128"],
)
def test_quantised_rows_stay_with_their_rank(
    quantise: Callable[..., Any], shape: tuple[int, ...], mesh: DeviceMesh
) -> None:
    x = torch.randn(shape)
    found = quantise(placed(x, Shard(0), mesh))
    for got, right in zip(found, quantise(x), strict=True):
        assert isinstance(got, DTensor)
        assert got.placements == (Shard(0),)
        parts = (each.contiguous().view(torch.uint8) for each in (got.to_local(), own(right, Shard(0))))
        assert torch.equal(*parts)


@pytest.mark.parametrize(
    ("call", "whole", "placement"),
    [
        (operators.rms_norm, (6, 8), Shard(1)),
        (operators.clamped_swiglu, (6, 8), Shard(1)),
        (partial(operators.rope, table=TABLE), (2, 4, 6, 8), Shard(3)),
    ],
    ids=["rms_norm", "clamped_swiglu", "rope"],
)
def test_what_a_row_is_counted_of_is_brought_together_first(
    call: Callable[..., Any], whole: tuple[int, ...], placement: Placement, mesh: DeviceMesh
) -> None:
    """A dimension that an operator goes along may not be split: DTensor moves it, and the result says so."""
    if "table" in getattr(call, "keywords", {}):
        call = partial(operators.rope, table=placed(TABLE, W, mesh))  # type: ignore[arg-type]
    out = call(placed(torch.randn(whole), placement, mesh))
    assert isinstance(out, DTensor)
    assert out.shape == ((6, 4) if call is operators.clamped_swiglu else whole)
    assert placement not in out.placements


def test_an_operator_of_groups_has_no_rule(mesh: DeviceMesh) -> None:
    expert = torch.tensor([0, 1, 1, 0, 2, 2])
    with pytest.raises(NotImplementedError, match="sharding strategy"):
        operators.scatter_for_grouped_gemm(
            placed(torch.randn(6, 8), Shard(0), mesh), placed(expert, Shard(0), mesh), 3, host_counts=False
        )
