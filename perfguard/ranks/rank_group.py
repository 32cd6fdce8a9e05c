"""The ranks that make a test's calls, by its mark; the process group of a test on several ranks, and its meshes."""

from __future__ import annotations

import datetime
import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from perfguard.model.call import ALONE, Call, Ranks
from perfguard.model.errors import MeasurementError, UsageError
from perfguard.model.mesh import mesh_call
from perfguard.pytest_plugin.items import mark_of

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh

# torchrun sets these variables, and so does perfguard's launch.
_RANK, _WORLD, _LOCAL, _RESTARTS = "RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RESTART_COUNT"
_ADDRESS = "MASTER_ADDR"

_BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl", "xpu": "cpu:gloo,xpu:xccl"}
# Collectives time out this much later than their test, because the watch of the test reports more.
_LATER_SECONDS = 60.0


def launch_environment(rank: int, ranks: int, host: str, port: int) -> dict[str, str]:
    """The variables of one rank of a launch on this host, whose parent has the store at `host` and `port`."""
    return {
        _RANK: str(rank), _LOCAL: str(rank), _WORLD: str(ranks), "LOCAL_WORLD_SIZE": str(ranks),
        _ADDRESS: host, "MASTER_PORT": str(port),
        _RESTARTS: "0", "TORCHELASTIC_RUN_ID": "perfguard", "TORCHELASTIC_USE_AGENT_STORE": "True",
    }  # fmt: skip


def ranks_here() -> int:
    """Number of ranks that torchrun has started; 0 if this process is not one of them. Schedulers and users set some of
    these variables for other purposes, so all must be set."""
    return _number(_WORLD) if os.environ.get(_RANK, "").isdecimal() and _ADDRESS in os.environ else 0


def rank_here() -> int:
    """This process's rank; 0 if torchrun has not started it."""
    return _number(_RANK)


def local_rank() -> int:
    """This process's number among the ranks of its host."""
    return _number(_LOCAL)


def _number(variable: str) -> int:
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else 0


RANK_GUARD = pytest.StashKey[Ranks]()  # Set in a process that is one of several ranks.


@contextmanager
def ranks_of(item: pytest.Item) -> Iterator[Ranks]:
    """The ranks of a test, while it runs. This loads torch only for a marked test.

    Raises:
        UsageError: it is marked for several ranks, and this process is none of them.
    """
    mark = mark_of(item)
    if mark.ranks:
        guard = item.config.stash.get(RANK_GUARD, None)
        if guard is None:
            raise UsageError(
                f"{item.nodeid}: runs on {mark.ranks} ranks, and this process is none of them; let pytest run it"
            )
        yield guard
    elif mark.layout:
        from perfguard.ranks.layout import layout_of

        with layout_of(mark.layout) as layout:
            yield layout
    else:
        yield Unmarked(item.nodeid)


class Unmarked(Ranks):
    """One process, unless the test has begun a process group of its own when it makes its call."""

    def __init__(self, test: str) -> None:
        self.test = test

    def given(self, call: Call) -> Call:
        distributed = sys.modules.get("torch.distributed")
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            return ALONE.given(call)
        group = InGroup()
        group.has_data = distributed.get_backend() != "fake"
        return group.given(call)


class InGroup(Ranks):
    """The ranks of a process group."""

    alone = False

    def check(self, call: Call) -> Any:
        """That of a module over several ranks. A function that ranks call in step is checked on each of them."""
        import torch

        from perfguard.ranks.sharded import check_sharded

        return None if self.in_step and not isinstance(call.fn, torch.nn.Module) else check_sharded(call)


