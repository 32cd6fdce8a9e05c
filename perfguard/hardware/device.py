"""What perfguard needs of a device: identity, versions, state, and the primitives that measuring is built on.

A vendor is one file beside this one with a subclass of `Device`. Whatever differs between vendors stands
behind this interface, so that timers and metrics never ask which vendor they run on.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

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


class Device(abc.ABC):
    """One device of one kind, guarded by this process."""

    #: True where calls only enqueue work (GPUs); False where they return when the work is done (CPU).
    asynchronous: bool = True

    @property
    @abc.abstractmethod
    def identity(self) -> Hardware:
        """Who this is; read once."""

    @property
    @abc.abstractmethod
    def torch_device(self) -> torch.device:
        """Where the inputs of a case belong."""

    @abc.abstractmethod
    def toolchain(self) -> Toolchain:
        """Versions that times depend on."""

    @abc.abstractmethod
    def conditions(self) -> Conditions:
        """Clocks, temperature, throttle reasons, other processes, now; unknown fields stay empty."""

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

    @abc.abstractmethod
    def flush_cache(self) -> None:
        """Enqueue work that evicts the last-level cache (twice its size is written)."""

    @abc.abstractmethod
    def peak_bytes(self, call: Callable[[], object]) -> int:
        """Peak of allocated bytes during `call` above what was allocated before it."""

    @abc.abstractmethod
    def launches(self, call: Callable[[], object]) -> list[str]:
        """Names of the kernels that `call` runs on the device, in order (CPU: operators dispatched)."""

    @abc.abstractmethod
    def copy_bytes_per_second(self) -> float:
        """The copy ceiling: bytes read plus written per second by a large device-to-device copy, measured now."""
