"""A simulated asynchronous GPU: a host clock, a device queue behind it, and noise. No real time passes.

Its names are 'fake', 'fake:1', 'fake:some-slug'; 'fake*2' means two devices. Fake kernels compute their results with
CPU tensors and report their cost to the simulation::

    def double(x):
        fake.launch("double", us=10.0)
        return 2 * x

The device works through its queue in order. An event is passed once the *host* clock has reached the event's time on
the device's timeline. As on a real GPU, a timer that lets the queue run empty measures the launches: kernels shorter
than their launch then appear as long as the launch.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import hashlib
import os
import random
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from perfguard.measure import collect_young, collector_paused
from perfguard.measure.devices.activity import Activity, Copied, MemoryUse, ObservedActivity, Waited
from perfguard.measure.devices.device import Device
from perfguard.measure.devices.vendors import Vendor
from perfguard.model.errors import DeviceError
from perfguard.model.records import Conditions, Hardware
from perfguard.testing.fake_parts import QUERY_HOST_US, Allocation, FakeEvent, FakeGraph, FakeMemory

SLUG = "fake-gpu"
_MEMORY_BYTES = 16 * 2**30
_COPY_BYTES_PER_SECOND = 1e12
_MATMUL_FLOP_PER_SECOND = 1e14
_PROFILE_HOST_US = 10_000.0

# A launched kernel runs on the device that was opened last, as CUDA kernels run on the current device. Like hardware,
# the device is no argument of a kernel.
_current: FakeDevice | None = None


def current() -> FakeDevice | None:
    """The fake device that was made last in this process; None before the first."""
    return _current


def launch(
    name: str,
    us: float = 10.0,
    host_us: float = 2.0,
    *,
    binary: str | None = None,
    grid: str = "",
    capturable: bool = True,
    bytes: int = 0,
) -> None:
    """Enqueue a kernel that runs for `us` µs and costs the host `host_us` µs. Without a fake device this does nothing.

    `binary` identifies the kernel's code: equal text means equal code, and None means unknown code. If a kernel is not
    `capturable`, the capture of its call fails. Names beginning with Memcpy are copies of `bytes` bytes, and those
    beginning with Memset are fills.
    """
    if _current is not None:
        if not capturable:
            _current.refuse_capture()
        _current.enqueue(us, host_us=host_us, name=name, binary=binary, grid=grid, bytes=bytes)


def fault(error: str = "CUDA error: an illegal memory access was encountered") -> None:
    """Launch a kernel that destroys the context: this call and all later ones on the device raise `error`."""
    if _current is not None:
        _current.lost = error
        _current.synchronize()


def allocate(count: int) -> Allocation:
    """Allocate `count` bytes of device memory, which count towards the peak until they are freed."""
    return Allocation(None if _current is None else _current.device_memory, count)


class _Launched(NamedTuple):
    """A kernel, copy or fill with its interval on the device's timeline, µs."""

    name: str
    binary: str | None
    grid: str
    bytes: int
    interval: tuple[float, float]


