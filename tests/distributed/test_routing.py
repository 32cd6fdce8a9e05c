"""A model whose experts lie on two ranks, against the whole one, for every way in which rows may be routed.

Ranks without a token take part in each exchange, and their gradients are zero.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh

from kernels.layers import BlockConfig, MoEBlock, Transformer
from kernels.moe import MoEConfig
from kernels.moe.shapes import set_load
from kernels.parallel.model import parallelize
from perfguard.model.call import Call
from perfguard.ranks.sharded import check_sharded
from tests.distributed.ranks import Ranks

VOCAB, TOKENS = 50, 12

# How rows are spread over experts, and the sequences and positions of each rank.
ROUTINGS = {
    "balanced": ("balanced", ((2, TOKENS), (2, TOKENS))),
    "learned": ("learned", ((2, TOKENS), (2, TOKENS))),
    "all to one rank": ("hot", ((2, TOKENS), (2, TOKENS))),
    "different numbers of tokens": ("learned", ((2, TOKENS), (1, 5))),
    "one token": ("learned", ((1, 1), (1, 1))),
    "a rank without tokens": ("learned", ((0, TOKENS), (2, TOKENS))),
    "all to a rank without tokens": ("hot", ((0, TOKENS), (2, TOKENS))),
}


def checked(rank: int, ranks: int, routing: str) -> list[str]:
    """What is wrong, in float64."""
    load, shapes = ROUTINGS[routing]
    torch.manual_seed(0)
    moe = MoEConfig(dim=32, hidden=16, experts=4, top_k=2, shared=1, balanced=load == "balanced")
    block = BlockConfig(dim=32, heads=4, kv_heads=2, moe=moe)
    whole = Transformer([block] * 2, VOCAB, positions=TOKENS, loop=True, dtype=torch.float64).eval()
    with torch.no_grad():
        for weight in whole.parameters():
            if weight.ndim > 1:  # as drawn, blocks hardly change their input
                weight.mul_(6)
    for layer in whole.layers:
        if load == "hot" and isinstance(layer, MoEBlock):
            set_load(layer.moe, "hot")
    model = copy.deepcopy(whole)
    parallelize(model, init_device_mesh("cpu", (1, ranks), mesh_dim_names=("efsdp", "ep")))
    generator = torch.Generator().manual_seed(rank)
    ids = torch.randint(VOCAB, shapes[rank], generator=generator)
    return check_sharded(Call(model, (ids,), whole, mesh={"efsdp": 1, "ep": ranks})).wrong


@pytest.mark.parametrize("routing", ROUTINGS)
def test_outputs_and_gradients_are_those_of_the_whole_model(two_ranks: Ranks, routing: str) -> None:
    assert two_ranks.run(checked, routing) == [[], []]
