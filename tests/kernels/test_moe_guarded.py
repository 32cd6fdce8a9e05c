"""The MoE layer under guard, forward and backward.

On a GPU layers of real models are checked and timed. On a CPU debug layers are checked, and one of moderate size is
timed. What a choice of experts could flip between float32 and the oracle's float64 is left out of timed cases: they
route by rule, not by score.
"""

from __future__ import annotations

import functools
from itertools import combinations, pairwise
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from kernels import fp8
from kernels.moe import Dispatch, MoE, MoEConfig, collect, plan, reference, spread
from kernels.moe.matmul import GroupedMatmul
from kernels.moe.partition import LayerMemory, layer_partition, layer_partition_by_memory
from kernels.moe.precision import wide
from kernels.moe.router import Router
from kernels.moe.rows import spread_rows, spread_rows_and_dot, sum_rows, sum_rows_and_dot
from kernels.moe.shapes import LAYERS, LAYERS_DEBUG, LayerShape
from kernels.moe.weighted_gate import weighted_gate_backward
from perfguard import Hard, Tolerance, Work
from tests.kernels.paths import GPU, REAL, Candidates, cases

TIMED = LAYERS if REAL else (LayerShape("dsv3-debug", 256), LayerShape("dsv3-debug", 256, "hot"))
SHAPES = [pytest.param(shape, True, id=str(shape)) for shape in TIMED]
SHAPES += [] if REAL else [pytest.param(shape, False, id=str(shape)) for shape in LAYERS_DEBUG]

# With a row or two an expert, the gate's gradient is a row of x times a single rounding error: whether it or eager's
# is the larger is luck, and no rule for rows of many independent errors applies. x's gradient still shows the gate.
FEW_ROWS = 8


# As that of the router: a row of w1's gradient is x times the gradient of one gate, in which bf16's rounding of that
# gate is all the error where silu's derivative goes through zero. An expert's rows have many such errors.
FEW_GATES = Tolerance(
    group_dim=0, reason="with a few tokens an expert each row of w1's gradient holds a single rounding error"
)

# Whether ours or eager has more of these in one row of a gradient is luck; in one expert's they average out.
FP8_STEPS = Tolerance(
    k=6,
    group_dim=0,
    reason="an activation that bf16 and float64 round differently may fall to the next fp8 code, a step of up to 1/8",
)


def guard(
    perfguard: Any,
    layer: MoE,
    shape: LayerShape,
    timed: bool,
    *,
    multiply: GroupedMatmul | None = None,
    tolerance: Tolerance | None = None,
) -> None:
    layer.eval()  # counters are no output: a call may not change what the next one sees
    if shape.rows_an_expert < FEW_ROWS:
        layer.router.requires_grad_(False)
    perfguard(
        layer,
        shape.inputs(perfguard.device).requires_grad_(),
        reference=functools.partial(reference.moe, layer, multiply=multiply),
        work=Work(flop=shape.flop, backward_flop=2 * shape.flop),
        timed=timed,
        tolerance=tolerance,
    )


@pytest.mark.parametrize(("shape", "timed"), SHAPES)
def test_moe_layer(perfguard: Any, shape: LayerShape, timed: bool) -> None:
    few = FEW_GATES if shape.rows_an_expert < FEW_ROWS else None
    guard(perfguard, shape.layer(perfguard.device), shape, timed, tolerance=few)


@pytest.mark.parametrize("shape", [SHAPES[0].values[0]], ids=str)
def test_moe_layer_without_recomputing(perfguard: Any, shape: LayerShape) -> None:
    layer = shape.layer(perfguard.device)
    layer.recompute = False
    guard(perfguard, layer, shape, timed=bool(GPU))


# Routed by rule: hidden rows of bf16 and of float64 may fall to different codes, and a choice of experts may not add to
# that. On a CPU an emulated layer takes seconds, so that it is small and not timed.
FP8_REAL = [shape for shape in LAYERS if shape.routing == "balanced" and "gpt-oss" not in shape.model]
FP8_SHAPES = [(shape, True) for shape in FP8_REAL] if REAL else [(LayerShape("dsv3-debug", 32, hidden=64), False)]


