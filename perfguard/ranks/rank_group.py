"""The ranks that make a test's calls, according to its mark; their process group, its meshes, and their exchanges.

In a layout one process acts as one rank of many. Its collectives return at once, and its tensors have no data. Thus the
exchanges of the ranks are read in seconds, at the model's true widths. The test declares everything that depends on
data, such as the number of rows for each rank, because tensors cannot be read.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from perfguard._compat import torch_distributed
from perfguard.judge.across_ranks import with_ranks
from perfguard.model.call import ALONE, Call, Ranks
from perfguard.model.errors import MeasurementError, UsageError, WrongResult
from perfguard.model.mesh import mesh_call
from perfguard.pytest_plugin.items import mark_of

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh

    from perfguard.model.records import Case, CaseResult
    from perfguard.session.case_pipeline import Runner

# Both torchrun and perfguard's launch set these variables.
_RANK, _WORLD, _LOCAL, _RESTARTS = "RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RESTART_COUNT"
_ADDRESS = "MASTER_ADDR"

_BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl", "xpu": "cpu:gloo,xpu:xccl"}
# The timeout of a collective exceeds the limit of a test by this, because the watch of the test reports more.
_LATER_SECONDS = 60.0


def launch_environment(rank: int, ranks: int, host: str, port: int) -> dict[str, str]:
    """The environment variables of one rank of a launch on this host. The parent has the store at `host` and `port`."""
    return {
        _RANK: str(rank), _LOCAL: str(rank), _WORLD: str(ranks), "LOCAL_WORLD_SIZE": str(ranks),
        _ADDRESS: host, "MASTER_PORT": str(port),
        _RESTARTS: "0", "TORCHELASTIC_RUN_ID": "perfguard", "TORCHELASTIC_USE_AGENT_STORE": "True",
    }  # fmt: skip


def ranks_here() -> int:
    """Number of ranks of the launch; 0 if this process is none of them. All variables must be set, because schedulers
    and users set some of them for other purposes."""
    return _number(_WORLD) if os.environ.get(_RANK, "").isdecimal() and _ADDRESS in os.environ else 0


def rank_here() -> int:
    """This process's rank; 0 outside of a launch."""
    return _number(_RANK)


def local_rank() -> int:
    """This process's number among the ranks of its host."""
    return _number(_LOCAL)


def _number(variable: str) -> int:
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else 0


RANK_GUARD = pytest.StashKey[Ranks]()  # It is set in a process that is one of several ranks.


@contextmanager
def ranks_of(item: pytest.Item) -> Iterator[Ranks]:
    """The ranks of a test, while it runs. Torch is loaded only for a marked test.

    Raises:
        UsageError: the test is marked for several ranks, and this process is none of them.
    """
    mark = mark_of(item)
    if mark.ranks:
        guard = item.config.stash.get(RANK_GUARD, None)
        if guard is None:
            raise UsageError(
                f"{item.nodeid}: runs on {mark.ranks} ranks, and this process is none of them; run it with pytest"
            )
        yield guard
    elif mark.layout:
        with layout_of(mark.layout) as layout:
            yield layout
    else:
        yield Unmarked(item.nodeid)


class Unmarked(Ranks):
    """One process alone, unless the test itself has begun a process group before its call."""

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
        """The check of a module over several ranks; None for a function that all ranks call, which each rank checks."""
        import torch

        from perfguard.ranks.sharded import check_sharded

        return None if self.in_step and not isinstance(call.fn, torch.nn.Module) else check_sharded(call)


@dataclass
class RankGroup(InGroup):
    """The process group of a test that is marked for several ranks, on one of them.

    Attributes:
        device_type: cpu, cuda or xpu.
        store: a store that all ranks share. It carries perfguard's own messages, so that perfguard adds no collective
            to those of the test.
        minutes: limit of a test.
        dimensions: the dimensions of the running test's latest mesh; one dimension of all ranks if it has made none.
    """

    rank: int = field()  # This removes the default of `Ranks`.
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
        """Begin a test."""
        self.dimensions = {"ranks": self.ranks}

    def begin(self) -> None:
        """Begin the default process group, in place of one whose ranks are out of step."""
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
        """The mesh of these dimensions. Equal dimensions give the same object, so groups are made once."""
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
    """Another rank is at another exchange, or at the end of the test."""


