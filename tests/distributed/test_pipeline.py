"""DualPipeV and the zero-bubble V over our stages: the bits of the unstaged model, the pairs, the queue, the frees."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, ScheduleDualPipeV, ScheduleZBVZeroBubble
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from kernels.compat.pipelining import _backward_twice, backward_inputs
from kernels.layers import BlockConfig, Transformer
from kernels.moe import MoEConfig
from kernels.parallel.experts import shard_experts
from kernels.parallel.pipeline import build_stages, dual_pipe_v, zero_bubble_v
from kernels.parallel.stages import LayerRun
from tests.distributed.ranks import Ranks
from tests.measure.collectives.stacks import fake_group

VOCAB, TOKENS, BATCH, WIDTH = 50, 8, 2, 32
MOE = MoEConfig(dim=WIDTH, hidden=16, experts=4, top_k=2, shared=1)
BLOCKS = {
    "dense": BlockConfig(dim=WIDTH, heads=4, kv_heads=2, hidden=48),
    "moe": BlockConfig(dim=WIDTH, heads=4, kv_heads=2, moe=MOE),
}
SCHEDULES = {"DualPipeV": dual_pipe_v, "ZBV": zero_bubble_v}


def loss(logits: Tensor, ids: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), ids.roll(-1, 1).flatten())


def data(chunks: int, seed: int = 0) -> Tensor:
    return torch.randint(VOCAB, (BATCH * chunks, TOKENS), generator=torch.Generator().manual_seed(seed))


def model_of(kind: str) -> Transformer:
    torch.manual_seed(0)
    model = Transformer([BLOCKS[kind]] * 4, VOCAB, positions=TOKENS, loop=True, dtype=torch.float64)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.mul_(6)
    return model


def steps(rank: int, ranks: int, name: str, kind: str, chunks: int) -> dict[str, Any]:
    """Two steps, after each of which gradients are the unstaged model's."""
    whole = model_of(kind)
    model = copy.deepcopy(whole)
    stages = build_stages(model)
    schedule = SCHEDULES[name](stages, chunks, loss)
    ids = data(chunks)
    for chunk in ids.chunk(chunks):
        loss(whole(chunk), chunk).backward()
    for weight in whole.parameters():
        weight.grad.div_(chunks)
    wanted = dict(whole.named_parameters())
    unequal, seen, live = [], set(), 0

    def counted(*inputs: Any) -> None:
        nonlocal live
        live = max(live, sum(len(stage.runs) for stage in stages))

    for stage in stages:
        next(iter(stage.module.layers.values())).attention.register_forward_hook(counted)
    for _ in range(2):
        for stage in stages:
            stage.submod.zero_grad()
        losses: list[Tensor] = []
        schedule.step(ids, target=ids, losses=losses) if rank == 0 else schedule.step(target=ids, losses=losses)
        for stage in stages:
            for each, weight in stage.submod.named_parameters():
                seen.add(each)
                if weight.grad is None or not torch.equal(weight.grad, wanted[each].grad):
                    unequal.append(each)
    return {
        "unequal": unequal,
        "seen": seen,
        "live": live,
        "turns": sum(stage.turns for stage in stages),
        "freed": sum(stage.freed for stage in stages),
        "left": [(len(stage.runs), len(stage.store), stage.store.bytes_held) for stage in stages],
    }


@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize("name", SCHEDULES)
def test_gradients_have_the_bits_of_the_unstaged_model(two_ranks: Ranks, name: str, kind: str) -> None:
    found = two_ranks.run(steps, name, kind, 6)
    for rank in found:
        assert not rank["unequal"]
        assert rank["left"] == [(0, 0, 0)] * 2, "micro-batches or weight gradients are left"
        assert rank["freed"] == 0, "without ranks that rows travel to rows are nobody's to free"
        assert rank["live"] == (5 if name == "DualPipeV" else 4)
        # Seven pairs a step; the three parts of an MoE layer have two gaps between them, a dense layer is one part.
        assert rank["turns"] == (2 * 7 * 2 if (name, kind) == ("DualPipeV", "moe") else 0)
    assert found[0]["seen"] | found[1]["seen"] == {name for name, _ in model_of(kind).named_parameters()}


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 2 * grad


@pytest.mark.parametrize("backward", [backward_inputs, _backward_twice])
def test_gradients_of_weights_wait(backward: Any) -> None:
    """Also behind an autograd function, and onto gradients that are there; torch before 2.13 takes the second way."""
    first, second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    weights = [*first.parameters(), *second.parameters()]
    x, grad = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4)
    ids = torch.zeros(3, dtype=torch.int64)  # an input that has no gradient
    out = second(Doubled.apply(first(x)))
    wanted = torch.autograd.grad(out, [x, *weights], grad, retain_graph=True)
    for times in (1, 2):
        x.grad = None
        again = second(Doubled.apply(first(x)))
        later, _ = backward([again], [grad], [x, ids], weights)
        assert x.grad is not None
        assert torch.equal(x.grad, wanted[0])
        assert times == 2 or all(weight.grad is None for weight in weights)
        later()
        for weight, one in zip(weights, wanted[1:], strict=True):
            torch.testing.assert_close(weight.grad, times * one)


@dataclass(frozen=True)
class Facts:
    """What one rank does in a step."""

    live: int
    queued: int
    pairs: int
    split: int
    sends: int
    receives: int
    left: int


