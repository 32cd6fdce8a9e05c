"""Sharded modules against whole ones, on two gloo ranks: right ones pass, and each wrong one is named.

Shape suffixes: B rows of a rank, D width, E experts.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from perfguard.check.all_configs import check_given
from perfguard.model.call import Call
from perfguard.model.errors import UsageError
from perfguard.ranks.rank_group import Unmarked
from tests.measure.collectives.stacks import Block, D, blocks, fake_group, fsdp, on_gloo

FIRST = 5  # rows of a rank's inputs that expert 0 takes


class Experts(nn.Module):
    """Rows before `FIRST` by expert 0, the others by expert 1, all on this rank."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.weight_EDD = nn.Parameter(torch.randn(2, D, D, dtype=torch.float64))

    def forward(self, x_BD: Tensor) -> Tensor:
        return torch.cat([x_BD[:FIRST] @ self.weight_EDD[0], x_BD[FIRST:] @ self.weight_EDD[1]])


class SpreadExperts(nn.Module):
    """The same, with an expert on each of two ranks. `divide`: its gradient has the rows of both ranks."""

    def __init__(self, whole: Experts, mesh: DeviceMesh, divide: bool) -> None:
        super().__init__()
        self.group = mesh.get_group()
        self.weight_EDD = nn.Parameter(distribute_tensor(whole.weight_EDD.detach(), mesh, [Shard(0)]))
        if divide:
            self.weight_EDD.register_hook(lambda gradient: gradient / mesh.size())

    def forward(self, x_BD: Tensor) -> Tensor:
        sent = [FIRST, len(x_BD) - FIRST]
        received = [sent[dist.get_rank()]] * 2
        weight_EDD = self.weight_EDD
        assert isinstance(weight_EDD, DTensor)
        there = all_to_all_single_autograd(x_BD, received, sent, self.group) @ weight_EDD.to_local()[0]
        back: Tensor = all_to_all_single_autograd(there, sent, received, self.group)
        return back


class Stale(nn.Linear):
    """Keeps the weights that FSDP gathered first."""

    kept: Tensor | None = None

    def forward(self, x_BD: Tensor) -> Tensor:
        if self.kept is None:
            self.kept = self.weight.detach().clone()
        return x_BD @ (self.kept + self.weight - self.weight.detach()).T


class Racing(nn.Linear):
    """Right at first, as what reads before it has arrived may be."""

    calls = 0

    def forward(self, x_BD: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x_BD) * (1.0 if self.calls == 1 else torch.nan)


def call(module: nn.Module, whole: nn.Module, mesh: DeviceMesh, *, same: bool = False) -> Call:
    names = mesh.mesh_dim_names or ()
    torch.manual_seed(0 if same or names[-1] == "tp" else dist.get_rank())
    x_BD = torch.randn(8, D, dtype=torch.float64, requires_grad=True)
    sizes = dict(zip(names, mesh.shape, strict=True))
    return replace(Unmarked("").given(Call(module, (x_BD,), whole)), mesh=sizes)


def sharded(mesh: DeviceMesh, factor: float | None = None) -> tuple[nn.Module, nn.Module]:
    """FSDP over `mesh`, and the whole."""
    torch.set_default_dtype(torch.float64)
    module: Any = fsdp(mesh)
    whole = blocks()
    torch.set_default_dtype(torch.float32)
    if factor is not None:
        module[0].set_gradient_divide_factor(factor)
    return module, whole


def wrong(case: Call) -> list[str]:
    try:
        return check_given(case).checked.wrong
    except UsageError as error:
        return [str(error)]


