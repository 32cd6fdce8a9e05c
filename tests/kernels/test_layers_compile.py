"""`apply_compile`: in place, once, without traces in the process, one graph for each kind of block."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from kernels.layers import MoEBlock, Transformer, apply_compile
from kernels.moe.shapes import LOADS, set_load
from kernels.operators import clamped_swiglu
from perfguard.measure.compiled import settings, traced
from tests.kernels.layers_cases import CONFIGS, model_of
from tests.kernels.paths import COMPILING

pytestmark = COMPILING

DENSE, MOE = CONFIGS["dense"], CONFIGS["moe"]


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def model(*configs: Any) -> Transformer:
    return Transformer(configs, 50, positions=64, dtype=torch.bfloat16)


class Linear(nn.Module):
    """The least that can be compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x @ self.weight


def run_all(model: Any, x: torch.Tensor) -> torch.Tensor:
    for layer in model.layers:
        x = layer(x)
    return x


def test_nothing_but_the_call_changes() -> None:
    plain = model_of([Linear(), Linear()])
    names, identity = list(plain.state_dict()), [id(module) for module in plain.modules()]
    apply_compile(plain, backend="eager")
    calls = [module._compiled_call_impl for module in plain.layers]  # type: ignore[union-attr]
    apply_compile(plain, backend="eager")
    assert [module._compiled_call_impl for module in plain.layers] == calls  # type: ignore[union-attr]
    assert list(plain.state_dict()) == names
    assert [id(module) for module in plain.modules()] == identity


def test_copies_and_pickles_are_as_before() -> None:
    plain, x = model_of([Linear()]), torch.randn(2, 4)
    expected = run_all(plain, x)
    apply_compile(plain, backend="eager")
    assert torch.equal(run_all(plain, x), expected)
    file = io.BytesIO()
    torch.save(plain, file)
    file.seek(0)
    for other in (copy.deepcopy(plain), torch.load(file, weights_only=False)):
        assert other.layers[0]._compiled_call_impl is None
        assert torch.equal(run_all(other, x), expected)
        apply_compile(other, backend="eager")
        assert torch.equal(run_all(other, x), expected)


def test_what_has_no_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="model: a Linear has no `layers`"):
        apply_compile(Linear())
    with pytest.raises(ValueError, match="model: `layers` of this _Model is empty"):
        apply_compile(model_of([]))


def test_an_unknown_backend_is_refused_before_anything_is_compiled() -> None:
    plain = model_of([Linear()])
    with pytest.raises(torch._dynamo.exc.InvalidBackend, match="'fastest'"):
        apply_compile(plain, backend="fastest")
    assert plain.layers[0]._compiled_call_impl is None  # type: ignore[union-attr]


def test_layers_by_name_and_some_compiled_already() -> None:
    plain = nn.Module()
    plain.layers = nn.ModuleDict({"first": Linear(), "second": Linear()})
    plain.layers["first"].compile(backend="eager")
    theirs = plain.layers["first"]._compiled_call_impl
    apply_compile(plain, backend="eager")
    assert plain.layers["first"]._compiled_call_impl is theirs
    assert plain.layers["second"]._compiled_call_impl is not None


def test_equal_layers_share_one_graph_and_loads_no_matter() -> None:
    """Each layer has a load of its own: an assertion on the first one's counts may not bind the second."""
    net = model(DENSE, MOE, MOE, DENSE, MOE)
    apply_compile(net, backend="eager")
    before = settings()
    with traced() as trace:
        for step in range(3):
            for number, layer in enumerate(layer for layer in net.layers if isinstance(layer, MoEBlock)):
                set_load(layer.moe, LOADS[(number + step) % 3])
            net(torch.randint(50, (2, 12))).float().sum().backward()
    assert [frame.function for frame in trace.compiled] == ["block.forward", "block.forward"]  # dense and MoE
    assert (trace.recompiled, trace.breaks, trace.eager) == ([], [], [])
    assert settings() == before


def test_the_number_of_layers_does_not_count() -> None:
    def graphs(count: int) -> int:
        torch._dynamo.reset()
        net = model_of([Linear() for _ in range(count)])
        apply_compile(net, backend="eager")
        with traced() as trace:
            run_all(net, torch.randn(3, 4, requires_grad=True))  # as every later layer
        return len(trace.frames)

    assert [graphs(count) for count in (1, 2, 8, 32)] == [1, 1, 1, 1]


def test_another_function_still_breaks_where_it_did() -> None:
    """torchtitan #2741: `capture_scalar_outputs` set for the layers, and a loss compiled apart fails."""
    net = model_of([Linear()])
    apply_compile(net, backend="eager")
    run_all(net, torch.randn(2, 4))

    @torch.compile(backend="eager")
    def between(ends: torch.Tensor) -> torch.Tensor:
        return torch.arange(ends[0].item(), ends[1].item())

    with traced() as trace:
        assert between(torch.tensor([2, 5])).tolist() == [2, 3, 4]
    assert trace.breaks


def test_tokens_are_counted_once_under_checkpointing_and_the_graph_is_whole() -> None:
    """torchtitan #1895: behind checkpointing a break leaves the block to Python, and nothing tells."""
    net = model(MOE)
    (block,) = net.layers
    assert isinstance(block, MoEBlock)
    apply_compile(net, backend="eager")
    x = torch.randn(2, 12, 32).bfloat16().requires_grad_()
    with traced() as trace:
        checkpoint(block, x, net.rope[:12], use_reentrant=False).sum().backward()
    assert [(frame.function, frame.operators > 50) for frame in trace.frames] == [("block.forward", True)]
    assert float(block.moe.tokens_per_expert.sum()) == 2 * 12 * 2


def test_the_clamped_gate_compiles_with_numbers_unknown() -> None:
    """With `dynamic=True` alpha and limit are symbols, of which not everything can be asked."""
    gate = torch.compile(clamped_swiglu, dynamic=True, fullgraph=True, backend="eager")
    for alpha, limit in ((1.702, 7.0), (1.5, 3.0), (1.6, float("inf"))):
        gu = torch.randn(5, 16).bfloat16()
        assert torch.equal(gate(gu, alpha, limit), clamped_swiglu(gu, alpha, limit))
