"""Rows that travel to the ranks of their experts: none lost, none twice, each at its owner, gradients the same way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._dynamo.backends.debugging import aot_eager
from torch._subclasses.fake_tensor import FakeTensorMode

from kernels.moe import MoE, MoEConfig, plan
from kernels.moe.exchange import ExpertGroup, agree, combine, dispatch, on_their_ranks
from tests.distributed.ranks import Ranks
from tests.kernels.moe_cases import build, config
from tests.measure.collectives import stacks

EXPERTS, TOP_K = 4, 2

# Tokens of each rank, and the experts that they may choose.
LOADS = {
    "learned": ((7, 5), (0, 1, 2, 3)),
    "all to one rank": ((6, 6), (2, 3)),
    "two experts get nothing": ((6, 3), (0, 2)),
    "a rank without tokens": ((5, 0), (0, 1, 2, 3)),
    "one token": ((0, 1), (0, 1, 2, 3)),
    "no token at all": ((0, 0), (0, 1, 2, 3)),
}


def choices(tokens: int, among: tuple[int, ...]) -> Tensor:
    """(tokens, TOP_K): experts of `among`, by chance."""
    places = torch.rand(tokens, len(among)).argsort(dim=1)[:, :TOP_K]
    return torch.tensor(among)[places].contiguous()


def identities(rank: int, rows: int, width: int = 3) -> Tensor:
    """Rows that say where they come from, exactly: rank · 2^40 + row, in each column."""
    return (torch.arange(rows, dtype=torch.float64) + rank * 2.0**40).unsqueeze(1).repeat(1, width)


def travelled(rank: int, ranks: int, load: str) -> dict[str, Any]:
    tokens, among = LOADS[load]
    ids_TK = choices(tokens[rank], among)
    local = plan(ids_TK, EXPERTS)
    exchange = agree(local.counts, ids_TK.numel(), ExpertGroup.of(dist.group.WORLD))
    rows_MD = identities(rank, ids_TK.numel())
    there = dispatch(rows_MD, exchange)
    assert torch.equal(combine(there, exchange), rows_MD), "rows come back to their places"
    owned = exchange.local.expert + rank * EXPERTS // ranks
    return {
        "sent": {(float(row), int(expert)) for row, expert in zip(rows_MD[:, 0], local.expert, strict=True)},
        "arrived": [(float(row), int(expert)) for row, expert in zip(there[:, 0], owned, strict=True)],
        "counts": exchange.local.counts.tolist(),
        "offs": exchange.local.offs.tolist(),
    }


@pytest.mark.parametrize("load", LOADS)
def test_every_row_arrives_once_at_its_expert(two_ranks: Ranks, load: str) -> None:
    found = two_ranks.run(travelled, load)
    arrived = [each for rank in found for each in rank["arrived"]]
    assert len(arrived) == len(set(arrived)), "a row twice"
    assert set(arrived) == found[0]["sent"] | found[1]["sent"]
    for rank in found:
        experts = [expert for _, expert in rank["arrived"]]
        assert experts == sorted(experts)
        assert len(rank["arrived"]) == sum(rank["counts"]) == rank["offs"][-1]
        for expert in set(experts):  # by rank, then as they lay there
            sources = [row for row, each in rank["arrived"] if each == expert]
            assert sources == sorted(sources)


def differentiated(rank: int, ranks: int, load: str) -> tuple[float, bool]:
    """Rows times a number of their expert: the gradient of a row is its expert's number, wherever the expert is."""
    tokens, among = LOADS[load]
    ids_TK = choices(tokens[rank], among)
    local = plan(ids_TK, EXPERTS)
    rows_MD = torch.randn(ids_TK.numel(), 3, dtype=torch.float64, requires_grad=True)

    def experts(rows_RD: Tensor, dispatched: Any) -> Tensor:
        return rows_RD * (1 + dispatched.expert + rank * EXPERTS // ranks).unsqueeze(1)

    out_MD = on_their_ranks(experts, rows_MD, local, ExpertGroup.of(dist.group.WORLD))
    weight_MD = torch.randn_like(out_MD)
    (grad_MD,) = torch.autograd.grad(out_MD, rows_MD, weight_MD)
    factor_M1 = (1 + local.expert).unsqueeze(1)
    return torch.equal(out_MD, rows_MD * factor_M1), torch.equal(grad_MD, weight_MD * factor_M1)


@pytest.mark.parametrize("load", LOADS)
def test_gradients_travel_the_same_way_back(two_ranks: Ranks, load: str) -> None:
    assert two_ranks.run(differentiated, load) == [(True, True)] * 2


def kept(rank: int, ranks: int) -> list[str]:
    ids_TK = choices(8, (0, 1, 2, 3))
    local = plan(ids_TK, EXPERTS)
    rows_MD = torch.randn(ids_TK.numel(), 3, requires_grad=True)
    exchange = agree(local.counts, ids_TK.numel(), ExpertGroup.of(dist.group.WORLD))
    saved: list[str] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda each: saved.append(str(each.dtype)), lambda each: each):
        combine(dispatch(rows_MD, exchange), exchange)
    return saved


def test_saves_where_rows_go_and_no_rows(two_ranks: Ranks) -> None:
    for saved in two_ranks.run(kept):
        assert set(saved) == {"torch.int64"}