def all_checks() -> dict[str, Any]:
    """What is wrong with each module, by name."""
    dp, ep, tp = (init_device_mesh("cpu", (2,), mesh_dim_names=(name,)) for name in ("dp", "ep", "tp"))
    whole = Experts()
    other = Experts()
    nn.init.ones_(other.weight_EDD[1])  # on rank 1
    nowhere = SpreadExperts(whole, ep, divide=True)
    nowhere.weight_EDD.register_hook(lambda gradient: gradient * torch.nan)
    torch.manual_seed(3)
    linear = nn.Linear(D, D, bias=False, dtype=torch.float64)
    stale = Stale(D, D, bias=False, dtype=torch.float64)
    stale.load_state_dict(linear.state_dict())
    racing = Racing(D, D, bias=False, dtype=torch.float64)
    racing.load_state_dict(linear.state_dict())
    split = Block(D).double()
    pair = copy.deepcopy(split)
    columns, rows = ColwiseParallel(), RowwiseParallel(output_layouts=Replicate())
    parallelize_module(split, tp, {"up": columns, "down": rows}, src_data_rank=None)
    twice = copy.deepcopy(pair)
    right = call(*sharded(dp), dp)
    checked = check_given(right).checked
    lonely = call(*sharded(dp), dp)
    return {
        "fsdp": wrong(right),
        "names": [each.output for each in [*checked.forward, *(checked.backward or [])]],
        "untouched": all(parameter.grad is None for parameter in right.fn.parameters()),  # type: ignore[attr-defined]
        "inputs": checked.inputs,
        "scaled": wrong(call(*sharded(dp, factor=1.0), dp)),
        "same inputs": wrong(call(*sharded(dp), dp, same=True)),
        "experts": wrong(call(SpreadExperts(whole, ep, divide=True), whole, ep)),
        "undivided experts": wrong(call(SpreadExperts(whole, ep, divide=False), whole, ep)),
        "not a number": wrong(call(nowhere, whole, ep)),
        "stale": wrong(call(fully_shard(stale, mesh=dp), linear, dp)),
        "racing": wrong(call(fully_shard(racing, mesh=dp), linear, dp)),
        "tensor parallel": wrong(call(split, pair, tp)),
        "not reduced": wrong(call(twice, pair, dp)),
        "other weights": wrong(call(SpreadExperts(other, ep, divide=True), whole, ep)),
        "no module": wrong(replace(lonely, reference=lambda x: x)),
    }


@pytest.fixture(scope="module")
def found(spawning: None) -> list[dict[str, Any]]:
    return on_gloo(all_checks)


def test_a_right_module_passes_and_is_left_as_it_was(found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert rank["fsdp"] == rank["experts"] == rank["tensor parallel"] == []
        assert rank["untouched"]
        assert rank["names"][:3] == ["output", "gradient of argument 0", "gradient of parameter 0.up.weight"]
        assert len(rank["names"]) == 2 + 8
        assert rank["inputs"] == "float64[8,16] grad; parameters float64[1088]"


def test_a_gradient_off_by_a_number_of_ranks_is_named_by_its_ratio(found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert len(rank["scaled"]) == 4
        assert all(
            "2 times the oracle's, as many as ranks of dp: divide by the ranks that the loss is a mean over" in text
            for text in rank["scaled"]
        )
        (text,) = rank["undivided experts"]
        assert text.startswith("gradient of parameter weight_EDD: ")
        assert "2 times the oracle's, as many as ranks of ep" in text
        (text,) = rank["not a number"]
        assert "NaN" in text
        assert "times the oracle's" not in text


def test_a_gradient_that_is_not_reduced_is_wrong(found: list[dict[str, Any]]) -> None:
    assert all(len(rank["not reduced"]) == 4 for rank in found)


def test_weights_that_something_keeps_are_stale_after_a_change(found: list[dict[str, Any]]) -> None:
    for rank in found:
        named = [text.partition(":")[0] for text in rank["stale"]]  # the weight's gradient does not depend on it
        assert named == ["output", "gradient of argument 0"]
        assert all(text.endswith("the weights changed in place: something keeps old ones") for text in rank["stale"])


def test_what_is_wrong_in_some_calls_is_not_laid_to_the_weights(found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert rank["racing"]
        assert all(text.endswith("in a later one with the very same weights, too") for text in rank["racing"])


def test_equal_inputs_on_ranks_of_data_are_refused(found: list[dict[str, Any]]) -> None:
    assert found[0]["same inputs"] == found[1]["same inputs"]
    (text,) = found[0]["same inputs"]
    assert text.startswith("inputs: ranks 0 and 1 have the same")


def test_a_module_that_begins_with_other_weights_is_told_so(found: list[dict[str, Any]]) -> None:
    told = "parameter weight_EDD: begins with other values than the reference's"
    for rank in found:
        assert any(text.startswith(told) for text in rank["other weights"])
        assert not any("begins with other" in text for text in rank["undivided experts"])


def test_a_case_of_several_ranks_needs_two_modules(found: list[dict[str, Any]]) -> None:
    (text,) = found[0]["no module"]
    assert "pass the sharded one, and reference=the whole one" in text


def test_nothing_is_compared_on_the_fake_backend() -> None:
    with fake_group(2):
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
        module, whole = sharded(mesh, factor=1.0)
        checked = check_given(call(module, whole, mesh, same=True)).checked
        assert (checked.wrong, checked.forward, checked.backward) == ([], [], [])
