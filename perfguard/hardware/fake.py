"""A simulated asynchronous GPU: a host clock, a device queue behind it, and noise. No real time passes.

Fake kernels compute their results with CPU tensors and tell the simulation what they would have cost::

    def double(x):
        fake.launch("double", us=10.0)
        return 2 * x

The device works through its queue in order. An event is passed once the *host* clock has reached the
event's place on the device's timeline, so a timer that lets the queue run dry sees it, as on a real GPU:
kernels shorter than their launch then read as long as the launch.
"""

from __future__ import annotations

import collections
import contextlib
import os
import platform
import random
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import TYPE_CHECKING, Self

from perfguard.errors import DeviceError
from perfguard.hardware.device import Device, Event
from perfguard.records import Conditions, Hardware, Toolchain

if TYPE_CHECKING:
    import torch

SLUG = "fake-gpu"
_EVENT_HOST_US = 0.5
_QUERY_HOST_US = 0.1

# The fake stands for a piece of hardware, and hardware is found, not passed along: a kernel that launches
# works on the device that was opened last, as CUDA kernels work on the current device.
_current: FakeDevice | None = None


def current() -> FakeDevice | None:
    """The fake device that was made last in this process; None before the first."""
    return _current


def launch(name: str, us: float = 10.0, host_us: float = 2.0) -> None:
    """Enqueue a kernel that runs for `us` µs and costs the host `host_us` µs; nothing without a fake device."""
    if _current is not None:
        _current.enqueue(us, host_us=host_us, name=name)


class Allocation:
    """Device memory; freed by `free()`, at the end of its `with` block, or with the object."""

    def __init__(self, device: FakeDevice | None, count: int) -> None:
        self._device = device
        self._count = count
        if device is not None:
            device.hold(count)

    def free(self) -> None:
        """Give the memory back; a second time does nothing."""
        if self._device is not None:
            self._device.hold(-self._count)
            self._device = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.free()

    def __del__(self) -> None:
        self.free()


def allocate(count: int) -> Allocation:
    """`count` bytes of device memory, which count towards the peak until they are freed."""
    return Allocation(_current, count)


class FakeEvent:
    """A mark on the fake device's queue."""

    def __init__(self, device: FakeDevice) -> None:
        self._device = device
        self._at_us: float | None = None

    def record(self) -> None:
        """Enqueue the mark behind all work enqueued so far."""
        self._at_us = self._device.enqueue(0.0, host_us=_EVENT_HOST_US)

    def query(self) -> bool:
        """Whether the device has passed the mark; True, as in CUDA, for a mark never recorded."""
        self._device.host_us += _QUERY_HOST_US
        return self._at_us is None or self._device.host_us >= self._at_us

    def elapsed_us(self, end: Event) -> float:
        """Device time from this mark to `end`, µs.

        Raises:
            DeviceError: a mark that was never recorded, or that the device has not passed yet.
        """
        assert isinstance(end, FakeEvent)
        if self._at_us is None or end._at_us is None:
            raise DeviceError("fake event: was never recorded; call record() on both events first")
        if self._device.host_us < max(self._at_us, end._at_us):
            raise DeviceError("fake event: the device has not passed it yet; call synchronize() first")
        return end._at_us - self._at_us