@pytest.mark.parametrize(("shape", "timed"), FP8_SHAPES, ids=str)
def test_moe_layer_in_fp8(perfguard: Any, shape: LayerShape, timed: bool) -> None:
    """The truth rounds operands to fp8 as well, so that what is compared is the arithmetic and not the format."""
    layer = shape.layer(perfguard.device)
    layer.experts.precision = "fp8"
    guard(perfguard, layer, shape, timed, multiply=fp8.reference.grouped_mm, tolerance=FP8_STEPS)


@pytest.mark.skipif(REAL, reason="numbers of experts, no layer of a model")
def test_moe_router_within_groups(perfguard: Any) -> None:
    """A token keeps the two best of four groups, whose scores are sums of two: the best expert may be left out."""
    config = MoEConfig(
        dim=32, hidden=16, experts=8, top_k=3, score="sigmoid", groups=4, kept_groups=2, normalise=True, scale=2.5
    )
    router = Router(config, device=perfguard.device)
    torch.nn.init.normal_(router.weight)
    perfguard(
        lambda x, bias: tuple(router(x, bias)),
        torch.randn(24, config.dim, device=perfguard.device, requires_grad=True),
        torch.randn(config.experts, device=perfguard.device),
        reference=lambda x, bias: tuple(reference.route(router, x, bias)),
        timed=False,
    )


