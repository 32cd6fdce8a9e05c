"""Records the exchanges among the operators of a call, with the flop that hide each exchange, and missing waits.

These facts depend on no clock and no backend: gloo, NCCL and torch's fake backend give the same, eager or compiled.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from perfguard._compat import torch_distributed
from perfguard._compat.torch_internals import schema_of, storage_address
from perfguard.measure.devices.activity import Exchange
from perfguard.model.call import Call
from perfguard.model.mesh import dimension_of
from perfguard.tensors.autograd_graph import tree_tensors
from perfguard.tensors.user_frames import place_in_python

if TYPE_CHECKING:
    from perfguard._compat.torch_internals import OpOverload

# Namespaces of the operators that exchange data, and of FSDP's copies around them.
_NAMESPACES = {"c10d", "_c10d_functional", "fsdp"}

# Operator -> kind. In-place, coalesced and `_base_` forms move the same data.
_KINDS = {
    "all_gather_into_tensor": "all_gather", "all_gather_into_tensor_out": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather", "_allgather_base_": "all_gather", "allgather_": "all_gather",
    "allgather_coalesced_": "all_gather", "allgather_into_tensor_coalesced_": "all_gather",
    "all_reduce": "all_reduce", "all_reduce_": "all_reduce", "all_reduce_coalesced": "all_reduce",
    "all_reduce_coalesced_": "all_reduce", "allreduce_": "all_reduce", "allreduce_coalesced_": "all_reduce",
    "all_to_all_single": "all_to_all", "alltoall_": "all_to_all", "alltoall_base_": "all_to_all",
    "barrier": "barrier", "monitored_barrier_": "barrier",
    "broadcast": "broadcast", "broadcast_": "broadcast", "gather_": "gather", "reduce_": "reduce",
    "_reduce_scatter_base_": "reduce_scatter", "reduce_scatter_": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter", "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter", "scatter_": "scatter",
    "recv_": "recv", "recv_any_source_": "recv", "send": "send",
}  # fmt: skip
_BOOKKEEPING = "_wrap_tensor_autograd"
_WAIT = "wait_tensor"


@dataclass(frozen=True, eq=False)
class _Launch:
    """An exchange under way: the flop issued before it, and whether its wait is an operator."""

    exchange: Exchange
    flop: int
    functional: bool


class ExchangeRecorder:
    """Records exchanges from the operators of a call, in order. The call's mesh names the groups."""

    def __init__(self, call: Call) -> None:
        self._mesh = call.mesh
        self.exchanges: list[Exchange] = []
        self.flop = 0
        self._implicit = ""  # the operator for which DTensor is moving data
        self._pending: dict[int, _Launch] = {}  # The key is the address of the result's storage.
        self._flop_of = torch_distributed.flop_formulas()

    @contextmanager
    def following(self) -> Iterator[None]:
        """Mark exchanges that DTensor makes by itself while inside."""
        with torch_distributed.implicit_redistributions(self._entering):
            yield
        for launch in self._pending.values():  # These results are not used in this pass.
            self._end(launch)
        self._pending.clear()

    def _entering(self, operator: str) -> None:
        self._implicit = operator

    def exchanges_by(self, func: OpOverload[..., Any]) -> bool:
        """Whether an operator exchanges data, or is one of FSDP's copies around an exchange."""
        return func.namespace in _NAMESPACES

    def run(self, func: OpOverload[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run an operator of `exchanges_by`, and record it if it is an exchange."""
        self.used(func, tree_tensors((args, kwargs)))
        results = func(*args, **kwargs)
        if _name(func) in _KINDS:
            self._record(func, args, kwargs, results)
        return results

    def used(self, func: OpOverload[..., Any], given: Sequence[torch.Tensor]) -> None:
        """Note the first use of pending results: a wait, or any operator that reads or writes them."""
        name = _name(func)
        if not self._pending or name == _BOOKKEEPING or func.is_view:
            return
        for tensor in given:
            launch = self._pending.pop(storage_address(tensor), None)
            if launch is not None:
                self._end(launch, waited=name == _WAIT)

    def _end(self, launch: _Launch, waited: bool | None = None) -> None:
        """End the overlap of `launch`: its result is used now. With `waited` None it may be waited for later."""
        launch.exchange.overlap_flop = self.flop - launch.flop
        if launch.functional:
            launch.exchange.waited = waited

    def count(
        self, func: OpOverload[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], results: object
    ) -> None:
        """Add the flop of an operator that has run."""
        formula = self._flop_of.get(func.overloadpacket)
        if formula is not None:
            self.flop += int(formula(*args, **kwargs, out_val=results))

    def _record(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], results: object) -> None:
        names = [argument.name for argument in schema_of(func).arguments]
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        functional = func.namespace == "_c10d_functional"
        outputs = [value for name, value in given.items() if name.startswith(("output", "out"))]
        inputs = [value for name, value in given.items() if name.startswith(("input", "tensor", "self"))]
        received = tree_tensors(results if functional else outputs or inputs)
        sent = tree_tensors(inputs)
        kind = _KINDS[_name(func)]
        group = given.get("group_name", given.get("process_group"))
        exchange = Exchange(
            kind=kind,
            dimension=dimension_of(dist.get_process_group_ranks(torch_distributed.group_of(group)), self._mesh),
            dtype=str((sent or received)[0].dtype).removeprefix("torch.") if sent or received else "",
            sent=0 if kind in ("recv", "barrier") else _bytes(sent),
            received=0 if kind in ("send", "barrier") else _bytes(received),
            place=place_in_python(),
            implicit=self._implicit,
        )
        self.exchanges.append(exchange)
        for tensor in received if kind != "barrier" else ():
            address = storage_address(tensor)
            launch = self._pending[address] = _Launch(exchange, self.flop, functional)
            weakref.finalize(tensor.untyped_storage(), self._freed, address, launch).atexit = False

    def _freed(self, address: int, launch: _Launch) -> None:
        """Forget an unused result whose storage is freed, because another storage may get its address."""
        if self._pending.get(address) is launch:
            self._end(self._pending.pop(address), waited=False)


def _name(func: OpOverload[..., Any]) -> str:
    """The operator's name, e.g. `all_reduce`, if it is of these namespaces; empty for others."""
    return str(func.overloadpacket).partition(".")[2] if func.namespace in _NAMESPACES else ""


def _bytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(int(tensor.numel()) * tensor.itemsize for tensor in tensors)