class FakeDevice(Device):
    """The simulated GPU. Making one makes it the current one.

    Attributes:
        host_us: the host's clock.
        busy_until_us: when the device will have worked through its queue, on the same clock.
        state: what `conditions()` answers; assign another to simulate throttling or other processes.
        slowdown: multiplies every kernel's time from now on; 1.1 is a device at 91 % of its clock.
    """

    def __init__(
        self,
        slug: str = SLUG,
        *,
        name: str = "Fake GPU",
        session_noise: float = 0.002,
        block_noise: float = 0.001,
        launch_noise: float = 0.001,
        seed: int | None = None,
        copy_bytes_per_second: float = 1e12,
        cache_bytes: int = 32 * 2**20,
        queue_depth: int = 1024,
        toolchain: Toolchain | None = None,
        state: Conditions | None = None,
    ) -> None:
        """Noise is relative (standard deviations); one session is one instance.

        Args:
            session_noise: of the one factor that all kernels of this instance share, and of another one that
                all host times share.
            block_noise: of the factor that is drawn anew at every `synchronize()`.
            launch_noise: of every single launch.
            seed: makes the noise repeatable; by default every instance draws its own.
            copy_bytes_per_second: what `copy_bytes_per_second()` answers; also sets the price of a flush.
            queue_depth: launches that the queue holds; the host waits in `launch` while it is full.
            toolchain, state: what `toolchain()` and `conditions()` answer.
        """
        global _current
        self._random = random.Random(int.from_bytes(os.urandom(8)) if seed is None else seed)
        self._session_factor = self._factor(session_noise)
        self._host_factor = self._factor(session_noise)
        self._block_noise = block_noise
        self._block_factor = self._factor(block_noise)
        self._launch_noise = launch_noise
        self._copy_bytes_per_second = copy_bytes_per_second
        self._queue_depth = queue_depth
        self._queue: collections.deque[float] = collections.deque()  # when each launch in flight will end
        self._names: list[str] | None = None
        self._allocated = 0
        self._peak = 0
        self._toolchain = toolchain
        self.host_us = 0.0
        self.busy_until_us = 0.0
        self.slowdown = 1.0
        self.state = state or Conditions(
            clock_mhz=1000,
            memory_clock_mhz=1000,
            temperature_celsius=40,
            power_watts=100.0,
            other_processes=0,
        )
        self._identity = Hardware(
            slug=slug,
            vendor="fake",
            name=name,
            architecture="fake",
            memory_bytes=16 * 2**30,
            cache_bytes=cache_bytes,
            units=1,
            fp8_dtypes=["float8_e4m3fn", "float8_e5m2"],
            power_limit_watts=300.0,
        )
        _current = self

    def _factor(self, noise: float) -> float:
        return max(0.01, self._random.gauss(1.0, noise))

    @property
    def identity(self) -> Hardware:
        return self._identity

    @property
    def torch_device(self) -> torch.device:
        import torch

        return torch.device("cpu")

    def toolchain(self) -> Toolchain:
        return self._toolchain or Toolchain(
            torch=_version("torch"),
            triton=_version("triton"),
            driver="fake-1",
            toolkit="fake-1",
            python=".".join(platform.python_version_tuple()[:2]),
        )

    def conditions(self) -> Conditions:
        return self.state

    def synchronize(self) -> None:
        self.host_us = max(self.host_us + _QUERY_HOST_US, self.busy_until_us)
        self._queue.clear()
        self._block_factor = self._factor(self._block_noise)

    def now_us(self) -> float:
        return self.host_us

    def event(self) -> FakeEvent:
        return FakeEvent(self)

    def sleep(self, microseconds: float) -> None:
        self.enqueue(microseconds, noisy=False)

    def flush_cache(self) -> None:
        assert self._identity.cache_bytes is not None
        self.enqueue(1e6 * 2 * self._identity.cache_bytes / self._copy_bytes_per_second)

    def peak_bytes(self, call: Callable[[], object]) -> int:
        before = self._peak = self._allocated
        result = call()
        self.synchronize()
        del result  # lived until the peak was read, as a caller's result does
        return self._peak - before

    def launches(self, call: Callable[[], object]) -> list[str]:
        with self._recording() as names:
            call()
        self.synchronize()
        return names

    def copy_bytes_per_second(self) -> float:
        return self._copy_bytes_per_second

    def enqueue(self, us: float, *, host_us: float = 2.0, name: str | None = None, noisy: bool = True) -> float:
        """Put work of `us` µs on the queue; returns when the device will have done it, µs on the host's clock."""
        if us < 0 or host_us < 0:
            raise DeviceError(f"fake kernel {name}: a time below 0 (us={us}, host_us={host_us}); give times >= 0")
        self.host_us += host_us * self._host_factor
        while self._queue and self._queue[0] <= self.host_us:
            self._queue.popleft()
        if len(self._queue) >= self._queue_depth:
            self.host_us = self._queue.popleft()
        if noisy:
            us *= self._session_factor * self._block_factor * self._factor(self._launch_noise) * self.slowdown
        self.busy_until_us = max(self.busy_until_us, self.host_us) + us
        self._queue.append(self.busy_until_us)
        if name is not None and self._names is not None:
            self._names.append(name)
        return self.busy_until_us

    def hold(self, count: int) -> None:
        """Add `count` bytes to what is allocated (negative: give back)."""
        self._allocated += count
        self._peak = max(self._peak, self._allocated)

    @contextlib.contextmanager
    def _recording(self) -> Iterator[list[str]]:
        outer, self._names = self._names, []
        try:
            yield self._names
        finally:
            self._names = outer


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
