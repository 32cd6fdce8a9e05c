"""The interface of a device: identity, versions, state, the primitives that measurement is built on, and what it tells
of one call.

Each vendor has one file in `vendors/`, with a subclass of `Device`. Differences between vendors stay behind this
interface, so timers and metrics never ask which vendor they run on.
"""

from __future__ import annotations

import abc
import platform
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from importlib import metadata
from typing import TYPE_CHECKING, Any, Protocol

from perfguard.measure.collectives.exchange import Exchange
from perfguard.model.errors import DeviceError
from perfguard.model.records import Conditions, Hardware, Toolchain

if TYPE_CHECKING:
    import torch


class Event(Protocol):
    """A mark on the device's queue."""

    def record(self) -> None:
        """Enqueue the mark behind all work enqueued so far."""

    def query(self) -> bool:
        """Whether the device has passed the mark."""

    def elapsed_us(self, end: Event) -> float:
        """Device time from this mark to `end`, µs; both must have been passed."""


class ClockMark(Protocol):
    """A reading of the cycle counters of the device's processors, beside its timer, on its queue."""

    def mhz_until(self, end: ClockMark) -> float | None:
        """Mean clock of the processors from this mark to `end`, MHz; None if unknown. Both must have been passed."""


Interval = tuple[float, float]


class Graph(Protocol):
    """Captured work, enqueued again as a whole."""

    def replay(self) -> None:
        """Enqueue all of it."""


@dataclass(frozen=True)
class Copied:
    """Copies of one kind: their name, the bytes moved and the line of Python, 0 and "" where they are unknown, and
    their number."""

    name: str
    bytes: int = 0
    place: str = ""
    count: int = 1


@dataclass(frozen=True)
class Waited:
    """The host waited for the device, or read a tensor's data.

    Attributes:
        name: of the operator or of the runtime's function, e.g. `aten._local_scalar_dense`.
        place: the line of Python that caused it, `moe/dispatch.py:57 in counts`; empty if none did.
        count: number of times.
    """

    name: str
    place: str = ""
    count: int = 1


@dataclass(frozen=True)
class Activity:
    """The work that one call started, in order, or the numbers of what one test started.

    Attributes:
        launches: on a device with a queue, names of kernels, copies and fills; on a CPU, of the operators dispatched.
            Of a test always the operators, with their numbers.
        copies: the launches that only move bytes: transfers, and layout or dtype copies.
        fills: number of memory fills (memset) among the launches; 0 on a CPU.
        waits: where the host waited for the device or read a tensor's data.
        tensor_bytes: peak of the bytes in tensors that operators returned. Counted on a CPU only, the same on every
            machine; None elsewhere.
        exchanges: the exchanges with other ranks, in order of their launches; empty where no process group exists.
        flop: floating-point operations of the call, counted with them.
        gathered: parameters that FSDP has gathered and not freed when the call ends, bytes by name.
        code: a short hash of everything that ran on the device, in order: binaries, grids, copies. Equal hashes under
            one toolchain mean that the device ran the very same code. None if the binary of any kernel is unknown,
            and on a CPU.
    """

    launches: Sequence[str] | Counter[str] = ()
    copies: Sequence[Copied] = ()
    fills: int = 0
    waits: Sequence[Waited] = ()
    tensor_bytes: int | None = None
    exchanges: Sequence[Exchange] = ()
    flop: int = 0
    gathered: Mapping[str, int] = field(default_factory=dict)
    code: str | None = None


@dataclass
class Seen:
    """What one test started, kept and left. It is read while the test runs, once, and filled in at the end.

    Attributes:
        activity: operators, copies and reads of the host, each kind once with its number.
        left: line of Python -> bytes of the tensors made there that are alive after the test.
        saved: what was differentiated -> bytes that its graph had saved when its backward pass began.
        kernels: launches of Triton kernels, in the interpreter as well, by kernel and grid.
        compiled: Triton's compiled kernels that a GPU ran, each once.
    """

    activity: Activity = field(default_factory=lambda: Activity())
    left: Mapping[str, int] = field(default_factory=dict)
    saved: Mapping[str, int] = field(default_factory=dict)
    kernels: Mapping[tuple[str, str], int] = field(default_factory=dict)
    compiled: Sequence[Any] = ()


