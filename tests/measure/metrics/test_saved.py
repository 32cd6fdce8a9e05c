"""What a forward pass keeps, against byte counts by hand; what a checkpoint or a compiler does with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from perfguard.measure.devices.cpu import CpuDevice
from perfguard.measure.metrics.saved import read, saved_by
from perfguard.measure.metrics.subject import Subject

N = 16
SIZE = 4 * N * N


def subject(run: Callable[..., Any], *args: Any, weights: tuple[Any, ...] = ()) -> Subject:
    return Subject(run=lambda: run(*args), args=args, weights=weights)


def square(grad: bool = True) -> torch.Tensor:
    return torch.rand(N, N).requires_grad_(grad)


def values(of: Subject) -> dict[str, Any]:
    return {reading.metric.removeprefix("saved_"): reading.value for reading in read(of, CpuDevice())}


@pytest.mark.parametrize(
    ("run", "activations", "inputs"),
    [
        (lambda x: x + 1, 0, 0),
        (lambda x: x.exp(), SIZE, 0),  # its result
        (lambda x: x.sin(), 0, SIZE),
        (lambda x: x.exp().sin(), SIZE, 0),  # one storage, saved twice
        (lambda x: x.exp().cos().sin(), 2 * SIZE, 0),
        (lambda x: x * x, 0, SIZE),
        (lambda x: x @ x, 0, SIZE),
        (lambda x: x.t().exp()[:4], SIZE, 0),
        (lambda x: (x.exp(), x.exp().sum()), 2 * SIZE, 0),
        (lambda x: x.exp().detach() * x, SIZE, 0),
    ],
)
def test_bytes_by_hand(run: Callable[[Any], Any], activations: int, inputs: int) -> None:
    found = values(subject(run, square()))
    assert (found["activation_bytes"], found["input_bytes"]) == (activations, inputs)
    assert found["weight_bytes"] == 0


def test_what_nothing_flows_back_from_keeps_nothing() -> None:
    assert read(subject(torch.exp, square(grad=False)), CpuDevice()) == []
    assert read(Subject(run=lambda: square().exp(), direction="backward"), CpuDevice()) == []


def test_a_freed_part_of_the_graph_does_not_count() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        x.exp().sin()  # its graph is gone when the call returns
        return x.exp()

    assert values(subject(run, square()))["activation_bytes"] == SIZE


def test_weights_are_parameters_of_the_module_or_among_the_inputs() -> None:
    weight = nn.Parameter(torch.rand(N, N))
    found = values(subject(torch.matmul, square(), weight))
    assert (found["weight_bytes"], found["input_bytes"], found["activation_bytes"]) == (SIZE, SIZE, 0)
    layer = nn.Linear(N, N, bias=False)
    found = values(subject(layer, square(), weights=tuple(layer.parameters())))
    assert (found["weight_bytes"], found["input_bytes"], found["activation_bytes"]) == (SIZE, SIZE, 0)
    cast = values(subject(lambda x: x @ layer.weight.double(), square().double(), weights=tuple(layer.parameters())))
    assert cast["activation_bytes"] == 2 * SIZE  # a copy of a weight is memory besides


class Keeping(torch.autograd.Function):
    """Keeps tensors past autograd's sight: on the context, in a list."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.kept = [{"two": x * 2}]
        return x * 3

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return grad


def test_tensors_on_a_context_count() -> None:
    found = values(subject(Keeping.apply, square()))
    assert found["activation_bytes"] == SIZE
    assert found["tensors"] == ["float32[16,16] by aten.mul"]


def test_a_checkpoint_keeps_its_input_alone_and_is_not_recomputed() -> None:
    calls = []

    def layer(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x.exp().sin().exp()

    found = values(subject(lambda x: checkpoint(layer, x * 2, use_reentrant=False), square()))
    assert found["activation_bytes"] == SIZE
    assert len(calls) == 3  # to warm up, to look for a graph, and to read


def test_what_was_saved_is_told() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        return x.expand(3, N, N)[0].exp() * torch.ones(4, N, N)[0]

    assert values(subject(run, square()))["tensors"] == [
        "float32[16,16] by aten.exp",
        f"float32[16,16] by aten.ones, a view that pins {4 * SIZE} bytes",
    ]


def test_the_backward_pass_still_works_and_the_inputs_are_left_alone() -> None:
    x = square()
    assert saved_by(subject(lambda x: (x * x).sum(), x)) is not None
    assert x.grad is None
    (x * x).sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach())


def test_a_compiled_call_is_not_compiled_again() -> None:
    graphs = []

    def backend(graph: Any, _inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(lambda x: x.exp().sin(), backend=backend)
    found = values(subject(compiled, square()))
    assert found["activation_bytes"] == SIZE
    assert len(graphs) == 1
    torch._dynamo.reset()


def test_a_call_that_is_known_to_be_differentiated_is_made_once() -> None:
    x, calls = square(), []

    def run() -> torch.Tensor:
        calls.append(1)
        return x.exp().sin()

    unknown = saved_by(Subject(run, args=(x,)))
    assert len(calls) == 2
    assert saved_by(Subject(run, args=(x,), differentiated=True)) == unknown
    assert len(calls) == 3