def compiled(rank: int, ranks: int) -> tuple[int, list[bool]]:
    """Graphs, and whether each result and gradient has the bits of the eager one."""
    graphs = 0

    def counting(graph: Any, inputs: Any) -> Any:
        nonlocal graphs
        graphs += 1
        return aot_eager(graph, inputs)  # torch 2.11 loses gradients of graphs that only dynamo has seen

    group = ExpertGroup.of(dist.group.WORLD)

    def layer(rows_MD: Tensor, ids_TK: Tensor) -> Tensor:
        return on_their_ranks(lambda rows, _: rows * (1 + rank), rows_MD, plan(ids_TK, EXPERTS), group)

    same, fast = [], torch.compile(layer, backend=counting, fullgraph=True)
    torch._dynamo.reset()
    for tokens in ((5, 4), (7, 6), (3, 9), (6, 2), (0, 8)):
        ids_TK = choices(tokens[rank], (0, 1, 2, 3))
        results = []
        for run in (layer, fast):
            rows_MD = identities(rank, ids_TK.numel()).requires_grad_()
            out = run(rows_MD, ids_TK)
            results.append((out.detach(), *torch.autograd.grad(out.sum(), rows_MD)))
        same.append(all(torch.equal(*pair) for pair in zip(*results, strict=True)))
    return graphs, same


def test_compiles_to_one_graph_for_all_sizes(two_ranks: Ranks) -> None:
    """And one more for the first size, and for none at all."""
    found = two_ranks.run(compiled)
    assert all(all(same) for _, same in found)
    assert [graphs for graphs, _ in found] == [3, 2]


def host_reads(rank: int, ranks: int, balanced: bool) -> list[str]:
    ids_TK = (torch.arange(8).view(4, 2) if balanced else choices(4, (0, 1, 2, 3))) % EXPERTS
    counts_E = plan(ids_TK, EXPERTS).counts
    reads: list[str] = []
    before = Tensor.tolist
    Tensor.tolist = lambda each: reads.append("tolist") or before(each)  # type: ignore[method-assign, func-returns-value]
    try:
        exchange = agree(counts_E, 8, ExpertGroup.of(dist.group.WORLD, even=balanced))
    finally:
        Tensor.tolist = before  # type: ignore[method-assign]
    assert sum(exchange.sent) == 8
    return reads


@pytest.mark.parametrize("balanced", [False, True])
def test_reads_once_on_the_host_and_not_at_all_where_loads_are_even(two_ranks: Ranks, balanced: bool) -> None:
    assert two_ranks.run(host_reads, balanced) == [[] if balanced else ["tolist"]] * 2


LAYERS = ["softmax", "sigmoid", "weight-before-top2", "gpt-oss"]


def layer(rank: int, ranks: int, name: str) -> dict[str, float]:
    """How far a layer with half of the experts on each rank is from the whole one: output and gradients."""
    torch.manual_seed(7)
    whole = build(config(name), dtype=torch.float64, loop=True)
    half = build(config(name), dtype=torch.float64, loop=True)
    half.load_state_dict(whole.state_dict())
    own = slice(rank * 4, rank * 4 + 4)
    for each, weight in list(half.experts.named_parameters()):
        setattr(half.experts, each, torch.nn.Parameter(weight[own].detach().clone()))
    half.group = ExpertGroup.of(dist.group.WORLD)
    xs = [torch.randn(count, 32, dtype=torch.float64, requires_grad=True) for count in (9, 4)]
    whole_out = [whole(x) for x in xs]
    wanted = torch.autograd.grad(sum(out.square().sum() for out in whole_out), [xs[rank], *whole.experts.parameters()])
    x = xs[rank].detach().requires_grad_()
    out = half(x)
    found = torch.autograd.grad(out.square().sum(), [x, *half.experts.parameters()])
    far = {"out": error(out, whole_out[rank]), "x": error(found[0], wanted[0])}
    names = [each for each, _ in half.experts.named_parameters()]
    far |= {each: error(a, b[own]) for each, a, b in zip(names, found[1:], wanted[1:], strict=True)}
    return far


def error(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_over_ranks_is_the_layer(two_ranks: Ranks, name: str) -> None:
    for far in two_ranks.run(layer, name):
        assert max(far.values()) < 1e-13, far


@pytest.fixture
def fake_group() -> Iterator[ExpertGroup]:
    """Rank 0 of 64, whose collectives send nothing."""
    with stacks.fake_group(64):
        yield ExpertGroup.of(dist.group.WORLD, even=True)


def test_lays_out_64_ranks_in_one_process(fake_group: ExpertGroup) -> None:
    """Sizes alone: nothing has a value, so that the loads have to be even."""
    shape = MoEConfig(dim=8, hidden=16, experts=64, top_k=2, balanced=True)
    with FakeTensorMode():
        moe = MoE(shape, dtype=torch.bfloat16)
        for name, weight in list(moe.experts.named_parameters()):
            setattr(moe.experts, name, torch.nn.Parameter(weight[:1].detach()))
        moe.group = fake_group
        x = torch.empty(96, 8, dtype=torch.bfloat16, requires_grad=True)
        moe(x).sum().backward()
        assert x.grad is not None
        assert x.grad.shape == (96, 8)
        exchange = agree(torch.empty(64, dtype=torch.int64), 192, fake_group)
        assert dispatch(torch.empty(192, 8), exchange).shape == (192, 8)


def test_names_what_does_not_fit(fake_group: ExpertGroup) -> None:
    with pytest.raises(ValueError, match=r"experts: are 100 on 64 ranks; give a multiple"):
        agree(torch.zeros(100, dtype=torch.int64), 0, fake_group)
    with pytest.raises(ValueError, match=r"even: is not true of 100 rows for 64 experts"):
        agree(torch.zeros(64, dtype=torch.int64), 100, fake_group)
