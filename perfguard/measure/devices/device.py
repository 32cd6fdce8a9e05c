"""The interface of a device: identity, versions, state, and the primitives of measurements.

Each vendor has one file in `vendors/`, with a subclass of `Device`. Timers and metrics never ask for the vendor.
"""

from __future__ import annotations

import abc
import functools
import platform
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import metadata
from typing import TYPE_CHECKING, Protocol

from perfguard.measure.devices.activity import Activity, MemoryUse, ObservedActivity
from perfguard.model.errors import DeviceError
from perfguard.model.records import Conditions, Hardware, Toolchain

if TYPE_CHECKING:
    import torch


_MATMUL_SIZES = (256, 512, 1024, 2048, 4096, 8192)  # The largest product takes 1.6 ms of an H100 in bfloat16.
_LONGEST_PRODUCT_US = 300_000.0  # One case of a run waits for the longest product.
_MOST_US_OF_SIZE = 100_000.0  # The products of one size, other than the first, take no longer than this.
_PRODUCTS = 5


class Event(Protocol):
    """A mark on the device's queue."""

    def record(self) -> None:
        """Enqueue the mark behind all work enqueued so far."""

    def query(self) -> bool:
        """Whether the device has passed the mark."""

    def elapsed_us(self, end: Event) -> float:
        """Device time from this mark to `end`, µs; both must have been passed."""


class ClockMark(Protocol):
    """A reading of the processors' cycle counters and the device's timer at one position in its queue."""

    def mhz_until(self, end: ClockMark) -> float | None:
        """Mean clock of the processors from this mark to `end`, MHz; None if unknown. Both must have been passed."""


Interval = tuple[float, float]
Within = Callable[[AbstractContextManager[object]], object]


class Graph(Protocol):
    """Captured work, which can be enqueued again as a whole."""

    def replay(self) -> None:
        """Enqueue all captured work."""


