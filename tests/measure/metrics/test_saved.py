"""What a forward pass keeps for its backward pass, against byte counts by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from perfguard.measure.devices.vendors.cpu import CpuDevice
from perfguard.measure.metrics.memory import read, saved_by
from perfguard.measure.metrics.subject import Subject

N = 16
SIZE = 4 * N * N


def square(grad: bool = True) -> torch.Tensor:
    return torch.rand(N, N).requires_grad_(grad)


def saved(run: Callable[..., Any], *args: Any, weights: tuple[Any, ...] = ()) -> tuple[int, int, int]:
    """Bytes of activations, inputs and weights."""
    storages = saved_by(Subject(run=lambda: run(*args), args=args, weights=weights))
    assert storages is not None
    activation, given, weight = (
        sum(each.bytes for each in storages if each.kind == kind) for kind in ("activation", "input", "weight")
    )
    return activation, given, weight


def twice_freed(x: torch.Tensor) -> torch.Tensor:
    x.exp().sin()  # its graph is gone when the call returns
    return x.exp()


class Keeping(torch.autograd.Function):
    """Keeps a tensor on the context, in a list, where autograd does not see it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.kept = [{"two": x * 2}]
        return x * 3

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return grad


@dataclass
class Pair:
    first: torch.Tensor
    second: object = None


def in_itself(tensor: torch.Tensor) -> list[object]:
    held: list[object] = [tensor]
    held.append(held)
    return held


@pytest.mark.parametrize("hold", [Pair, lambda tensor: {tensor}, lambda tensor: {"a": (Pair(tensor),)}, in_itself])
def test_a_context_may_hold_it_in_anything(hold: Callable[[torch.Tensor], object]) -> None:
    class Holding(Keeping):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.kept = hold(x * 2)
            return x * 3

    assert saved(Holding.apply, square()) == (SIZE, 0, 0)


@pytest.mark.parametrize(
    ("run", "activations", "inputs"),
    [
        (lambda x: x + 1, 0, 0),
        (lambda x: x.exp(), SIZE, 0),  # its result
        (lambda x: x.sin(), 0, SIZE),
        (lambda x: x.exp().sin(), SIZE, 0),  # one storage, saved twice
        (lambda x: x.exp().cos().sin(), 2 * SIZE, 0),
        (lambda x: x * x, 0, SIZE),
        (lambda x: x.t().exp()[:4], SIZE, 0),
        (lambda x: (x.exp(), x.exp().sum()), 2 * SIZE, 0),
        (lambda x: x.exp().detach() * x, SIZE, 0),
        (twice_freed, SIZE, 0),
        (Keeping.apply, SIZE, 0),
    ],
)
def test_bytes_by_hand(run: Callable[[Any], Any], activations: int, inputs: int) -> None:
    assert saved(run, square()) == (activations, inputs, 0)


def test_a_call_without_a_graph_and_a_backward_pass_have_no_readings() -> None:
    for subject in (Subject(lambda: square(grad=False).exp()), Subject(lambda: square().exp(), direction="backward")):
        assert not any(each.metric.startswith("saved") for each in read(subject, CpuDevice()))


def test_weights_are_parameters_of_the_module_or_among_the_inputs() -> None:
    weight = nn.Parameter(torch.rand(N, N))
    assert saved(torch.matmul, square(), weight) == (0, SIZE, SIZE)
    layer = nn.Linear(N, N, bias=False)
    weights = tuple(layer.parameters())
    assert saved(layer, square(), weights=weights) == (0, SIZE, SIZE)
    wide = saved(lambda x: x @ layer.weight.double(), square().double(), weights=weights)
    assert wide[0] == 2 * SIZE  # a copy of a weight is memory besides


def test_a_checkpoint_keeps_its_input_alone_and_is_not_recomputed() -> None:
    calls = []

    def layer(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x.exp().sin().exp()

    assert saved(lambda x: checkpoint(layer, x * 2, use_reentrant=False), square()) == (SIZE, 0, 0)
    assert len(calls) == 2  # to look for a graph, and to read


def test_readings_name_dtype_shape_maker_and_what_a_view_pins() -> None:
    x = square()
    run = lambda: x.expand(3, N, N)[0].exp() * torch.ones(4, N, N)[0]  # noqa: E731
    values = {each.metric: each.value for each in read(Subject(run, args=(x,)), CpuDevice())}
    assert values["saved_activation_bytes"] == 5 * SIZE
    assert values["saved_tensors"] == [
        "float32[16,16] by aten.exp",
        f"float32[16,16] by aten.ones, a view that pins {4 * SIZE} bytes",
    ]


def test_the_backward_pass_still_works_and_the_inputs_are_left_alone() -> None:
    x = square()
    saved(lambda x: (x * x).sum(), x)
    assert x.grad is None
    (x * x).sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach())


def test_a_compiled_call_is_not_compiled_again() -> None:
    graphs = []

    def backend(graph: Any, _inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    assert saved(torch.compile(lambda x: x.exp().sin(), backend=backend), square()) == (SIZE, 0, 0)
    assert len(graphs) == 1
    torch._dynamo.reset()


def test_a_call_that_is_known_to_be_differentiated_is_made_once() -> None:
    x, calls = square(), []

    def run() -> torch.Tensor:
        calls.append(1)
        return x.exp().sin()

    unknown = saved_by(Subject(run, args=(x,)))
    assert saved_by(Subject(run, args=(x,), differentiated=True)) == unknown
    assert len(calls) == 3
