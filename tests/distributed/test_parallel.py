"""Blocks over several ranks against the same blocks on one: every gradient, and which collectives were called.

The oracle is the unsharded model in float64 on the batches of all ranks, its loss a mean over them. What is wrong by a
scale, an expert's gradient divided by the wrong number of ranks for one, shows in the ratio of gradients, where it is
an integer or one over it.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import io
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.layers import BlockConfig, Transformer
from kernels.moe import MoEConfig
from kernels.parallel.model import parallelize
from tests.distributed.ranks import Ranks
from tests.distributed.sharded_cases import BLOCKS, MOE, TOKENS, VOCAB, on_own_mesh
from tests.measure.collectives.stacks import fake_group


@dataclass(frozen=True)
class Case:
    """Two blocks on a mesh, and the collectives of each pass by their kind."""

    kind: str
    mesh: Mapping[str, int]
    forward: Mapping[str, int]
    backward: Mapping[str, int]
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        names = [f"{name}{size}" for name, size in self.mesh.items()]
        return "-".join([self.kind, *names, *self.options])


# Of each block FSDP2 gathers one group of weights in each pass, and reduces one; of the root once, in forward.
FSDP = ({"allgather": 3}, {"allgather": 2, "reduce_scatter": 3})
ROWS = ({"all_to_all": 6}, {"all_to_all": 4})  # of each block counts, and rows there and back; rows alone in backward
TWICE = ({"all_reduce": 4}, {"all_reduce": 4})  # of each block attention and feed-forward
THRICE = ({"all_reduce": 6}, {"all_reduce": 6})  # and experts


def both(*laws: tuple[Mapping[str, int], Mapping[str, int]]) -> tuple[dict[str, int], dict[str, int]]:
    forward, backward = ({kind: count for law in laws for kind, count in law[side].items()} for side in (0, 1))
    return forward, backward


TWO = [
    Case("dense", {"dp": 2}, *FSDP),
    Case("moe", {"dp": 2}, *FSDP),
    Case("moe", {"efsdp": 1, "ep": 2}, *both(FSDP, ROWS)),
    Case("dense", {"dp": 1, "tp": 2}, *TWICE),
    Case("moe", {"dp": 1, "tp": 2}, *TWICE),
    Case("moe", {"efsdp": 1, "ep": 1, "tp": 2}, *THRICE, {"expert_tensors": True}),
    Case("moe", {"dp": 2}, *both(FSDP, ({}, {"allgather": 0})), {"reshard_after_forward": False}),
]
FOUR = [
    # Two groups of weights a block: experts on their own ranks.
    Case("moe", {"efsdp": 2, "ep": 2}, *both(FSDP, ROWS, ({"allgather": 5}, {"allgather": 4, "reduce_scatter": 5}))),
    Case("moe", {"efsdp": 1, "ep": 4}, *both(FSDP, ROWS)),
    Case("dense", {"dp": 2, "tp": 2}, *both(FSDP, TWICE)),
    Case("moe", {"efsdp": 1, "ep": 2, "tp": 2}, *both(FSDP, ROWS, TWICE)),
    Case("moe", {"efsdp": 1, "ep": 2, "tp": 2}, *both(FSDP, ROWS, THRICE), {"expert_tensors": True}),
]
KINDS = ("allgather", "reduce_scatter", "all_to_all", "all_reduce")


class Collectives(TorchDispatchMode):
    """Counts them, of eager and of compiled code; those inside of a DTensor's operators, too."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    @classmethod
    def is_infra_mode(cls) -> bool:
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(each.__name__ in ("DTensor", "AsyncCollectiveTensor") for each in types):
            return NotImplemented
        if "c10d" in str(func) and "wait" not in str(func):
            self.seen.update(kind for kind in KINDS if kind in str(func))
        return func(*args, **(kwargs or {}))


def model_of(case: Case, dtype: torch.dtype, loop: bool) -> Transformer:
    torch.manual_seed(0)
    model = Transformer([BLOCKS[case.kind]] * 2, VOCAB, positions=TOKENS, loop=loop, dtype=dtype)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:  # as drawn, blocks hardly change their input
                weight.mul_(6)
    return model


def loss(model: nn.Module, place: int) -> Tensor:
    """Of the batch of one data-parallel place; ranks of one place have the same."""
    ids = torch.randint(VOCAB, (2, TOKENS), generator=torch.Generator().manual_seed(place))
    return F.cross_entropy(model(ids).flatten(0, 1).double(), ids.roll(-1, 1).flatten())