class Device(abc.ABC):
    """One device, which this process measures."""

    #: True if calls only enqueue work (GPUs); False if they return when the work is done (CPU).
    asynchronous: bool = True

    #: True if `capture` works for calls whose operations can all be captured.
    captures: bool = False

    @property
    @abc.abstractmethod
    def identity(self) -> Hardware:
        """The hardware's identity, which is read once."""

    @property
    def key(self) -> str:
        """The device's identifier within the machine, equal in all processes. The device's lock has this name."""
        return f"{self.identity.slug}-{self.identity.index}"

    @property
    def board(self) -> str | None:
        """The board's identifier among all machines, equal in all processes; None if the device has none."""
        return None

    def free_memory(self) -> None:  # noqa: B027  # Some devices cache nothing.
        """Return cached memory to the device, after a call ran out of memory."""

    def take_memory(self, count: int) -> object:
        """Allocate `count` bytes in the memory of a case's inputs, for the lifetime of the returned object."""
        import torch

        return torch.empty(count, dtype=torch.uint8, device=self.torch_device)

    @property
    def torch_device(self) -> torch.device:
        """The torch device of a case's inputs."""
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

    def settle(self) -> None:  # noqa: B027  # Times of some devices depend on no such state.
        """Prepare the process for timing; called once, before the first work on the device.

        The cost of a launch must not depend on earlier cases or their metrics.
        """

    def close(self) -> None:  # noqa: B027  # `settle` may change nothing.
        """Undo what `settle` changed in the process."""

    def synchronize(self) -> None:  # noqa: B027  # Calls may return when their work is done.
        """Wait for all enqueued work."""

    def now_us(self) -> float:
        """The host's monotonic clock, µs."""
        return time.perf_counter_ns() / 1e3

    def event(self) -> Event:
        """A new mark that can be timed. Only asynchronous devices have it, `sleep` and `flush_cache`."""
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
        """Run the work inside on the queue of `capture`; waits for all work before and after.

        The whole guarded test runs inside, because on an H200, after two queues have alternated, each launch takes 0.1
        to 0.4 µs more, on and off. Calls for a capture must be made and warmed up inside: autograd runs a backward pass
        on the queue of its forward pass, and libraries keep a workspace per queue.
        """
        self.synchronize()
        return nullcontext()

    def capture(self, calls: Sequence[Callable[[], object]], keep: int) -> Graph:
        """The work of all `calls`, in sequence, as a graph. A failure leaves the device as usable as before.

        Args:
            calls: warmed-up calls, which may repeat.
            keep: number of results that stay allocated while the next calls run, so that these write elsewhere.

        Raises:
            DeviceError: the calls cannot be captured. The message has the reason.
        """
        raise DeviceError(f"{self.identity.slug}: this kind of device captures no work; time it by events")

    def intervals(
        self, calls: Sequence[Callable[[], object]], before: Callable[[], object] | None = None
    ) -> list[list[Interval]]:
        """Intervals of each call's kernels and copies on the device: (start, end) by start, µs on the device's clock.

        Args:
            before: runs, with its work, to its end before each call, and has no intervals in the result.

        Raises:
            DeviceError: the device, or this installation's profiler, does not report intervals.
        """
        raise DeviceError(f"{self.identity.slug}: this kind of device reports no intervals of its work; use events")

    def kernel_times(self) -> AbstractContextManager[dict[str, float]]:
        """Device time by kernel of the work inside, µs, including copies and fills; filled in at the end.

        Raises:
            DeviceError: at the end, if no work was seen; or if this kind of device has no kernels.
        """
        raise DeviceError(f"{self.identity.slug}: this kind of device has no time by kernel")

    @abc.abstractmethod
    def memory(self, call: Callable[[], object]) -> MemoryUse:
        """Memory of a warm `call`: its peak, and the bytes left behind."""

    def occupy(self) -> list[torch.Tensor]:
        """Take every free block of the allocator and fill it with bytes 0xFF; returns the blocks."""
        return []

    @abc.abstractmethod
    def activity(self, call: Callable[[], object]) -> Activity:
        """Activity of a warm `call`: launches, copies and fills in order, their code, and the host's waits."""

    def observed(self, interpreted: Callable[..., None] | None = None) -> AbstractContextManager[ObservedActivity]:
        """Observe the work inside, which runs once and unchanged. Needs torch.

        Args:
            interpreted: called at each launch in Triton's interpreter: kernel, arguments, grid, keywords.
        """
        from perfguard.measure.devices.observation import observed

        return observed(self.torch_device.type, interpreted)

    @abc.abstractmethod
    def copy_bytes_per_second(self) -> float:
        """Measure the copy ceiling: bytes read plus bytes written per second by a large device-to-device copy."""

    def matmul_flop_per_second(self, dtype: torch.dtype) -> float:
        """The ceiling of computation: the best rate among square matrix products of rising size, floating-point
        operations per second; 0.0 if torch has no product of this dtype.

        It is measured once in a process, in about half a second at most, because slow devices stop early.
        """
        return _matmul_flop_per_second(self, dtype)


def _torch_version() -> str | None:
    try:
        import torch
    except ImportError:
        return None
    return str(torch.__version__)


def _triton_version() -> str | None:
    for distribution in ("triton", "pytorch-triton", "pytorch-triton-rocm", "pytorch-triton-xpu", "triton-xpu"):
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return None


@functools.lru_cache
def _matmul_flop_per_second(device: Device, dtype: torch.dtype) -> float:
    import torch

    best = 0.0
    generator = torch.Generator().manual_seed(0)  # The test's own state stays as it is.
    # Products of constants draw less power, so that clocks would stay higher than those of any real work.
    block = torch.randn(_MATMUL_SIZES[0], _MATMUL_SIZES[0], generator=generator)
    for size in _MATMUL_SIZES if dtype.itemsize > 1 else ():  # Fast products of fp8 are other calls, with scales.
        try:
            times = size // _MATMUL_SIZES[0]
            left, right = (block.to(device.torch_device, dtype).repeat(times, times) for _ in range(2))
            times_us = [_product_us(device, left, right)]
            while len(times_us) <= _PRODUCTS and sum(times_us) < _MOST_US_OF_SIZE:
                times_us.append(_product_us(device, left, right))
        except (RuntimeError, TypeError):  # No such product, or no memory for a larger one.
            break
        # The first product loads its kernel, and others may share the machine.
        best = max(best, 2 * size**3 / (min(times_us) * 1e-6))
        if 8 * min(times_us) > _LONGEST_PRODUCT_US:  # The next product has eight times the operations.
            break
    return best


def _product_us(device: Device, left: torch.Tensor, right: torch.Tensor) -> float:
    device.synchronize()
    start = device.now_us()
    left @ right
    device.synchronize()
    return device.now_us() - start
