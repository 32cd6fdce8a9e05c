"""What perfguard needs of a device: identity, versions, state, and the primitives that measuring is built on.

A vendor is one file beside this one with a subclass of `Device`. Whatever differs between vendors stands
behind this interface, so that timers and metrics never ask which vendor they run on.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol

from perfguard.errors import DeviceError
from perfguard.hardware.activity import Activity, Growth, MemoryUse
from perfguard.records import Conditions, Hardware, Toolchain

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
        """Mean clock of the processors from this mark to `end`, MHz; both must have been passed. None: not told."""


Interval = tuple[float, float]


class Graph(Protocol):
    """Captured work, enqueued again as a whole."""

    def replay(self) -> None:
        """Enqueue all of it."""


class Device(abc.ABC):
    """One device of one kind, guarded by this process."""

    #: True where calls only enqueue work (GPUs); False where they return when the work is done (CPU).
    asynchronous: bool = True

    #: True where `capture` works for calls that do nothing that cannot be captured.
    captures: bool = False

    @property
    @abc.abstractmethod
    def identity(self) -> Hardware:
        """Who this is; read once."""

    @property
    def key(self) -> str:
        """Tells this device from every other of the machine, the same in all processes: names its lock."""
        return f"{self.identity.slug}-{self.identity.index}"

    @property
    def board(self) -> str | None:
        """Tells this device from every other anywhere, in all processes; None where nobody can."""
        return None

    def free_memory(self) -> None:  # noqa: B027  # nothing to do where nothing is cached
        """Give cached memory back to the device, after a call ran out of it."""

    def take_memory(self, count: int) -> object:
        """`count` bytes where a case's inputs belong; they stay taken as long as the answer lives."""
        import torch

        return torch.empty(count, dtype=torch.uint8, device=self.torch_device)

    @property
    @abc.abstractmethod
    def torch_device(self) -> torch.device:
        """Where the inputs of a case belong."""

    @property
    def holds_cpu_tensors(self) -> bool:
        """Whether kernels of a GPU cannot be launched here, though they may be compiled."""
        return self.torch_device.type == "cpu"

    @abc.abstractmethod
    def toolchain(self) -> Toolchain:
        """Versions that times depend on."""

    @abc.abstractmethod
    def conditions(self) -> Conditions:
        """Clocks, temperature, throttle reasons, other processes, now; unknown fields stay empty."""

    def settle(self) -> None:  # noqa: B027  # a device whose times depend on no such state has nothing to do
        """Bring the process into the state in which everything is timed; once, before the first work on the device.

        What a launch costs must not depend on which cases came before, nor on what was read of them.
        """

    def close(self) -> None:  # noqa: B027  # as above
        """Give back what `settle` took of the process."""

    @abc.abstractmethod
    def synchronize(self) -> None:
        """Wait for all enqueued work."""

    @abc.abstractmethod
    def now_us(self) -> float:
        """The host's monotonic clock, µs."""

    @abc.abstractmethod
    def event(self) -> Event:
        """A new mark that can be timed. Asynchronous devices only."""

    @abc.abstractmethod
    def sleep(self, microseconds: float) -> None:
        """Enqueue a wait of about this length, so that the host can fill the queue behind it."""

    def clock_mark(self) -> ClockMark | None:
        """Enqueue a reading of the clock behind all work enqueued so far; None where the device has none to read."""
        return None

    @abc.abstractmethod
    def flush_cache(self) -> None:
        """Enqueue work that evicts the last-level cache (twice its size is written)."""

    def aside(self) -> AbstractContextManager[None]:
        """Work inside goes to the queue that `capture` captures on; waits for all work before and after.

        A guarded test lies inside as a whole: on an H200 each launch takes 0.1 to 0.4 µs more once two queues have
        taken turns, on and off from then on. Calls that are to be captured must be made and warmed up inside: autograd
        runs a backward pass where its forward pass ran, and libraries keep a workspace for each queue.
        """
        return nullcontext()

    def capture(self, calls: Sequence[Callable[[], object]], keep: int) -> Graph:
        """The work of all `calls`, one after the other, as a graph. The device is as usable as before if it fails.

        Args:
            calls: warmed up before; they may repeat.
            keep: results of so many calls stay allocated while the next ones run, so that these write elsewhere.

        Raises:
            DeviceError: the reason why the calls cannot be captured.
        """
        raise DeviceError(f"{self.identity.slug}: this kind of device captures no work; time it by events")

    def intervals(
        self, calls: Sequence[Callable[[], object]], before: Callable[[], object] | None = None
    ) -> list[list[Interval]]:
        """When kernels and copies of each call ran on the device: (start, end) by start, µs on the device's clock.

        Args:
            before: what runs before each call, and is waited for; it does not show in the intervals.

        Raises:
            DeviceError: the device, or its profiler here, does not tell.
        """
        raise DeviceError(f"{self.identity.slug}: this kind of device does not tell when its work ran; use events")

    @abc.abstractmethod
    def memory(self, call: Callable[[], object]) -> MemoryUse:
        """What a warm `call` allocates: its peak, what it holds at the end, and what stays behind."""

    @abc.abstractmethod
    def growth(self, call: Callable[[], object], calls: int) -> Growth:
        """How much more memory is taken after `calls` further calls than after one, their results dropped."""

    def occupy(self) -> list[torch.Tensor]:
        """Every block that the allocator has free, taken and filled with the byte 0xFF, for as long as it is held."""
        return []

    @abc.abstractmethod
    def activity(self, call: Callable[[], object]) -> Activity:
        """What a warm `call` sets going: launches, copies and fills in order, their code, and where the host waits."""

    @abc.abstractmethod
    def copy_bytes_per_second(self) -> float:
        """The copy ceiling: bytes read plus written per second by a large device-to-device copy, measured now."""
