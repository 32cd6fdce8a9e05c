"""Blocks on two ranks, eager and compiled, and a pipeline's step."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from kernels.layers import BlockConfig, Transformer
from kernels.moe import MoEConfig
from kernels.moe.shapes import set_load
from kernels.parallel.model import parallelize

# What the compiler does by itself while it traces.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]

VOCAB, TOKENS = 50, 12
DENSE = BlockConfig(dim=32, heads=4, kv_heads=2, hidden=48)
MOE = BlockConfig(dim=32, heads=4, kv_heads=2, moe=MoEConfig(dim=32, hidden=16, experts=4, top_k=2, shared=1))


def whole_of(config: BlockConfig, device: torch.device) -> Transformer:
    """On one rank, in its own dtype throughout. Of MoE blocks the first two experts have all tokens."""
    torch.manual_seed(0)
    model = Transformer([config] * 2, VOCAB, positions=TOKENS, loop=True, device=device, dtype=torch.bfloat16).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.mul_(6)
    for layer in model.layers:
        if config.moe is not None:
            set_load(layer.moe, "hot")
    return model


def guard(perfguard: Any, config: BlockConfig, backend: str | None = None, experts: bool = False, **mesh: int) -> None:
    whole = whole_of(config, perfguard.device)
    model = copy.deepcopy(whole)
    for layer in model.layers:
        (layer if config.moe is None else layer.moe).loop = False
    parallelize(model, perfguard.mesh(**mesh), backend=backend, expert_tensors=experts)
    place = perfguard.rank // mesh.get("tp", 1)
    ids = torch.randint(VOCAB, (2, TOKENS), generator=torch.Generator().manual_seed(place))
    perfguard(model, ids.to(perfguard.device), reference=whole, timed=False)


@pytest.mark.perfguard(ranks=2)
def test_data(perfguard: Any) -> None:
    guard(perfguard, DENSE, dp=2)


@pytest.mark.perfguard(ranks=2)
def test_experts(perfguard: Any) -> None:
    """All rows go to the first rank."""
    guard(perfguard, MOE, efsdp=1, ep=2)


@pytest.mark.perfguard(ranks=2)
def test_tensors(perfguard: Any) -> None:
    guard(perfguard, MOE, experts=True, efsdp=1, ep=1, tp=2)


@pytest.mark.perfguard(ranks=2)
def test_compiled(perfguard: Any) -> None:
    guard(perfguard, DENSE, "aot_eager", dp=1, tp=2)


@pytest.mark.perfguard(ranks=2)
def test_moe_compiled(perfguard: Any) -> None:
    guard(perfguard, MOE, "aot_eager", efsdp=1, ep=2)


def loss(logits: Tensor, ids: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), ids.roll(-1, 1).flatten())


def guard_step(perfguard: Any, **mesh: int) -> None:
    """The gradients of this rank's two stages in a step of DualPipeV, against the unstaged model's. An expert has
    those of all ranks' rows, summed."""
    from kernels.parallel.experts import shard_experts
    from kernels.parallel.pipeline import build_stages, dual_pipe_v

    torch.manual_seed(0)
    whole = Transformer([MOE] * 4, VOCAB, positions=TOKENS, loop=True, dtype=torch.float64).eval()
    model, ranks = copy.deepcopy(whole), perfguard.mesh(**mesh)
    for layer in model.layers:
        shard_experts(layer.moe, ranks["ep"])
    stages = build_stages(model, ranks["pp"].get_group())
    chunks, first = 4, ranks.get_local_rank("pp") == 0
    schedule = dual_pipe_v(stages, chunks, loss)
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
        grads = {name: weight.grad / chunks for name, weight in model.named_parameters()}
        for name in names:
            if ".experts." in name:
                torch.distributed.all_reduce(grads[name], group=ranks.get_group("ep"))
                grads[name] = grads[name].chunk(mesh["ep"])[ranks.get_local_rank("ep")]
        return tuple(grads[name] for name in names)

    generator = torch.Generator().manual_seed(ranks.get_local_rank("ep"))
    ids = torch.randint(VOCAB, (2 * chunks, TOKENS), generator=generator)
    perfguard(step, ids, reference=truth, timed=False)


@pytest.mark.perfguard(ranks=2)
def test_pipeline(perfguard: Any) -> None:
    guard_step(perfguard, pp=2, ep=1)


@pytest.mark.perfguard(ranks=2)
def test_moe_pipeline(perfguard: Any) -> None:
    """Each rank a pipeline of its own, whose two stages are the whole model; rows travel between the two."""
    guard_step(perfguard, pp=1, ep=2)