@dataclass(frozen=True)
class MemoryUse:
    """Memory of one call, bytes.

    Attributes:
        peak: most bytes requested at once, above the level before the call; the result counts, inputs do not.
        held: the part that the call still holds when it returns: its result, and anything else it keeps.
        residue: bytes still allocated after the result is freed.
        reserved: most bytes that the allocator took from the device for the call; None where nothing is reserved.
    """

    peak: int
    held: int
    residue: int
    reserved: int | None = None

    @property
    def workspace(self) -> int:
        """Temporaries at the peak: bytes needed beyond those that are held."""
        return max(0, self.peak - self.held)


@dataclass(frozen=True)
class Growth:
    """Growth of memory after `calls` further calls whose results are freed, bytes."""

    calls: int
    allocated: int
    reserved: int = 0


@dataclass
class Ledger:
    """Live allocations by address, with their total and its peak."""

    alive: dict[int, int] = field(default_factory=dict)
    total: int = 0
    peak: int = 0

    def add(self, address: int, count: int) -> None:
        """Add `count` bytes at `address`; an allocation already known there is replaced."""
        self.total += count - self.alive.get(address, 0)
        self.alive[address] = count
        self.peak = max(self.peak, self.total)

    def remove(self, address: int) -> None:
        """Remove a freed allocation; unknown addresses are ignored."""
        self.total -= self.alive.pop(address, 0)


