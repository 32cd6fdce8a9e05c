"""The facts of exchanges: laws of small modules on the fake backend, and equality with two gloo processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from torch.distributed.device_mesh import init_device_mesh

from perfguard.measure.devices.operators import of_call
from perfguard.measure.metrics import collectives
from perfguard.tensors.step import Step
from tests.measure.collectives import stacks
from tests.measure.collectives.stacks import SIZES, D, call, facts, fake_group

PARAMETERS = 2 * 4 * (D * D + D)  # bytes of one block: two linears of float32


@pytest.fixture
def mesh() -> Iterator[Any]:
    with fake_group(2):
        yield init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))


@pytest.fixture(scope="module")
def on_fake() -> dict[str, Any]:
    with fake_group(2):
        return stacks.all_facts()


@pytest.fixture(scope="module")
def on_gloo(spawning: None) -> list[dict[str, Any]]:
    return stacks.on_gloo(stacks.all_facts)


def test_facts_of_gloo_ranks_equal_those_of_the_fake_backend(
    on_fake: dict[str, Any], on_gloo: list[dict[str, Any]]
) -> None:
    first, second = on_gloo
    assert first == on_fake  # the fake backend stands for rank 0
    for case, known in first.items():
        by_law = {metric for metric in known if metric not in collectives.PER_RANK}
        assert {metric: second[case][metric] for metric in by_law} == {metric: known[metric] for metric in by_law}, case
    sent = [rank["exchanged/forward"]["exchange_bytes"] for rank in on_gloo]
    names = [f"all_to_all dp float32 {way}" for way in ("sent", "received")]
    assert sum(each[names[0]] for each in sent) == sum(each[names[1]] for each in sent) == 2 * 16 * D * 4
    assert sent[0] != sent[1]


def test_compiled_blocks_exchange_what_eager_ones_do(on_fake: dict[str, Any]) -> None:
    for direction in ("forward", "backward"):
        assert on_fake[f"compiled/{direction}"] == on_fake[f"fsdp/{direction}"]


def test_a_block_gathers_its_parameters_once_a_pass_and_reduces_its_gradients_once(on_fake: dict[str, Any]) -> None:
    forward, backward = on_fake["fsdp/forward"], on_fake["fsdp/backward"]
    gather, reduce = "all_gather dp float32", "reduce_scatter dp float32"
    assert forward["collectives"] == [gather] * 2
    assert backward["collectives"] == [gather] * 2 + [reduce] * 2
    assert forward["collective_bytes"] == {gather: 2 * PARAMETERS}
    assert backward["collective_bytes"] == {gather: 2 * PARAMETERS, reduce: 2 * PARAMETERS}


def test_parameters_that_stay_gathered_are_not_gathered_again(on_fake: dict[str, Any]) -> None:
    assert on_fake["kept/backward"]["collectives"] == ["reduce_scatter dp float32"] * 2


def test_work_between_launch_and_first_use_hides_a_gather(on_fake: dict[str, Any], mesh: Any) -> None:
    matmul = 2 * 8 * D * D
    assert on_fake["fsdp/forward"]["overlap_flop"] == {"all_gather dp float32": 0}
    assert on_fake["fsdp/backward"]["overlap_flop"] == {"all_gather dp float32": 4 * matmul}  # FSDP's own prefetch
    module: Any = stacks.fsdp(mesh)
    module[0].set_modules_to_forward_prefetch([module[1]])
    assert facts(call(module, SIZES))["overlap_flop"] == {"all_gather dp float32": 2 * matmul}


def test_modules_sharded_one_by_one_exchange_as_many_bytes_in_more_collectives(mesh: Any) -> None:
    split = facts(call(stacks.fsdp(mesh, each=True), SIZES))
    assert split["collectives"] == ["all_gather dp float32"] * 4
    assert split["collective_bytes"] == {"all_gather dp float32": 2 * PARAMETERS}


def test_rows_that_do_not_divide_are_padded() -> None:
    with fake_group(64):
        mesh = init_device_mesh("cpu", (64,), mesh_dim_names=("dp",))
        module = stacks.fsdp(mesh, width=D)
        step = Step(call(module, {"dp": 64}))
        step()
        readings = {each.metric: each for each in read(step)}
        # There are 16 rows over 64 ranks, and FSDP gathers whole ones.
        assert readings["collective_bytes"].value == {"all_gather dp float32": 4 * 2 * PARAMETERS}


def read(step: Step) -> list[Any]:
    from perfguard.measure.devices.vendors.cpu import CpuDevice
    from perfguard.measure.metrics.subject import Subject

    return collectives.read(Subject(step, step.direction, call=step.call), CpuDevice())


def test_a_result_used_before_its_wait_is_wrong_by_itself(mesh: Any) -> None:
    for wait in (True, False):
        step = Step(call(stacks.Exchanged(mesh, [4, 4], [4, 4], wait=wait), SIZES))
        (reading,) = [each for each in read(step) if each.metric == "unwaited"]
        assert reading.value == int(not wait)
        assert ("all_to_all dp float32 at tests/measure/collectives/stacks.py:" in reading.problem) is not wait


def test_data_that_dtensor_moves_by_itself_is_told_apart(mesh: Any) -> None:
    (reading,) = [
        each
        for each in read(Step(call(stacks.Normed(mesh, shard=True), SIZES)))
        if each.metric == "implicit_redistributions"
    ]
    assert reading.value == 1
    assert "all_gather dp float32 for aten.native_layer_norm at tests/measure/collectives/stacks.py" in reading.note
    assert facts(call(stacks.Normed(mesh, shard=False), SIZES))["implicit_redistributions"] == 0


def test_a_step_leaves_gradients_as_they_were(mesh: Any) -> None:
    module = stacks.fsdp(mesh)
    case = call(module, SIZES)
    gradients = Step(case, "backward")()
    assert [each.shape for each in gradients[:2]] == [(8, D), (D // 2, D)]
    assert all(parameter.grad is None for parameter in module.parameters())
    assert case.args[0].grad is None


def test_a_pass_counts_its_own_operators_and_memory_alone(mesh: Any) -> None:
    case = call(stacks.fsdp(mesh), SIZES)
    Step(case)()
    forward, backward = (of_call(Step(case, direction)) for direction in ("forward", "backward"))
    assert "fsdp.chunk_cat" in backward.launches
    assert "fsdp.chunk_cat" not in forward.launches
    # Freed by resizing: at its peak one block is gathered, its buffer beside it.
    assert forward.tensor_bytes is not None
    assert 2 * PARAMETERS < forward.tensor_bytes < 3 * PARAMETERS


def test_no_exchange_is_read_outside_of_a_group() -> None:
    assert read(Step(call(stacks.blocks(), {}))) == []