def facts(actions: list[Any]) -> Facts:
    """Walk the actions of one rank; in a pair forward comes first."""
    live = queued = 0
    most_live = most_queued = 0
    flat = [part for action in actions for part in (action.sub_actions or (action,))]
    kinds = Counter(action.computation_type.name for action in flat)
    for action in flat:
        kind = action.computation_type.name
        live += {"FORWARD": 1, "FULL_BACKWARD": -1, "BACKWARD_INPUT": -1}.get(kind, 0)
        queued += {"BACKWARD_INPUT": 1, "BACKWARD_WEIGHT": -1}.get(kind, 0)
        most_live, most_queued = max(most_live, live), max(most_queued, queued)
    return Facts(
        most_live,
        most_queued,
        sum(action.sub_actions is not None for action in actions),
        kinds["BACKWARD_INPUT"],
        kinds["SEND_F"] + kinds["SEND_B"],
        kinds["RECV_F"] + kinds["RECV_B"],
        abs(live) + abs(queued),
    )


@pytest.fixture
def fake_ranks(request: pytest.FixtureRequest) -> Iterator[int]:
    with fake_group(request.param):
        yield request.param


def orders(name: str, ranks: int, chunks: int) -> dict[int, list[Any]]:
    stages = [PipelineStage(torch.nn.Identity(), index, 2 * ranks, torch.device("cpu")) for index in (0, 2 * ranks - 1)]
    schedule = ScheduleDualPipeV if name == "DualPipeV" else ScheduleZBVZeroBubble
    return schedule(stages, chunks, loss).pipeline_order_with_comms


@pytest.mark.parametrize("fake_ranks", [2, 4, 8], indirect=True)
@pytest.mark.parametrize("name", SCHEDULES)
def test_what_a_schedule_is_made_of(fake_ranks: int, name: str) -> None:
    for chunks in range(2 * fake_ranks, 4 * fake_ranks + 1, fake_ranks):
        for rank, actions in orders(name, fake_ranks, chunks).items():
            last = rank == fake_ranks - 1
            sends = 2 * chunks if rank == 0 or last else 4 * chunks
            if name == "DualPipeV":
                pairs = 2 * chunks - 3 * fake_ranks + rank + 1 - last
                wanted = Facts(2 * fake_ranks + 1, rank + 1, pairs, 2 * fake_ranks - rank - 1, sends, sends, 0)
            else:
                wanted = Facts(2 * fake_ranks, 2 * rank + 1, 0, 2 * chunks, sends, sends, 0)
            assert facts(actions) == wanted, (rank, chunks)


@pytest.mark.parametrize("fake_ranks", [2], indirect=True)
def test_too_few_micro_batches_are_refused(fake_ranks: int) -> None:
    with pytest.raises(ValueError, match="3 microbatches and 4 stages"):
        orders("DualPipeV", fake_ranks, 3)


def with_experts_apart(rank: int, ranks: int, name: str, rows: str) -> dict[str, Any]:
    """Experts over two ranks; rows that were sent are kept, freed, or filled with NaN and freed."""
    pipelines, ep = ranks // 2, 2
    mesh = init_device_mesh("cpu", (pipelines, ep), mesh_dim_names=("pp", "ep"))
    whole = model_of("moe")
    model = copy.deepcopy(whole)
    for layer in model.layers:
        shard_experts(layer.moe, mesh["ep"])
    before, chunks = LayerRun._free, 4
    place = rank % ep
    all_ids = [data(chunks, seed) for seed in range(ep)]
    if rows == "kept":
        LayerRun._free = lambda self, rows: None
    elif rows == "poisoned":

        def poison(self: LayerRun, rows: Tensor) -> None:
            rows.detach().fill_(torch.nan)
            before(self, rows)

        LayerRun._free = poison
    try:
        stages = build_stages(model, mesh["pp"].get_group())
        schedule = SCHEDULES[name](stages, chunks, loss)
        first = mesh["pp"].get_local_rank() == 0
        schedule.step(all_ids[place], target=all_ids[place]) if first else schedule.step(target=all_ids[place])
    finally:
        LayerRun._free = before
    for ids in all_ids:
        for chunk in ids.chunk(chunks):
            loss(whole(chunk), chunk).backward()
    far, sums = 0.0, {}
    wanted = dict(whole.named_parameters())
    for stage in stages:
        for each, weight in stage.submod.named_parameters():
            oracle, found = wanted[each].grad / (chunks * ep), weight.grad
            if isinstance(found, DTensor):
                oracle, found = oracle.chunk(ep)[place], found.to_local() / ep
            else:
                dist.all_reduce(found := found / ep, group=mesh["ep"].get_group())
            far = max(far, float((found - oracle).norm() / oracle.norm()))
            sums[each] = found.sum().item()
    layers = sum(len(stage.module.layers) for stage in stages)
    return {"far": far, "freed": sum(stage.freed for stage in stages), "layers": layers, "sums": sums}


def check_experts_apart(group: Ranks, name: str) -> None:
    kept, freed, poisoned = (group.run(with_experts_apart, name, rows) for rows in ("kept", "freed", "poisoned"))
    for rank, others in zip(freed, zip(kept, poisoned, strict=True), strict=True):
        assert rank["far"] < 1e-13
        assert rank["freed"] == 3 * 4 * rank["layers"], "three times a layer and micro-batch"
        for other in others:
            assert other["sums"] == rank["sums"], "what was freed is read"


@pytest.mark.parametrize("name", SCHEDULES)
def test_sent_rows_are_freed_and_nobody_reads_them(two_ranks: Ranks, name: str) -> None:
    """Each rank a pipeline of its own, whose two stages are the whole model."""
    check_experts_apart(two_ranks, name)


@pytest.mark.nightly
@pytest.mark.parametrize("name", SCHEDULES)
def test_pipelines_of_two_with_experts_apart(four_ranks: Ranks, name: str) -> None:
    check_experts_apart(four_ranks, name)