class Device(abc.ABC):
    """One device of one kind, guarded by this process."""

    #: True where calls only enqueue work (GPUs); False where they return when the work is done (CPU).
    asynchronous: bool = True

    #: True where `capture` works, for calls without operations that cannot be captured.
    captures: bool = False

    @property
    @abc.abstractmethod
    def identity(self) -> Hardware:
        """The hardware's identity; read once."""

    @property
    def key(self) -> str:
        """Identifies this device within the machine, the same in all processes. Its lock has this name."""
        return f"{self.identity.slug}-{self.identity.index}"

    @property
    def board(self) -> str | None:
        """Identifies this board among all machines, the same in all processes; None if the device cannot."""
        return None

    def free_memory(self) -> None:  # noqa: B027  # nothing to do where nothing is cached
        """Return cached memory to the device, after a call ran out of memory."""

    def take_memory(self, count: int) -> object:
        """Allocate `count` bytes where a case's inputs belong, for the lifetime of the returned object."""
        import torch

        return torch.empty(count, dtype=torch.uint8, device=self.torch_device)

    @property
    def torch_device(self) -> torch.device:
        """The torch device that a case's inputs belong on."""
        import torch

        return torch.device("cpu")

    @property
    def holds_cpu_tensors(self) -> bool:
        """True if GPU kernels cannot be launched here, though they may be compiled."""
        return self.torch_device.type == "cpu"

    @property
    def driver(self) -> str | None:
        """Version of the driver."""
        return None

    @property
    def toolkit(self) -> str | None:
        """Version of CUDA, ROCm or oneAPI that torch was built with."""
        return None

    def toolchain(self) -> Toolchain:
        """The versions that times depend on."""
        return Toolchain(
            torch=_torch_version(),
            triton=_triton_version(),
            driver=self.driver,
            toolkit=self.toolkit,
            python=".".join(platform.python_version_tuple()[:2]),
        )

    @abc.abstractmethod
    def conditions(self) -> Conditions:
        """Current clocks, temperature, throttle reasons and other processes; unknown fields stay empty."""

    def settle(self) -> None:  # noqa: B027  # a device whose times depend on no such state has nothing to do
        """Bring the process into the state in which everything is timed; once, before the first work on the device.

        The cost of a launch must not depend on earlier cases or on the metrics read of them.
        """

    def close(self) -> None:  # noqa: B027  # as above
        """Undo what `settle` changed in the process."""

    def synchronize(self) -> None:  # noqa: B027  # nothing to wait for where calls return when the work is done
        """Wait for all enqueued work."""

    def now_us(self) -> float:
        """The host's monotonic clock, µs."""
        return time.perf_counter_ns() / 1e3

    def event(self) -> Event:
        """A new mark that can be timed; asynchronous devices only, as `sleep` and `flush_cache`."""
        raise NotImplementedError

    def sleep(self, microseconds: float) -> None:
        """Enqueue a wait of about this length, during which the host can fill the queue."""
        raise NotImplementedError

    def clock_mark(self) -> ClockMark | None:
        """Enqueue a reading of the clock behind all work enqueued so far; None if the device has no readable clock."""
        return None

    def flush_cache(self) -> None:
        """Enqueue work that evicts the last-level cache, by writing twice its size."""
        raise NotImplementedError

    def aside(self) -> AbstractContextManager[None]:
        """Run the work inside on the queue that `capture` captures on; waits for all work before and after.

        The whole guarded test runs inside: on an H200, once two queues have alternated, each launch takes 0.1 to
        0.4 µs more, on and off from then on. Calls to be captured must be made and warmed up inside: autograd runs a
        backward pass on the queue of its forward pass, and libraries keep a workspace per queue.
        """
        return nullcontext()

    def capture(self, calls: Sequence[Callable[[], object]], keep: int) -> Graph:
        """The work of all `calls`, in sequence, as a graph. A failure leaves the device as usable as before.

        Args:
            calls: must be warmed up; they may repeat.
            keep: number of results that stay allocated while the next calls run, so that these write elsewhere.

        Raises:
            DeviceError: the calls cannot be captured; with the reason.
        """
        raise DeviceError(f"{self.identity.slug}: this kind of device captures no work; time it by events")

    def intervals(
        self, calls: Sequence[Callable[[], object]], before: Callable[[], object] | None = None
    ) -> list[list[Interval]]:
        """Intervals of each call's kernels and copies on the device: (start, end) by start, µs on the device's clock.

        Args:
            before: runs before each call, and is waited for; its work is left out of the intervals.

        Raises:
            DeviceError: the device, or its profiler here, does not report intervals.
        """
        raise DeviceError(f"{self.identity.slug}: this kind of device does not tell when its work ran; use events")

    @abc.abstractmethod
    def memory(self, call: Callable[[], object]) -> MemoryUse:
        """Memory of a warm `call`: its peak, the bytes held at the end, and the bytes left behind."""

    @abc.abstractmethod
    def growth(self, call: Callable[[], object], calls: int) -> Growth:
        """Growth of memory from one call to `calls` further ones, their results dropped."""

    def occupy(self) -> list[torch.Tensor]:
        """Take every free block of the allocator and fill it with the byte 0xFF; the caller holds the blocks."""
        return []

    @abc.abstractmethod
    def activity(self, call: Callable[[], object]) -> Activity:
        """Activity of a warm `call`: launches, copies and fills in order, their code, and the host's waits."""

    def observed(self, interpreted: Callable[..., None] | None = None) -> AbstractContextManager[Seen]:
        """What runs inside, once and as it is. Needs torch.

        Args:
            interpreted: told of each launch in Triton's interpreter: executor, arguments, keywords.
        """
        from perfguard.measure.devices.observation import observed

        return observed(self.torch_device.type, interpreted)

    @abc.abstractmethod
    def copy_bytes_per_second(self) -> float:
        """The copy ceiling: bytes read plus written per second by a large device-to-device copy, measured now."""


def _torch_version() -> str | None:
    """Version of torch, with its build; None if it is not installed, as for benchmarks that do not need it."""
    try:
        import torch
    except ImportError:
        return None
    return str(torch.__version__)


def _triton_version() -> str | None:
    """Version of triton, under any of its distribution names."""
    for distribution in ("triton", "pytorch-triton", "pytorch-triton-rocm", "pytorch-triton-xpu", "triton-xpu"):
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return None