class FakeDevice(Device):
    """The simulated GPU. The latest instance is the current device.

    Attributes:
        host_us: the host's clock.
        busy_until_us: the end of the device's queue, on the same clock.
        state: returned by `conditions()`; assign another to simulate throttling or other processes.
        slowdown: multiplies every kernel's time from now on; 1.1 is a device at 91 % of its clock.
        settled: whether `settle()` was called.
        lost: the RuntimeError that every further use raises; empty while the device works.
    """

    captures = True
    board: str | None = None  # Assign one to simulate several boards of a kind.
    driver = toolkit = "fake-1"

    def __init__(
        self,
        slug: str = SLUG,
        *,
        index: int = 0,
        session_noise: float = 0.002,
        block_noise: float = 0.001,
        launch_noise: float = 0.001,
        seed: int | None = None,
        cache_bytes: int = 32 * 2**20,
        queue_depth: int = 1024,
    ) -> None:
        """Open a device. Noise is a relative standard deviation, and one instance is one session.

        Args:
            session_noise: noise of two factors, one for all kernels of this instance and one for all its host times.
            block_noise: noise of the factor that is redrawn at every `synchronize()`.
            launch_noise: noise of every single launch.
            seed: makes the noise repeatable; by default every instance draws its own.
            queue_depth: number of launches that fit in the queue; the host waits in `launch` while it is full.
        """
        global _current
        self._random = random.Random(int.from_bytes(os.urandom(8)) if seed is None else seed)
        self._session_factor = self._factor(session_noise)
        self._host_factor = self._factor(session_noise)
        self._block_noise = block_noise
        self._block_factor = self._factor(block_noise)
        self._launch_noise = launch_noise
        self._queue_depth = queue_depth
        self._queue: collections.deque[float] = collections.deque()  # It holds the end of each launch in flight.
        self._launched: list[_Launched] | None = None  # It is None unless launches are recorded.
        self._waits: list[Waited] | None = None  # It is None unless waits are recorded.
        self._captured: list[float] | None = None  # It holds the work of the calls that are captured, µs.
        self.host_us = 0.0
        self.busy_until_us = 0.0
        self.slowdown = 1.0
        self.settled = False
        self.lost = ""
        self.state = Conditions(clock_mhz=1000, other_processes=0)
        self._identity = Hardware(
            slug=slug,
            vendor="fake",
            name="Fake GPU",
            architecture="fake",
            memory_bytes=_MEMORY_BYTES,
            cache_bytes=cache_bytes,
            power_limit_watts=300.0,
            index=index,
        )
        self.device_memory = FakeMemory(_MEMORY_BYTES)
        _current = self

    def _factor(self, noise: float) -> float:
        return max(0.01, self._random.gauss(1.0, noise))

    @property
    def identity(self) -> Hardware:
        return self._identity

    def conditions(self) -> Conditions:
        return self.state

    def settle(self) -> None:
        self.settled = True

    def synchronize(self) -> None:
        if self._waits is not None:
            from perfguard.tensors.user_frames import place_in_python

            self._waits.append(Waited("synchronize", place_in_python()))
        self.refuse_capture()
        if self.lost:
            raise RuntimeError(self.lost)
        self.host_us = max(self.host_us + QUERY_HOST_US, self.busy_until_us)
        self._queue.clear()
        self._block_factor = self._factor(self._block_noise)

    def now_us(self) -> float:
        return self.host_us

    def event(self) -> FakeEvent:
        return FakeEvent(self)

    def sleep(self, microseconds: float) -> None:
        self.enqueue(microseconds, noisy=False)

    def flush_cache(self) -> None:
        self.enqueue(1e6 * 2 * (self._identity.cache_bytes or 0) / _COPY_BYTES_PER_SECOND)

    def capture(self, calls: Sequence[Callable[[], object]], keep: int) -> FakeGraph:
        kept: collections.deque[object] = collections.deque(maxlen=keep)
        self.synchronize()
        self._captured = []
        try:
            for call in calls:
                kept.append(call())
            return FakeGraph(self, self._captured)
        except RuntimeError as error:
            raise DeviceError(f"{self._identity.slug}: cannot be captured ({error})") from error
        finally:
            self._captured = None

    def refuse_capture(self) -> None:
        """Raise RuntimeError during a capture, as CUDA does for operations that cannot be captured."""
        if self._captured is not None:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    def intervals(
        self, calls: Sequence[Callable[[], object]], before: Callable[[], object] | None = None
    ) -> list[list[tuple[float, float]]]:
        self.host_us += _PROFILE_HOST_US
        by_call = []
        for call in calls:
            if before is not None:
                before()
            self.synchronize()
            by_call.append([work.interval for work in self._recorded(call)])
        return by_call

    @contextlib.contextmanager
    def _recording(self) -> Iterator[list[_Launched]]:
        """List the launches inside, and wait for them at the end."""
        launched: list[_Launched] = []
        self._launched = launched
        try:
            yield launched
        finally:
            self._launched = self._waits = None
        self.synchronize()

    @contextlib.contextmanager
    def kernel_times(self) -> Iterator[dict[str, float]]:
        self.host_us += _PROFILE_HOST_US
        times: dict[str, float] = {}
        self.synchronize()
        with self._recording() as launched:
            yield times
        for work in launched:
            start, end = work.interval
            times[work.name] = times.get(work.name, 0.0) + end - start
        if not times:
            raise DeviceError(f"{self._identity.slug}: nothing was launched")

    def _recorded(self, call: Callable[[], object]) -> list[_Launched]:
        """The launches of `call`, after they have finished."""
        with self._recording() as launched:
            call()
        return launched

    def memory(self, call: Callable[[], object]) -> MemoryUse:
        memory = self.device_memory
        with collector_paused():
            collect_young()
            known, before = set(memory.alive), memory.total
            memory.peak = before
            result = call()
            peak = memory.peak
            del result  # The result is kept until the peak is read, as a caller would keep it.
            collect_young()
        residue = sum(count for address, count in memory.alive.items() if address not in known)
        return MemoryUse(peak - before, residue)

    def activity(self, call: Callable[[], object]) -> Activity:
        waits: list[Waited] = []
        self._waits = waits
        launched = self._recorded(call)
        names = [each.name for each in launched]
        copies = [Copied(each.name, each.bytes) for each in launched if each.name.startswith("Memcpy")]
        code = [(each.name, each.binary) for each in launched]
        known = bool(code) and all(binary is not None for _, binary in code)
        digest = hashlib.sha256(repr(code).encode()).hexdigest()[:16] if known else None
        return Activity(names, copies, waits, code=digest)

    @contextlib.contextmanager
    def observed(self, interpreted: Callable[..., None] | None = None) -> Iterator[ObservedActivity]:
        memory, launched, waits = self.device_memory, list[_Launched](), list[Waited]()
        before, memory.peak = memory.total, memory.total
        self._launched, self._waits = launched, waits
        try:
            with super().observed(interpreted) as seen:
                yield seen
        finally:
            self._launched = self._waits = None
        collect_young()
        activity = seen.activity
        copies = [Copied(each.name, each.bytes) for each in launched if each.name.startswith("Memcpy")]
        seen.kernels = {**seen.kernels, **collections.Counter((each.name, each.grid) for each in launched)}
        seen.left = {**seen.left, "simulated memory": memory.total - before} if memory.total > before else seen.left
        seen.activity = dataclasses.replace(
            activity,
            copies=[*activity.copies, *copies],
            waits=[*activity.waits, *waits],
            tensor_bytes=(activity.tensor_bytes or 0) + memory.peak - before,
        )

    def copy_bytes_per_second(self) -> float:
        return _COPY_BYTES_PER_SECOND

    def matmul_flop_per_second(self, dtype: object) -> float:
        return _MATMUL_FLOP_PER_SECOND

    def enqueue(
        self,
        *works_us: float,
        host_us: float = 2.0,
        name: str | None = None,
        noisy: bool = True,
        binary: str | None = None,
        grid: str = "",
        bytes: int = 0,
    ) -> float:
        """Enqueue works of these lengths, µs, as one entry; returns the end on the host's clock."""
        if self.lost:
            raise RuntimeError(self.lost)
        self.host_us += host_us * self._host_factor
        if self._captured is not None:
            self._captured += works_us
            return self.busy_until_us
        while self._queue and self._queue[0] <= self.host_us:
            self._queue.popleft()
        if len(self._queue) >= self._queue_depth:
            self.host_us = self._queue.popleft()
        us = sum(map(self._noisy, works_us)) if noisy else sum(works_us)
        started_us = max(self.busy_until_us, self.host_us)
        self.busy_until_us = ends_us = started_us + us
        self._queue.append(ends_us)
        if name is not None and self._launched is not None:
            self._launched.append(_Launched(name, binary, grid, bytes, (started_us, ends_us)))
        return ends_us

    def _noisy(self, us: float) -> float:
        return us * self._session_factor * self._block_factor * self._factor(self._launch_noise) * self.slowdown


_SEVERAL = re.compile(r"fake\*([1-9]\d*)")


class Fake(Vendor):
    """Devices on which no real time passes."""

    names = ("fake", "fake:<index>", "fake:<slug>", "fake*<count>")

    def understands(self, name: str) -> bool:
        return name == "fake" or re.fullmatch(r"fake:.+", name) is not None or _SEVERAL.fullmatch(name) is not None

    def open(self, name: str) -> FakeDevice:
        suffix = name.partition(":")[2]
        return FakeDevice(index=int(suffix)) if suffix.isdecimal() else FakeDevice(suffix or SLUG)

    def find(self, name: str) -> dict[str, str]:
        several = _SEVERAL.fullmatch(name)
        names = [f"fake:{index}" for index in range(int(several[1]))] if several else [name]
        return {each: self.open(each).key for each in names}


VENDOR = Fake()