@dataclass
class RankGroup(InGroup):
    """The process group of a test that is marked for several ranks, on one of them.

    Attributes:
        device_type: cpu, cuda or xpu.
        store: shared by all ranks; perfguard's own messages pass through it, so that it adds no collective to the
            test's.
        minutes: limit of a test.
        dimensions: those of the running test's latest mesh; all ranks in one dimension if it made none.
    """

    rank: int = field()  # Without the default of a process alone.
    ranks: int = field()
    device_type: str
    store: Any  # torch.distributed.Store
    minutes: float
    dimensions: Mapping[str, int] = field(default_factory=dict)
    _began: int = 0
    _meshes: dict[tuple[tuple[str, int], ...], DeviceMesh] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.enter_test()

    def enter_test(self) -> None:
        """Begin a test, which has made no mesh yet."""
        self.dimensions = {"ranks": self.ranks}

    def begin(self) -> None:
        """Begin the default process group, or a new one in place of one whose ranks are out of step."""
        import torch.distributed as dist

        self.end()
        self._began += 1
        dist.init_process_group(
            _BACKENDS[self.device_type],
            store=_prefixed(f"group-{self._began}", self.store),
            rank=self.rank,
            world_size=self.ranks,
            timeout=_limit(self.minutes),
        )

    def end(self) -> None:
        """End the process group, if there is one."""
        import torch.distributed as dist

        self._meshes.clear()
        if dist.is_initialized():
            dist.destroy_process_group()

    def mesh(self, dimensions: Mapping[str, int]) -> DeviceMesh:
        """The same object for the same dimensions, whose groups are made once."""
        from torch.distributed.device_mesh import init_device_mesh

        _check(dimensions, self.ranks, f"ranks={self.ranks}")
        key = tuple(dimensions.items())
        self.dimensions = dict(dimensions)
        if key not in self._meshes:
            self._meshes[key] = init_device_mesh(
                self.device_type, tuple(dimensions.values()), mesh_dim_names=tuple(dimensions)
            )
        return self._meshes[key]


END = "the end of the test"


class OutOfStep(MeasurementError):
    """Another rank is elsewhere in the test: at its end, or at another decision."""


@dataclass
class Peers(RankGroup):
    """All ranks of a test, with which this one exchanges data, so that all take the same decisions.

    Each rank puts its part into the store of the launch, and takes the parts of the others. No collective is issued.
    Exchanges have the same numbers on all ranks.
    """

    in_step = True
    _number: int = 0

    def exchange(self, purpose: str, data: object = None) -> list[Any]:
        """The data of all ranks, once every rank has given its part.

        Raises:
            OutOfStep: a rank exchanges for another purpose.
            DistStoreError: a rank does not come within the limit of a test.
        """
        parts = self._parts(purpose, data)
        if purpose == END:  # Another rank may learn only now that this one has ended.
            while any(theirs != END for theirs, _ in parts):
                parts = self._parts(purpose, data)
        for rank, (theirs, _) in enumerate(parts):
            if theirs != purpose:
                raise OutOfStep(
                    f"rank {rank} is at {theirs}, rank {self.rank} at {purpose}; every rank must make the same calls"
                )
        return [data for _, data in parts]

    def _parts(self, purpose: str, data: object) -> list[tuple[str, Any]]:
        """The purpose and the data of each rank."""
        import msgspec

        number, store = self._number, self.store
        keys = [f"part-{number}-{rank}" for rank in range(self.ranks)]
        store.set(keys[self.rank], msgspec.json.encode((purpose, data)))
        store.wait(keys)
        parts = [msgspec.json.decode(part, type=tuple[str, Any]) for part in store.multi_get(keys)]
        if number:  # Every rank has begun this exchange, so it has read the one before.
            store.delete_key(f"part-{number - 1}-{self.rank}")
        self._number += 1
        return parts


def meet(device: torch.device, minutes: float) -> tuple[int, int, str, Any, float]:
    """Find the other ranks of the launch: the first arguments of a `RankGroup`.

    Args:
        device: this rank's.
        minutes: limit of a test.
    """
    import torch
    from torch.distributed.rendezvous import rendezvous

    store, rank, ranks = next(rendezvous("env://", timeout=_limit(minutes)))
    if device.type != "cpu":
        torch.accelerator.set_device_index(device)
    return rank, ranks, device.type, _prefixed(f"perfguard-{os.environ.get(_RESTARTS, 0)}", store), minutes


def _prefixed(prefix: str, store: Any) -> Any:
    """The part of a store whose keys begin with `prefix`."""
    import torch.distributed as dist

    return dist.PrefixStore(prefix, store)  # type: ignore[attr-defined]  # Public, but not in torch's stubs.


def _check(dimensions: Mapping[str, int], ranks: int, marked: str) -> None:
    given = mesh_call(dimensions)
    if not dimensions:
        raise UsageError("perfguard.mesh(): give its dimensions, as mesh(dp=2, tp=2)")
    for name, size in dimensions.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise UsageError(f"{given}: {name} must be a number of ranks, 1 or more")
    product = math.prod(dimensions.values())
    if product != ranks:
        raise UsageError(f"{given}: has {product} ranks, the test's mark {marked}; let them agree")


def _limit(minutes: float) -> datetime.timedelta:
    return datetime.timedelta(minutes=minutes, seconds=_LATER_SECONDS)
