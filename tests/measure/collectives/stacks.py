"""Small modules of several ranks, and their facts read in this process: on the fake backend, or in a gloo rank.

Shape suffixes: B rows of a rank, D width.
"""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from perfguard.measure.devices.vendors.cpu import CpuDevice
from perfguard.measure.metrics import collectives
from perfguard.measure.metrics.subject import Subject
from perfguard.model.call import Call
from perfguard.model.records import Pass, Value
from perfguard.ranks.rank_group import Unmarked
from perfguard.tensors.step import Step

D = 16


@contextlib.contextmanager
def fake_group(world: int, rank: int = 0) -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        dist.destroy_process_group()


class Block(nn.Module):
    """Two linears."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x_BD: Tensor) -> Tensor:
        y_BD: Tensor = self.down(torch.relu(self.up(x_BD)))
        return y_BD


def blocks(width: int = D, layers: int = 2) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Block(width) for _ in range(layers)))


def fsdp(mesh: DeviceMesh, *, width: int = D, reshard: bool = True, each: bool = False, how: str = "") -> nn.Module:
    """Blocks under FSDP, and the root.

    Args:
        each: every linear by itself.
        how: backend that blocks are compiled with.
    """
    stack = blocks(width)
    for block in stack:
        if how:
            block.compile(backend=how, fullgraph=True)
        for part in (block.up, block.down, block) if each else (block,):  # type: ignore[misc]
            fully_shard(part, mesh=mesh, reshard_after_forward=reshard)  # type: ignore[arg-type]
    return fully_shard(stack, mesh=mesh)


class Exchanged(nn.Module):
    """Rows to other ranks by a declared routing, a matmul there, and back."""

    def __init__(self, mesh: DeviceMesh, sent: list[int], received: list[int], wait: bool = True) -> None:
        super().__init__()
        self.group, self.sent, self.received, self.wait = mesh.get_group(), sent, received, wait
        self.weight_DD = nn.Parameter(torch.eye(D))

    def forward(self, x_BD: Tensor) -> Tensor:
        there = all_to_all_single_autograd(x_BD, self.received, self.sent, self.group) @ self.weight_DD
        if self.wait:
            return all_to_all_single_autograd(there, self.sent, self.received, self.group)
        raw = torch.ops._c10d_functional.all_to_all_single
        back: Tensor = raw(there.detach(), self.sent, self.received, self.group.group_name)
        return back * 2 + torch.ops._c10d_functional.wait_tensor(back)


class Normed(nn.Module):
    """A norm over the rows of a tensor that is sharded along them: DTensor gathers it by itself."""

    def __init__(self, mesh: DeviceMesh, shard: bool) -> None:
        super().__init__()
        self.mesh, self.shard = mesh, shard

    def forward(self, x_BD: Tensor) -> Tensor:
        x = distribute_tensor(x_BD, self.mesh, [Shard(1) if self.shard else Replicate()])
        return torch.nn.functional.layer_norm(x, (D,))


def call(module: Callable[..., Any], mesh: dict[str, int], rows: int = 8) -> Call:
    torch.manual_seed(1)
    inputs = (torch.randn(rows, D, requires_grad=True),)
    return replace(Unmarked("").given(Call(module, inputs, module)), mesh=mesh)


def facts(case: Call, direction: Pass = "forward") -> dict[str, Value]:
    """Metric -> value, of the second step."""
    step = Step(case, direction)
    step()
    return {each.metric: each.value for each in collectives.read(Subject(step, direction, call=case), CpuDevice())}


SIZES = {"dp": 2}


def all_facts() -> dict[str, Any]:
    """The facts of all these modules on two ranks, by name and pass."""
    mesh, rank = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",)), dist.get_rank()
    splits = [[3, 5], [4, 4]]
    sent, received = splits[rank], [row[rank] for row in splits]
    modules = {
        "fsdp": fsdp(mesh),
        "kept": fsdp(mesh, reshard=False),
        "exchanged": Exchanged(mesh, sent, received),
        "gathered": Normed(mesh, shard=True),
        "compiled": fsdp(mesh, how="aot_eager"),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Dynamo asks an inner tensor for its gradient
        return {
            f"{name}/{direction}": facts(call(module, SIZES), direction)
            for name, module in modules.items()
            for direction in ("forward", "backward")
        }


def in_rank(rank: int, folder: str, work: Callable[[], Any]) -> None:
    """One of two gloo ranks: writes what `work` returns."""
    store = dist.FileStore(str(Path(folder) / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    torch.save(work(), Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


def on_gloo(work: Callable[[], Any]) -> list[Any]:
    """What `work` returns on each of two gloo ranks."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(in_rank, (folder, work), nprocs=2)  # type: ignore[no-untyped-call]
        return [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(2)]