@pytest.mark.skipif(REAL, reason="runs on the host alone")
def test_moe_partition(perfguard: Any) -> None:
    """Layers of pipeline stages by what they hold, beside the best of all partitions there are."""

    def partitions(weights: Tensor, activations: Tensor, flight: Tensor) -> Tensor:
        layers = [LayerMemory(*held) for held in zip(weights.tolist(), activations.tolist(), strict=True)]
        by_memory = layer_partition_by_memory(layers, len(flight), in_flight=flight.tolist(), edge_bytes=(7, 11))
        return torch.tensor([by_memory, layer_partition(len(layers), len(flight))])

    def best(weights: Tensor, activations: Tensor, flight: Tensor) -> Tensor:
        number, stages = len(weights), len(flight)
        even = [number // stages] * stages
        for stage in [*range(1, stages - 1), 0, stages - 1][: number % stages]:
            even[stage] += 1

        def order(cuts: tuple[int, ...]) -> tuple[Any, ...]:
            spans = list(pairwise([0, *cuts, number]))
            held = [weights[a:b].sum() + flight[at] * activations[a:b].sum() for at, (a, b) in enumerate(spans)]
            held[0], held[-1] = held[0] + 7, held[-1] + 11
            sizes = [b - a for a, b in spans]
            apart = sum(abs(size - share) for size, share in zip(sizes, even, strict=True))
            return int(max(held)), apart, sizes[0] + sizes[-1], sizes

        return torch.tensor([min(map(order, combinations(range(1, number), stages - 1)))[-1], even])

    weights, activations = torch.tensor([5, 5, 9, 2, 2, 5, 8]), torch.tensor([3, 1, 4, 1, 5, 9, 2])
    perfguard(partitions, weights, activations, torch.tensor([3, 2, 1]), reference=best, timed=False)


class Routed(NamedTuple):
    """Rows that are moved: `tokens` of width `dim`, each to `top_k` of `experts`."""

    tokens: int
    dim: int
    experts: int
    top_k: int

    def __str__(self) -> str:
        return "x".join(map(str, self))


LARGE = [Routed(8192, 2048, 128, 8), Routed(8192, 2048, 64, 6), Routed(16384, 5120, 16, 1)]
MODERATE = [Routed(64, 48, 8, 3), Routed(33, 40, 4, 1)]
SMALL = [Routed(20, 48, 8, 3), Routed(33, 40, 4, 1)]
ROUTE = cases(LARGE, MODERATE, SMALL)


def routed(device: torch.device, shape: Routed) -> Dispatch:
    """Each token to `top_k` experts by chance."""
    scores_TE = torch.rand(shape.tokens, shape.experts, device=device)
    return plan(scores_TE.argsort(dim=1)[:, : shape.top_k].contiguous(), shape.experts)


@ROUTE
@pytest.mark.usefixtures("on_path")
def test_moe_spread(perfguard: Any, shape: Routed) -> None:
    tokens, dim, _, top_k = shape
    dispatch = routed(perfguard.device, shape)
    x = torch.randn(tokens, dim, device=perfguard.device, dtype=torch.bfloat16, requires_grad=True)
    moved = 2 * dim * tokens * (1 + top_k)
    perfguard(
        lambda x: spread(x, None, dispatch),
        x,
        reference=lambda x: x[dispatch.token],
        work=Work(bytes=moved, backward_bytes=moved),
        timed=bool(GPU),
    )


@ROUTE
@pytest.mark.usefixtures("on_path")
def test_moe_collect(perfguard: Any, shape: Routed) -> None:
    tokens, dim, _, top_k = shape
    dispatch = routed(perfguard.device, shape)
    rows = torch.randn(tokens * top_k, dim, device=perfguard.device, dtype=torch.bfloat16, requires_grad=True)
    weights = torch.rand(tokens, top_k, device=perfguard.device, requires_grad=True)
    perfguard(
        lambda rows, weights: collect(rows, weights, dispatch),
        rows,
        weights,
        reference=lambda rows, weights: (rows[dispatch.inverse] * weights.unsqueeze(-1)).sum(dim=1).to(rows.dtype),
        work=Work(bytes=2 * dim * tokens * (1 + top_k), backward_bytes=2 * dim * tokens * (1 + 2 * top_k)),
        timed=bool(GPU),
    )


# The layer takes its kernels' defaults; their other configurations are these two tests' business.
@ROUTE
@pytest.mark.usefixtures("on_path")
def test_moe_rows(perfguard: Any, candidates: Candidates, shape: Routed) -> None:
    tokens, dim, _, top_k = shape
    dispatch = routed(perfguard.device, shape)
    x = torch.randn(tokens, dim, device=perfguard.device, dtype=torch.bfloat16)
    rows = torch.randn(tokens * top_k, dim, device=perfguard.device, dtype=torch.bfloat16)
    weights = torch.rand(tokens, top_k, device=perfguard.device)

    def moved(x: Tensor, rows: Tensor, weights: Tensor, candidate: int | None = None) -> tuple[Tensor, ...]:
        given, chosen = (weights, dispatch.inverse), {"candidate": candidate}
        plain = spread_rows(x, *given, **chosen), sum_rows(rows, *given, **chosen)
        return *plain, *spread_rows_and_dot(x, *given, rows, **chosen), *sum_rows_and_dot(rows, *given, x, **chosen)

    def truth(x: Tensor, rows: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
        spread_MD = (x.to(weights.dtype)[dispatch.token] * weights.flatten()[dispatch.order, None]).to(x.dtype)
        rows_TKD = rows.to(weights.dtype)[dispatch.inverse]
        sum_TD = (rows_TKD * weights[..., None]).sum(dim=1).to(x.dtype)
        dots_TK = (rows_TKD * x.to(weights.dtype)[:, None]).sum(dim=-1)
        return spread_MD, sum_TD, spread_MD, dots_TK, sum_TD, dots_TK

    inputs = x, rows, weights
    perfguard(moved, *inputs, reference=truth, timed=False, configurations=candidates(moved, *inputs))


# Of values that float16 does not hold, so that no step of theirs may go through it.
BEYOND_FLOAT16 = 2.0**20


@cases((), MODERATE[:1], [Routed(7, 40, 4, 3), Routed(7, 0, 4, 3)])
@pytest.mark.usefixtures("on_path")
def test_moe_rows_of_other_dtypes(perfguard: Any, shape: Routed) -> None:
    """Results of another dtype than the inputs', weighted or not, rows that are added, dots: of nothing 0."""
    tokens, dim, _, top_k = shape
    dispatch = routed(perfguard.device, shape)
    inverse = dispatch.inverse.t().contiguous().t()  # by choice, as nobody has to lay it out by token

    def drawn(count: int, dtype: torch.dtype) -> Tensor:
        return (BEYOND_FLOAT16 * torch.randn(count, dim, device=perfguard.device)).to(dtype)

    def moved(x: Tensor, wide_x: Tensor, rows: Tensor, plus: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
        return (
            spread_rows(x, None, inverse, torch.float32),
            spread_rows(x, weights, inverse, torch.float32),
            spread_rows(wide_x, None, inverse, torch.bfloat16),
            spread_rows(wide_x, weights, inverse, torch.bfloat16),
            sum_rows(rows, None, inverse, torch.float32),
            sum_rows(rows, None, inverse, plus_MD=plus),
            sum_rows(rows, weights, inverse, torch.float32, plus_MD=plus),
            sum_rows(plus, weights, inverse, torch.bfloat16),
            *sum_rows_and_dot(rows, weights, inverse, x, plus_MD=plus),
            *sum_rows_and_dot(plus, weights, inverse, x),
            *spread_rows_and_dot(x, weights, inverse, plus),
        )

    def truth(x: Tensor, wide_x: Tensor, rows: Tensor, plus: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
        whole = weights.dtype
        weight, both = weights.flatten()[dispatch.order, None], rows.to(whole) + plus

        def dots(x: Tensor, rows: Tensor) -> Tensor:
            return (rows[inverse] * x.to(whole)[:, None]).sum(dim=-1)

        spread = (x.to(whole)[dispatch.token] * weight).to(x.dtype)
        weighted, weighted_plus = ((each[inverse] * weights[..., None]).sum(dim=1) for each in (both, plus))
        return (
            x.to(torch.float32)[dispatch.token],
            spread.to(torch.float32),
            wide_x[dispatch.token].to(torch.bfloat16),
            (wide_x[dispatch.token] * weight).to(torch.bfloat16),
            rows.to(torch.float32)[inverse].sum(dim=1),
            both[inverse].sum(dim=1).to(rows.dtype),
            weighted,
            weighted_plus.to(torch.bfloat16),
            weighted.to(x.dtype),
            dots(x, both),
            weighted_plus.to(x.dtype),
            dots(x, plus),
            spread,
            dots(x, plus),
        )

    perfguard(
        moved,
        drawn(tokens, torch.bfloat16),
        drawn(tokens, torch.float32),
        drawn(tokens * top_k, torch.bfloat16),
        drawn(tokens * top_k, torch.float32),
        torch.rand(tokens, top_k, device=perfguard.device),
        reference=truth,
        timed=False,
    )


@cases((), (), [Routed(5, 16, 4, 1)])
@pytest.mark.usefixtures("on_path")
def test_moe_rows_between_two_numbers(perfguard: Any, shape: Routed) -> None:
    """Halfway between two numbers of bfloat16 the even one is right, to the bit: the other is within any tolerance."""
    dispatch = routed(perfguard.device, shape)
    even_or_odd = torch.randn(shape.tokens, shape.dim, device=perfguard.device).to(torch.bfloat16)
    halfway = (even_or_odd.view(torch.int16).int() << 16 | 0x8000).view(torch.float32)
    perfguard(
        lambda x: spread_rows(x, None, dispatch.inverse, torch.bfloat16).view(torch.int16),
        halfway,
        reference=lambda x: x[dispatch.token].to(torch.bfloat16).view(torch.int16),
        hard=Hard(without=["non-finite"], reason="bits of NaN are nobody's"),
        timed=False,
    )


@ROUTE
@pytest.mark.usefixtures("on_path")
def test_moe_weighted_gate(perfguard: Any, candidates: Candidates, shape: Routed) -> None:
    tokens, width, _, top_k = shape
    dispatch = routed(perfguard.device, shape)
    q, gate, up = torch.randn(3, tokens * top_k, width, device=perfguard.device, dtype=torch.bfloat16).unbind()
    weights = torch.rand(tokens, top_k, device=perfguard.device)

    def truth(q: Tensor, gate: Tensor, up: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
        weight, (g, u, upstream) = (
            weights.flatten()[dispatch.order, None],
            (each.to(wide(q.dtype)) for each in (gate, up, q)),
        )
        s = torch.sigmoid(g)
        hidden = g * s * u
        dots_TK = (upstream * hidden).sum(dim=-1)[dispatch.inverse]
        dg, du = weight * upstream * u * s * (1 + g * (1 - s)), weight * upstream * g * s
        return (weight * hidden).to(q.dtype), dg.to(q.dtype), du.to(q.dtype), dots_TK

    def gated(q: Tensor, gate: Tensor, up: Tensor, weights: Tensor, candidate: int | None = None) -> tuple[Tensor, ...]:
        return weighted_gate_backward(q, gate, up, weights, dispatch.inverse, candidate=candidate)

    inputs = q, gate, up, weights
    perfguard(gated, *inputs, reference=truth, timed=False, configurations=candidates(gated, *inputs))
