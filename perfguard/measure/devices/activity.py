"""A device's report on one call or one observed test: the work that it started, and its memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Copied:
    """Copies of one kind."""

    name: str
    bytes: int = 0  # the moved bytes; 0 if unknown
    place: str = ""  # the line of Python that caused them, if known
    count: int = 1


@dataclass(frozen=True)
class Waited:
    """Waits of the host for the device, or reads of a tensor's data by the host."""

    name: str  # the operator or the runtime's function, e.g. `aten._local_scalar_dense`
    place: str = ""  # the line of Python that caused them, e.g. `moe/dispatch.py:57 in counts`, if known
    count: int = 1


@dataclass
class Exchange:
    """A collective, or a message from rank to rank.

    Attributes:
        kind: "all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "send", …
        dimension: the dimension of the mesh that its group spans (`model.mesh.dimension_of`).
        dtype: the dtype of its elements.
        sent, received: bytes of this rank's input and output, including the part that stays on the rank.
        place: the line of Python that caused it; empty if no line did.
        implicit: the operator for which DTensor moved data by itself; empty for other exchanges.
        overlap_flop: floating-point operations issued between its launch and the first use of its result.
        waited: whether the result was waited for before its first use; False also if it was dropped without a wait.
            None if unknown: the wait is no operator (FSDP's own gathers), or the result was not used within the pass.
    """

    kind: str
    dimension: str
    dtype: str
    sent: int
    received: int
    place: str = ""
    implicit: str = ""
    overlap_flop: int = 0
    waited: bool | None = None

    @property
    def name(self) -> str:
        """`all_gather efsdp float32`."""
        return f"{self.kind} {self.dimension} {self.dtype}"

    @property
    def bytes(self) -> int:
        """Bytes of the whole buffer, equal on all ranks: the output of an all_gather, the input of a reduce_scatter. In
        a scatter or a gather only one rank has the whole buffer, so this is the part of a rank."""
        return {"scatter": self.received, "gather": self.sent}.get(self.kind, max(self.sent, self.received))

    @property
    def routed(self) -> bool:
        """Whether the number of bytes may depend on the data, so that ranks differ."""
        return self.kind == "all_to_all"


@dataclass(frozen=True)
class Activity:
    """The work that one call started, in order, or the counts of the work that one test started.

    Attributes:
        launches: names of kernels, copies and fills on a device with a queue, or of dispatched operators on a CPU. A
            test always has operators, with their counts.
        copies: the launches that only move bytes: transfers, and layout or dtype copies.
        waits: waits of the host for the device, and reads of a tensor's data by the host.
        tensor_bytes: peak of the bytes in tensors that operators returned, which is the same on every machine; None
            except on a CPU.
        exchanges: the exchanges with other ranks, in order of their launches; empty without a process group.
        work: work of interpreted kernels by kernel and kind: elements that loads, stores and atomics accessed (without
            masked lanes), products of dots, programs. Empty on a GPU.
        code: a short hash of everything that ran on the device, in order: binaries, grids, copies. Equal hashes under
            one toolchain mean that the device ran the same code. None if the binary of a kernel is unknown, and on a
            CPU.
    """

    launches: Sequence[str] | Counter[str] = ()
    copies: Sequence[Copied] = ()
    waits: Sequence[Waited] = ()
    tensor_bytes: int | None = None
    exchanges: Sequence[Exchange] = ()
    work: Mapping[tuple[str, str], int] = field(default_factory=dict)
    code: str | None = None


@dataclass
class ObservedActivity:
    """The work that one test started, and the memory that it saved and left. It is filled in when the test ends.

    Attributes:
        activity: operators, copies and reads of the host, each kind once with its count.
        left: line of Python -> bytes of the tensors made there that are alive after the test.
        saved: node of a differentiated graph, e.g. `MulBackward0.self at layers.py:31 in forward` -> bytes that it had
            saved when the backward pass began.
        kernels: number of launches of Triton kernels, including interpreted ones, by kernel and grid; a tuner's choice
            decides the grid of its launches, so that they have none.
        compiled: Triton's compiled kernels that a GPU ran, each once, with the tuner that chose its configuration.
    """

    activity: Activity = field(default_factory=lambda: Activity())
    left: Mapping[str, int] = field(default_factory=dict)
    saved: Counter[str] = field(default_factory=Counter)
    kernels: Mapping[tuple[str, str], int] = field(default_factory=dict)
    compiled: Sequence[tuple[Any, Any | None]] = ()


@dataclass(frozen=True)
class MemoryUse:
    """Memory of one call, bytes."""

    peak: int  # most bytes requested at once, above the level before the call; the result counts, inputs do not
    residue: int  # bytes still allocated after the result is freed


@dataclass
class Ledger:
    """Live allocations by address, with their total and its peak."""

    alive: dict[int, int] = field(default_factory=dict)
    total: int = 0
    peak: int = 0

    def add(self, address: int, count: int) -> None:
        """Add `count` bytes at `address`, in place of an allocation that is already known there."""
        self.total += count - self.alive.get(address, 0)
        self.alive[address] = count
        self.peak = max(self.peak, self.total)

    def remove(self, address: int) -> None:
        """Remove a freed allocation; unknown addresses are ignored."""
        self.total -= self.alive.pop(address, 0)
