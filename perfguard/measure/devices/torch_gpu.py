"""A GPU behind torch.cuda (NVIDIA, AMD) or torch.xpu (Intel): everything except its identity and its state.

Importing this module loads no torch, because the vendors' files import it, and `perfguard doctor` works without torch.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from perfguard.measure.devices.activity import Activity, MemoryUse
from perfguard.measure.devices.device import Device, Event, Graph, Interval
from perfguard.model.errors import DeviceError

if TYPE_CHECKING:
    import torch

    from perfguard.measure.devices.allocators import GpuMemory
    from perfguard.measure.devices.gpu_queue import Wait

_LEAST_FLUSH_BYTES = 256 * 2**20
_COPY_BYTES = 2**30
_COPIES = 15


class TorchEvent:
    """A timed torch event."""

    def __init__(self, event: Any) -> None:
        self._event = event

    def record(self) -> None:
        """Enqueue the event on the current stream."""
        self._event.record()

    def query(self) -> bool:
        """Whether the device has passed the event."""
        return bool(self._event.query())

    def elapsed_us(self, end: Event) -> float:
        """Device time from this event to `end`, µs. A DeviceError is raised if the device has not passed both."""
        assert isinstance(end, TorchEvent)
        try:
            return 1e3 * float(self._event.elapsed_time(end._event))
        except (RuntimeError, ValueError) as error:
            raise DeviceError(f"event: not passed yet ({error}); record both and synchronize() first") from error


class TorchGpu(Device):
    """Base class of the vendors. A subclass adds `identity`, `conditions` and `driver`.

    Args:
        index: number of the device, which becomes torch's current device, since a process measures one device.
        backend: `torch.cuda` or `torch.xpu`.

    Raises:
        DeviceError: the device does not exist.
    """

    kind: ClassVar[str] = "cuda"

    #: The name of the vendor's toolkit in `torch.version`.
    built_for: ClassVar[str] = "cuda"

    def __init__(self, index: int = 0, *, backend: Any = None) -> None:
        import torch

        self._backend = getattr(torch, self.kind) if backend is None else backend
        self._index = index
        if not self._backend.is_available():
            raise DeviceError(f"{self.kind}: torch {torch.__version__} sees no device; run `perfguard doctor`")
        count = self._backend.device_count()
        if index >= count:
            raise DeviceError(f"{self.kind}:{index}: torch sees {count} device(s); use {self.kind}:0 to :{count - 1}")
        self._backend.set_device(index)

    @property
    def key(self) -> str:
        return device_key(self.kind, self._index, self.properties)

    @property
    def board(self) -> str | None:
        """A digest of the device's UUID, which baselines must not reveal."""
        uuid = getattr(self.properties, "uuid", None)
        return None if uuid is None else f"{self.kind}-{hashlib.sha256(str(uuid).encode()).hexdigest()[:8]}"

    def free_memory(self) -> None:
        gc.collect()
        with contextlib.suppress(Exception):  # A lost device returns nothing, and its cases are BROKEN.
            self._backend.empty_cache()

    @property
    def torch_device(self) -> torch.device:
        import torch

        return torch.device(self.kind, self._index)

    @cached_property
    def properties(self) -> Any:
        """Torch's properties of the device."""
        return self._backend.get_device_properties(self._index)

    @property
    def toolkit(self) -> str | None:
        import torch

        return getattr(torch.version, self.built_for, None)

    def settle(self) -> None:
        """Run the profiler once, because on an H200 each launch takes 10 ns more after the first profile."""
        from perfguard.measure.devices import gpu_activity, kineto

        self.synchronize()
        with contextlib.suppress(Exception):  # `perfguard doctor` reports whether the profiler works.
            kineto.raw_events(self._touch, self.kind)
        gpu_activity.forget_objects_without_kernels()

    def close(self) -> None:
        from perfguard.measure.devices import gpu_activity

        gpu_activity.remember_objects()

    def synchronize(self) -> None:
        self._backend.synchronize(self._index)

    def event(self) -> TorchEvent:
        return TorchEvent(self._backend.Event(enable_timing=True))

    def sleep(self, microseconds: float) -> None:
        self._wait(microseconds)

    def flush_cache(self) -> None:
        self._flush_buffer.zero_()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        if not self.captures:
            yield
            return
        self.synchronize()
        with self._backend.stream(self._stream):
            try:
                yield
            finally:
                with contextlib.suppress(Exception):  # The next use of a lost device reports the error.
                    self.synchronize()

    def capture(self, calls: Sequence[Callable[[], object]], keep: int) -> Graph:
        if not self.captures:
            return super().capture(calls, keep)
        from perfguard.measure.devices import gpu_queue

        with self.aside():
            try:
                graph: Graph = gpu_queue.capture(calls, keep, self._backend, self._index)
            except gpu_queue.NotCapturable as error:
                raise DeviceError(f"{self.identity.name}: cannot be captured ({error})") from error
        return graph

    def intervals(
        self, calls: Sequence[Callable[[], object]], before: Callable[[], object] | None = None
    ) -> list[list[Interval]]:
        from perfguard.measure.devices import kineto

        by_call = kineto.intervals(calls, before, self.synchronize, self.kind)
        if not any(by_call):
            raise DeviceError(f"{self.identity.name}: the profiler sees no work of the device; run `perfguard doctor`")
        return by_call

    @contextlib.contextmanager
    def kernel_times(self) -> Iterator[dict[str, float]]:
        from perfguard.measure.devices import kineto

        with kineto.kernel_times(self.synchronize, self.kind) as times_us:
            yield times_us
        if not times_us:
            raise DeviceError(f"{self.identity.name}: the profiler sees no work of the device; run `perfguard doctor`")

    def memory(self, call: Callable[[], object]) -> MemoryUse:
        return self._memory.use_of(call)

    def occupy(self) -> list[torch.Tensor]:
        blocks = self._memory.occupy(self.torch_device)
        self.synchronize()
        return blocks

    @property
    def _memory(self) -> GpuMemory:
        from perfguard.measure.devices.allocators import GpuMemory

        return GpuMemory(self._backend, self._index)

    def activity(self, call: Callable[[], object]) -> Activity:
        from perfguard.measure.devices import gpu_activity

        self.synchronize()
        return gpu_activity.of_call(call, self.synchronize, self.kind)

    def copy_bytes_per_second(self) -> float:
        source, target = self._buffer(_COPY_BYTES), self._buffer(_COPY_BYTES)
        for _ in range(3):
            target.copy_(source)
        marks = [self.event() for _ in range(_COPIES + 1)]
        marks[0].record()
        for mark in marks[1:]:
            target.copy_(source)
            mark.record()
        self.synchronize()
        times_us = [start.elapsed_us(end) for start, end in itertools.pairwise(marks)]
        del source, target
        self._backend.empty_cache()
        return 2 * _COPY_BYTES / (statistics.median(times_us) * 1e-6)

    @cached_property
    def _stream(self) -> Any:
        return self._backend.Stream(device=self.torch_device)

    def _touch(self) -> None:
        self._buffer(1)
        self.synchronize()

    @cached_property
    def _wait(self) -> Wait:
        from perfguard.measure.devices.gpu_queue import calibrated_wait

        return calibrated_wait(self, self._backend)

    @cached_property
    def _flush_buffer(self) -> torch.Tensor:
        return self._buffer(max(_LEAST_FLUSH_BYTES, 2 * (self.identity.cache_bytes or 0)))

    def _buffer(self, count: int) -> torch.Tensor:
        import torch

        try:
            return torch.zeros(count, dtype=torch.uint8, device=self.torch_device)
        except torch.OutOfMemoryError as error:
            raise DeviceError(
                f"{self.identity.name}: {count} bytes could not be allocated; free the device's memory"
            ) from error


def device_key(kind: str, index: int, properties: Any) -> str:
    """The device's key from torch's properties: `cuda-<uuid>`; without a UUID the address on the bus; without either
    the index."""
    uuid = getattr(properties, "uuid", None)
    if uuid is not None:
        return f"{kind}-{uuid}"
    bus = getattr(properties, "pci_bus_id", None)
    if bus is not None:
        domain, slot = getattr(properties, "pci_domain_id", 0), getattr(properties, "pci_device_id", 0)
        return f"{kind}-{domain:04x}-{bus:02x}-{slot:02x}"
    return f"{kind}-{index}"
