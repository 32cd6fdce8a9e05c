"""Pipelines on two ranks under guard: a step's gradients against the unstaged model's, and what ranks exchange in it.

DualPipeV with every change, the zero-bubble V as its control every night.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

import tests.kernels.paths  # noqa: F401 - before anything imports triton
from kernels.layers import Transformer
from kernels.parallel.experts import shard_experts
from kernels.parallel.pipeline import build_stages, dual_pipe_v, zero_bubble_v
from tests.distributed.sharded_cases import BLOCKS, TOKENS, VOCAB


def loss(logits: Tensor, ids: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), ids.roll(-1, 1).flatten())


def guard_step(perfguard: Any, schedule_of: Callable[..., Any], **mesh: int) -> None:
    """The gradients of this rank's two stages in a step of four micro-batches, against the unstaged model's. An expert
    has those of all ranks' rows, summed."""
    torch.manual_seed(0)
    whole = Transformer([BLOCKS["moe"]] * 4, VOCAB, positions=TOKENS, loop=True, dtype=torch.float64).eval()
    model, ranks, chunks = copy.deepcopy(whole), perfguard.mesh(**mesh), 4
    for layer in model.layers:
        shard_experts(layer.moe, ranks["ep"])  # type: ignore[union-attr, arg-type]
    stages = build_stages(model, ranks["pp"].get_group())
    schedule = schedule_of(stages, chunks, loss)
    first, place = ranks.get_local_rank("pp") == 0, ranks.get_local_rank("ep")
    names = [name for stage in stages for name, _ in stage.submod.named_parameters()]

    def step(ids: Tensor) -> tuple[Tensor, ...]:
        for stage in stages:
            stage.submod.zero_grad()
        schedule.step(*([ids] if first else []), target=ids)
        grads = [weight.grad for stage in stages for weight in stage.submod.parameters()]
        return tuple((each.to_local() if isinstance(each, DTensor) else each).clone() for each in grads)

    def truth(ids: Tensor) -> tuple[Tensor, ...]:
        model = copy.deepcopy(whole)
        for chunk in ids.chunk(chunks):
            loss(model(chunk), chunk).backward()
        grads = {name: weight.grad / chunks for name, weight in model.named_parameters() if weight.grad is not None}
        for name in names:
            if ".experts." in name:
                dist.all_reduce(grads[name], group=ranks.get_group("ep"))
                grads[name] = grads[name].chunk(mesh["ep"])[place]
        return tuple(grads[name] for name in names)

    ids = torch.randint(VOCAB, (2 * chunks, TOKENS), generator=torch.Generator().manual_seed(place))
    perfguard(step, ids, reference=truth, timed=False)


SCHEDULES = pytest.mark.parametrize("schedule", [dual_pipe_v, zero_bubble_v], ids=["DualPipeV", "ZBV"])


@pytest.mark.perfguard(ranks=2)
@SCHEDULES
def test_layers_apart(perfguard: Any, schedule: Callable[..., Any]) -> None:
    guard_step(perfguard, schedule, pp=2, ep=1)


@pytest.mark.perfguard(ranks=2)
@SCHEDULES
def test_experts_apart(perfguard: Any, schedule: Callable[..., Any]) -> None:
    """Each rank a pipeline of its own, whose two stages are the whole model; rows travel between the two."""
    guard_step(perfguard, schedule, pp=1, ep=2)
