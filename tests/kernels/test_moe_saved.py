"""What is kept for the backward pass, against byte counts written out from shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from kernels.moe import MoE, profile_saved
from tests.kernels.moe_cases import build, config, tokens

T, D, F, E, K = 40, 32, 48, 8, 3
M = T * K

# Shared by every way of running a layer with softmax: ids and scores of the router, and where rows come from.
ROUTER = T * K * 8 + T * E * 4
WEIGHTS = T * K * 4
INDICES = M * 8 + E * 4  # inverse, offs


def parameter_bytes(module: nn.Module) -> int:
    return sum(parameter.numel() * parameter.itemsize for parameter in module.parameters())


# ---- the layer -----------------------------------------------------------------------------------------------------


def test_the_recomputing_layer_keeps_gate_and_up_and_its_input() -> None:
    layer, x = build(config()), tokens(T)
    profile = profile_saved(layer, [x])
    assert profile.activation_bytes == T * D * 2 + 2 * M * F * 2 + ROUTER + WEIGHTS + INDICES
    assert profile.input_bytes == T * D * 2
    assert profile.weight_bytes == parameter_bytes(layer)
    assert profile.weight_copy_bytes == 0


def test_the_plain_layer_keeps_rows_hidden_and_outputs_besides() -> None:
    layer, x = build(config(), recompute=False), tokens(T)
    profile = profile_saved(layer, [x])
    rows, hidden, outputs = M * D * 2, M * F * 2, M * D * 2
    assert profile.activation_bytes == T * D * 2 + 2 * M * F * 2 + ROUTER + WEIGHTS + INDICES + rows + hidden + outputs
    assert profile.weight_bytes == parameter_bytes(layer)


def test_masters_in_float32_are_kept_by_reference_or_as_copies() -> None:
    """The plain way needs the bf16 copies in the backward pass; recomputing casts again."""
    layer, x = build(config(), torch.float32), tokens(T)
    profile = profile_saved(layer, [x])
    assert (profile.weight_bytes, profile.weight_copy_bytes) == (parameter_bytes(layer), 0)
    layer.recompute = False
    profile = profile_saved(layer, [x])
    assert profile.weight_copy_bytes == parameter_bytes(layer.experts) // 2
    assert profile.weight_bytes == parameter_bytes(layer.router)


def test_shared_experts_add_their_own() -> None:
    layer, x = build(config(shared=2)), tokens(T)
    profile = profile_saved(layer, [x])
    shared = 3 * T * 2 * F * 2  # gate, up, and hidden, which the last matmul takes
    assert profile.activation_bytes == T * D * 2 + 2 * M * F * 2 + ROUTER + WEIGHTS + INDICES + shared
    assert profile.within("shared").activation_bytes == shared
    assert profile.within("router").activation_bytes == T * D * 2 + ROUTER  # x is the router's first


def test_gpt_oss_keeps_what_the_clamp_and_the_last_matmul_take() -> None:
    layer, x = build(config(clamped=True, gate_bias=True)), tokens(T)
    profile = profile_saved(layer, [x])
    rows, gate_up, hidden, outputs = M * D * 2, M * 2 * F * 2, M * F * 2, M * D * 2
    expected = T * D * 2 + ROUTER + WEIGHTS + INDICES + rows + gate_up + hidden + outputs
    assert profile.activation_bytes == expected
    biases = layer.experts.gate_up_bias.nbytes + layer.experts.down_bias.nbytes + layer.router.bias.nbytes
    assert profile.weight_bytes == parameter_bytes(layer) - biases  # no gradient asks for a bias


def test_storages_are_told_with_layer_shape_dtype_and_producer() -> None:
    layer, x = build(config()), tokens(T)
    profile = profile_saved(layer, [x])
    by_producer = {each.producer: each for each in profile.storages}
    assert by_producer["input 0"].shape == (T, D)
    assert by_producer["input 0"].tensors == 2  # of the gate and of the experts
    assert by_producer["parameter experts.w1"].kind == "weight"
    assert by_producer["_softmax"].layer == "router"
    assert by_producer["_softmax"].dtype == torch.float32
    assert sum(each.producer == "perfguard_kernels.grouped_mm_rows" for each in profile.storages) == 2
    assert sum(part.activation_bytes for part in profile.layers.values()) == profile.activation_bytes
    assert str(profile).count("\n") == len(profile.storages) - 1


def test_a_checkpointed_layer_keeps_its_input_alone() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = build(config())

        def forward(self, x: Tensor) -> Any:
            return checkpoint(self.layer, x, use_reentrant=False)

    profile = profile_saved(Checkpointed(), [tokens(T)])
    assert profile.activation_bytes == profile.input_bytes == T * D * 2
    assert profile.weight_bytes == 0


def test_two_layers_keep_twice_as_much() -> None:
    model, x = nn.Sequential(build(config()), build(config())), tokens(T)
    profile = profile_saved(model, [x])
    one = T * D * 2 + 2 * M * F * 2 + ROUTER + WEIGHTS + INDICES
    assert profile.activation_bytes == 2 * one
    assert profile.within("1").activation_bytes == one
    assert profile.input_bytes == T * D * 2


# ---- the profiler --------------------------------------------------------------------------------------------------


class Of(nn.Module):
    """Any function as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


