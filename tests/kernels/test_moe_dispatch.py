"""Tokens to rows and back: orders, counts, sums, their gradients, and that nothing is read on the host."""

from __future__ import annotations

import pytest
import torch

from kernels.moe import Dispatch, collect, plan, spread
from tests.kernels.guards import no_host_reads
from tests.kernels.paths import KernelPath

EXPERTS, TOP_K, WIDTH = 5, 3, 7


def ids(tokens: int, experts: int = EXPERTS, top_k: int = TOP_K) -> torch.Tensor:
    return torch.rand(tokens, experts).argsort(dim=1)[:, :top_k].contiguous()


def to_device(made: Dispatch, device: torch.device) -> Dispatch:
    return Dispatch(*(tensor.to(device) for tensor in made))


@pytest.mark.parametrize("tokens", [0, 1, 2, 33])
@pytest.mark.parametrize("top_k", [1, 3, 5])
def test_a_plan_is_consistent(tokens: int, top_k: int) -> None:
    chosen = ids(tokens, top_k=top_k)
    with no_host_reads():
        made = plan(chosen, EXPERTS)
    flat = chosen.flatten()
    assert made.counts.dtype == torch.int64
    assert torch.equal(made.counts, flat.bincount(minlength=EXPERTS))
    assert int(made.counts.sum()) == tokens * top_k
    assert made.offs.dtype == torch.int32
    assert torch.equal(made.offs, made.counts.cumsum(0).int())
    assert torch.equal(made.expert, flat[made.order])
    assert torch.equal(made.token, made.order // top_k)
    assert torch.equal(made.order[made.inverse.flatten()], torch.arange(tokens * top_k))
    assert made.expert.tolist() == sorted(flat.tolist())


def test_rows_of_an_expert_lie_in_token_order() -> None:
    made = plan(ids(50), EXPERTS)
    for start, end in zip([0, *made.offs.tolist()], made.offs.tolist(), strict=False):
        assert made.token[start:end].tolist() == sorted(made.token[start:end].tolist())


def test_experts_without_tokens_have_empty_groups() -> None:
    made = plan(torch.tensor([[1, 3], [3, 1], [1, 3]]), 6)
    assert made.counts.tolist() == [0, 3, 0, 3, 0, 0]
    assert made.offs.tolist() == [0, 3, 3, 6, 6, 6]
    assert made.token.tolist() == [0, 1, 2, 0, 1, 2]
    assert made.inverse.tolist() == [[0, 3], [4, 1], [2, 5]]


@pytest.mark.parametrize("experts", [4, 600])  # counted, and sorted by torch
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
def test_an_expert_may_be_there_twice(dtype: torch.dtype, experts: int, kernel_path: KernelPath) -> None:
    """Each time is a row of its own: none is counted as another expert's."""
    chosen = torch.tensor([[1, 1], [3, 0], [0, 0], [3, 3]], dtype=dtype, device=kernel_path.device)
    made = plan(chosen, experts)
    assert made.counts[:4].tolist() == [3, 2, 0, 3]
    assert made.offs[:4].tolist() == [3, 5, 5, 8]
    assert made.expert.tolist() == [0, 0, 0, 1, 1, 3, 3, 3]
    assert made.token.tolist() == [1, 2, 2, 0, 0, 1, 3, 3]
    assert made.inverse.tolist() == [[3, 4], [5, 0], [1, 2], [6, 7]]
    assert [each.dtype for each in made] == [torch.int64, torch.int64, torch.int32]
    x = torch.randn(4, WIDTH, device=chosen.device)
    assert torch.equal(spread(x, None, made), x[made.token])
    torch.testing.assert_close(collect(spread(x, None, made), None, made), 2 * x)


@pytest.mark.parametrize("experts", [4, 600])
def test_a_choice_out_of_range_lies_behind_all_experts(experts: int, kernel_path: KernelPath) -> None:
    """Within the rows that there are: who moves it writes to nobody else's memory."""
    made = plan(torch.tensor([[1, experts], [-1, 0], [experts + 7, 1]], device=kernel_path.device), experts)
    assert made.counts[:3].tolist() == [1, 2, 0]
    assert made.offs.tolist()[-1] == 3
    assert made.inverse.tolist() == [[1, 3], [4, 0], [5, 2]]
    assert made.expert.tolist() == [0, 1, 1, experts, experts, experts]


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("top_k", [1, 3])
def test_gradients(weighted: bool, top_k: int) -> None:
    made = plan(ids(6, top_k=top_k), EXPERTS)
    x = torch.randn(6, WIDTH, dtype=torch.float64, requires_grad=True)
    rows = torch.randn(6 * top_k, WIDTH, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(6, top_k, dtype=torch.float64, requires_grad=True) if weighted else None
    assert torch.autograd.gradcheck(lambda x, w: spread(x, w, made), (x, weights))
    assert torch.autograd.gradcheck(lambda r, w: collect(r, w, made), (rows, weights))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_values(dtype: torch.dtype, kernel_path: KernelPath) -> None:
    """Against indexing, in float32 with one cast, in the order of choices: bit-equal on every path."""
    made = to_device(plan(ids(20), EXPERTS), kernel_path.device)
    x, rows = torch.randn(20, WIDTH).to(made.offs.device, dtype), torch.randn(60, WIDTH).to(made.offs.device, dtype)
    weights = torch.rand(20, TOP_K).to(x.device)
    assert torch.equal(spread(x, None, made), x[made.token])
    scaled = (x[made.token].float() * weights.flatten()[made.order, None]).to(dtype)
    assert torch.equal(spread(x, weights, made), scaled)
    own = rows[made.inverse].float()
    total = torch.zeros(20, WIDTH, device=x.device)
    for choice in range(TOP_K):
        total = total + own[:, choice] * weights[:, choice, None]
    assert torch.equal(collect(rows, weights, made), total.to(dtype))
    plain = own[:, 0] + own[:, 1] + own[:, 2]
    assert torch.equal(collect(rows, None, made), plain.to(dtype))


def test_a_sum_is_kept_in_float32(kernel_path: KernelPath) -> None:
    """In bf16 256 + 1 is 256; the sum of many such choices would lose them all."""
    made = to_device(plan(torch.arange(8).view(1, 8), 8), kernel_path.device)
    rows = torch.tensor([[256.0]] + [[1.0]] * 7, dtype=torch.bfloat16, device=kernel_path.device)
    assert collect(rows, None, made).item() == 264.0  # 263 is no bf16, 264 is the nearest
    x = torch.zeros(1, 1, dtype=torch.bfloat16, device=rows.device, requires_grad=True)
    spread(x, None, made).backward(rows)
    assert x.grad is not None
    assert x.grad.item() == 264.0


def test_saves_indices_alone_where_nothing_is_weighed() -> None:
    made = plan(ids(9), EXPERTS)
    saved: list[torch.Tensor] = []
    x = torch.randn(9, WIDTH, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):  # type: ignore[func-returns-value]
        collect(spread(x, None, made), None, made)
    assert saved
    assert not any(tensor.is_floating_point() for tensor in saved)


def test_same_bits_twice_and_any_layout_of_gradients(kernel_path: KernelPath) -> None:
    device = kernel_path.device
    made = to_device(plan(ids(30), EXPERTS), device)
    x = torch.randn(30, WIDTH).to(device, torch.bfloat16).requires_grad_()
    weights = torch.rand(30, TOP_K).to(device).requires_grad_()
    rows = torch.randn(90, WIDTH).to(device, torch.bfloat16).requires_grad_()
    grad = torch.randn(WIDTH, 90).to(device, torch.bfloat16)
    cases = (
        (spread(x, weights, made), (x, weights), grad.t()),
        (collect(rows, weights, made), (rows, weights), grad.t()[:30]),
    )
    for out, inputs, incoming in cases:
        first = torch.autograd.grad(out, inputs, incoming, retain_graph=True)
        again = torch.autograd.grad(out, inputs, incoming.contiguous(), retain_graph=True)
        flat = torch.autograd.grad(out, inputs, torch.ones((), device=device).bfloat16().expand(out.shape))
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
        assert all(bool(gradient.isfinite().all()) for gradient in flat)