@dataclass
class RankGuard(RankGroup):
    """The ranks of a launch. Each of them guards the calls of a test, and all take the same decisions.

    For that each rank puts its part of an exchange into the store of the launch, and takes the parts of the others. No
    collective is issued. Exchanges have the same numbers on all ranks.

    Attributes:
        runner: reads metrics; if None, calls are only checked.
        extra_seconds: processor time for other configurations of a call that is only checked.
        results: results of the running test's calls.
        reason: the reason why this hardware cannot run the test; empty if it can.
    """

    in_step = True
    runner: Runner | None = None
    extra_seconds: float = 0.0
    results: list[CaseResult] = field(default_factory=list)
    reason: str = ""
    _number: int = 0

    def enter_test(self) -> None:
        super().enter_test()
        self.results, self.reason = [], ""

    def unsupported(self, reason: str) -> None:
        self.reason = reason

    def given(self, call: Call) -> Call:
        """The call without derived inputs, because ranks could derive different ones, and without its work, because the
        throughput of a rank is not that of the call."""
        return replace(super().given(call), hard=None, work=None)

    def guard(self, call: Call, case: Case) -> bool:
        """Check and measure `call`, which every rank makes.

        Raises:
            WrongResult: the run only checks, and the result is wrong on any rank. A measuring run judges later.
        """
        __tracebackhide__ = True
        if self.runner is not None:
            self.results += self.runner.measure(call, case)
            return True
        from perfguard.check.hard_inputs.search import wrong_of

        problems = with_ranks(self.exchange("the check's problems", wrong_of(call, self.extra_seconds)))
        if problems:
            raise WrongResult("\n".join([f"{case.name} is WRONG", *problems]))
        return True

    def exchange(self, purpose: str, data: object = None) -> list[Any]:
        """Wait for the parts of all ranks; returns them by rank.

        Raises:
            OutOfStep: a rank is at an exchange with another purpose.
            DistStoreError: a rank does not exchange within the limit of a test.
        """
        parts = self._parts(purpose, data)
        if purpose == END:  # Another rank may only now receive the end of this one.
            while any(theirs != END for theirs, _ in parts):
                parts = self._parts(purpose, data)
        for rank, (theirs, _) in enumerate(parts):
            if theirs != purpose:
                raise OutOfStep(
                    f"rank {rank} is at {theirs}, rank {self.rank} at {purpose}; every rank must make the same calls"
                )
        return [data for _, data in parts]

    def _parts(self, purpose: str, data: object) -> list[tuple[str, Any]]:
        """Purpose and data of each rank."""
        import msgspec

        number, store = self._number, self.store
        keys = [f"part-{number}-{rank}" for rank in range(self.ranks)]
        store.set(keys[self.rank], msgspec.json.encode((purpose, data)))
        store.wait(keys)
        parts = [msgspec.json.decode(part, type=tuple[str, Any]) for part in store.multi_get(keys)]
        if number:  # Every rank has begun this exchange, so it has read the previous one.
            store.delete_key(f"part-{number - 1}-{self.rank}")
        self._number += 1
        return parts


def meet(device: torch.device, minutes: float) -> tuple[int, int, str, Any, float]:
    """Find the other ranks of the launch; returns the first arguments of a `RankGroup`. `device` belongs to this rank,
    and `minutes` is the limit of a test."""
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
        raise UsageError(f"{given}: has {product} ranks, but the test's mark has {marked}; make them equal")


def _limit(minutes: float) -> datetime.timedelta:
    return datetime.timedelta(minutes=minutes, seconds=_LATER_SECONDS)


# -- layouts -----------------------------------------------------------------------------------------------------------


@dataclass
class Layout(RankGroup):
    """The ranks of a layout. Create it with `layout_of`.

    Attributes:
        without_data: holds the mode in which tensors have no data. The first mesh enters the mode.
    """

    has_data = False
    without_data: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def given(self, call: Call) -> Call:
        """The call without times and derived inputs, because its tensors have no data."""
        return replace(super().given(call), timed=False, hard=None)

    def mesh(self, dimensions: Mapping[str, int]) -> DeviceMesh:
        """The mesh, as in any group. Tensors made after this have no data."""
        first = not self._meshes
        with torch_distributed.without_modes():  # A mesh stores its ranks in tensors, which need data.
            mesh = super().mesh(dimensions)
        if first:
            self.without_data.enter_context(torch_distributed.tensors_without_data())
        return mesh


@contextlib.contextmanager
def layout_of(ranks: int, rank: int = 0) -> Iterator[Layout]:
    """This process as one of `ranks` ranks, on torch's backend "fake".

    Raises:
        UsageError: the process already has a process group.
    """
    import torch.distributed as dist

    if dist.is_initialized():
        raise UsageError("layout=…: this process has a process group already; destroy it before the test")
    store = torch_distributed.fake_store()
    dist.init_process_group("fake", store=store, rank=rank, world_size=ranks)
    layout = Layout(rank, ranks, "cpu", store, 0.0)
    try:
        with layout.without_data:
            yield layout
    finally:
        dist.destroy_process_group()
        torch_distributed.forget_shardings()  # They name destroyed groups, and later groups reuse the names.