def test_a_storage_counts_once_and_whole() -> None:
    big = torch.randn(100, 10)
    profile = profile_saved(
        Of(lambda x, y: (x * y[:3]).sum() + (x * y[5:8]).sum()), [torch.randn(3, 10).requires_grad_(), big]
    )
    assert profile.activation_bytes == 100 * 10 * 4
    assert [each.tensors for each in profile.storages] == [2]
    assert profile.storages[0].shape == (3, 10)


def test_a_slice_of_a_parameter_is_weight_and_its_cast_a_copy() -> None:
    class Sliced(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 8, 8))

        def forward(self, x: Tensor) -> Tensor:
            return (x @ self.weight[2]).bfloat16() @ self.weight[1].to(torch.bfloat16)

    profile = profile_saved(Sliced(), [torch.randn(5, 8).requires_grad_()])
    assert profile.weight_bytes == 4 * 8 * 8 * 4
    assert profile.weight_copy_bytes == 8 * 8 * 2
    assert profile.activation_bytes == 5 * 8 * 4 + 5 * 8 * 2


@dataclass
class Record:
    tensor: Tensor
    name: str = "kept"


class OnContext(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.plain = torch.ones(11)
        ctx.nested = {"records": [Record(torch.ones(13, dtype=torch.float64)), (x, 3)]}
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


def test_tensors_on_a_context_are_found() -> None:
    profile = profile_saved(Of(OnContext.apply), [torch.randn(7).requires_grad_()])
    assert profile.activation_bytes == 11 * 4 + 13 * 8 + 7 * 4
    assert profile.input_bytes == 7 * 4


def test_what_no_backward_pass_can_reach_does_not_count() -> None:
    def function(x: Tensor) -> Tensor:
        (x.exp() * x).sum()  # its graph is gone before this returns
        return x.sin()

    profile = profile_saved(Of(function), [torch.randn(9).requires_grad_()])
    assert profile.activation_bytes == 9 * 4
    assert profile.storages[0].tensors == 1


def test_nothing_is_kept_where_nothing_requires_grad() -> None:
    assert profile_saved(Of(torch.exp), [torch.randn(9)]).storages == ()


def test_backward_still_runs_and_hooks_are_gone() -> None:
    layer, x = build(config()), tokens(T)
    profile_saved(layer, [x])
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in layer.modules())
    layer(x).sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize("error", [ValueError])
def test_an_error_inside_leaves_no_hook(error: type[Exception]) -> None:
    layer = MoE(config())
    with pytest.raises(error, match="x: is 31 wide"):
        profile_saved(layer, [torch.zeros(2, 31)])
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in layer.modules())