def compared(rank: int, ranks: int, case: Case, compiled: bool) -> dict[str, Any]:
    """In float64, experts one by one; compiled in bf16, experts together."""
    dtype = torch.bfloat16 if compiled else torch.float64
    whole = model_of(case, dtype, loop=not compiled)
    model = copy.deepcopy(whole)
    mesh = init_device_mesh("cpu", tuple(case.mesh.values()), mesh_dim_names=tuple(case.mesh))
    graphs = 0

    def counting(graph: Any, inputs: Any) -> Any:
        nonlocal graphs
        graphs += 1
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    torch._dynamo.reset()
    parallelize(model, mesh, backend=counting if compiled else None, **case.options)
    copies = case.mesh.get("tp", 1)
    for _ in range(2):  # the first call makes what the second one finds
        model.zero_grad()
        with Collectives() as forward:
            total = loss(model, rank // copies)
        with Collectives() as backward:
            total.backward()
    sum(loss(whole, place) for place in range(ranks // copies)).div(ranks // copies).backward()
    ratios, errors = {}, {}
    for (name, weight), wanted in zip(model.named_parameters(), whole.parameters(), strict=True):
        with contextlib.redirect_stderr(io.StringIO()):
            found = gathered(weight.grad).double()
        oracle = wanted.grad.double()
        ratios[name] = float((found * oracle).sum() / oracle.square().sum())
        errors[name] = float((found - oracle).norm() / oracle.norm())
    return {"ratios": ratios, "errors": errors, "graphs": graphs, "passes": (forward.seen, backward.seen)}


def gathered(gradient: Any) -> Tensor:
    return gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient


def check(case: Case, found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert rank["passes"] == (Counter(case.forward), Counter(case.backward))
    assert all(rank == found[0] for rank in found), "ranks differ"


def eager(group: Ranks, case: Case) -> None:
    found = group.run(compared, case, False)
    check(case, found)
    for name, ratio in found[0]["ratios"].items():
        assert abs(ratio - 1) < 1e-12, f"{name}: the gradient is {ratio} times the oracle's"
    assert max(found[0]["errors"].values()) < 1e-13


def compiled(group: Ranks, case: Case) -> None:
    found = group.run(compared, case, True)
    check(case, found)
    assert found[0]["graphs"] == 1, "two equal blocks share a graph"
    assert all(abs(ratio - 1) < 0.02 for ratio in found[0]["ratios"].values())  # a wrong scale is 2 or 1/2


@pytest.mark.parametrize("case", TWO, ids=str)
def test_gradients_and_collectives_on_two_ranks(two_ranks: Ranks, case: Case) -> None:
    eager(two_ranks, case)


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[] if "ep" in case.mesh else [pytest.mark.nightly]) for case in TWO[:-1]], ids=str
)
def test_compiled_blocks_on_two_ranks(two_ranks: Ranks, case: Case) -> None:
    compiled(two_ranks, case)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[on_own_mesh] if case.mesh.get("efsdp", 1) > 1 else []) for case in FOUR], ids=str
)
def test_four_ranks(four_ranks: Ranks, case: Case) -> None:
    eager(four_ranks, case)
    compiled(four_ranks, case)


@on_own_mesh
@pytest.mark.parametrize(("ranks", "ep", "dim"), [(64, 8, 0), (256, 64, 1)])
def test_experts_are_never_padded(ranks: int, ep: int, dim: int) -> None:
    """An expert alone on 4 ranks would be gathered as 4, of which 3 are padding."""
    with fake_group(ranks, ranks - 1):
        mesh = init_device_mesh("cpu", (ranks // ep, ep), mesh_dim_names=("efsdp", "ep"))
        moe = MoEConfig(dim=64, hidden=32, experts=64, top_k=2, balanced=True)
        with FakeTensorMode():
            model = Transformer([BlockConfig(dim=64, heads=4, moe=moe)], VOCAB, positions=32, dtype=torch.bfloat16)
            parallelize(model, mesh)
            w1 = model.layers[0].moe.experts.w1
            assert w1.placements[0].dim == dim
            assert w1.to_local().numel() * ranks == 64 * 32 * 64
            with Collectives() as forward:
                total = model(torch.zeros(1, 32, dtype=torch.int64)).sum()
            total.backward()
        assert forward.seen == Counter(allgather=3, all_to_all=3)


def test_names_what_a_mesh_may_be(two_ranks: Ranks) -> None:
    assert (
        two_ranks.run(refused)
        == [
            [
                "mesh: has dimensions ('tp', 'dp'); may have dp, or efsdp and ep, and then tp",
                "w1: is 3 long at dimension 0 for 2 ranks; give a multiple",
                "attention: has 1 heads of keys for 2 ranks; give a multiple",
            ]
        ]
        * 2
    )


def refused(rank: int, ranks: int) -> list[str]:
    experts = dataclasses.replace(MOE, experts=3)
    said = []
    for block, names, sizes in (
        (BLOCKS["dense"], ("tp", "dp"), (1, 2)),
        (BlockConfig(dim=32, heads=4, moe=experts), ("efsdp", "ep"), (1, 2)),
        (BlockConfig(dim=32, heads=4, kv_heads=1, hidden=48), ("dp", "tp"), (1, 2)),
    ):
        model = Transformer([block], VOCAB, positions=TOKENS)
        with pytest.raises(ValueError) as caught:
            parallelize(model, init_device_mesh("cpu", sizes, mesh_dim_names=names))
        said.append(str(caught.value))
    return said
