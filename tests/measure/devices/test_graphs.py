"""Capturing on a stand-in for torch.cuda: what is kept, what is refused, and what is put back."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

from perfguard.measure.devices import gpu_queue, kineto
from perfguard.measure.devices.torch_gpu import TorchGpu
from perfguard.model.errors import DeviceError
from perfguard.model.records import Conditions, Hardware

FORBIDDEN = "CUDA error: operation not permitted when stream is capturing\nCompile with TORCH_USE_CUDA_DSA"


class Graph:
    """torch.cuda.CUDAGraph; a broken capture cannot be ended."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def capture_begin(self, *, pool: object, capture_error_mode: str) -> None:
        assert not self.backend.capturing
        self.backend.capturing, self.backend.broken, self.backend.works = True, False, 0
        self.backend.pool, self.backend.rng_capturing = pool, True

    def capture_end(self) -> None:
        self.backend.capturing = False
        if self.backend.broken:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
        self.backend.pool, self.backend.rng_capturing = None, False
        if not self.backend.works:
            warnings.warn("The CUDA Graph is empty. This usually means …", stacklevel=1)

    def replay(self) -> None:
        self.backend.replayed += 1


class Backend:
    """As much of torch.cuda as capturing uses, with the state that a failure leaves behind."""

    def __init__(self) -> None:
        self.capturing = self.broken = self.rng_capturing = False
        self.pool: object = None
        self.released: list[object] = []
        self.works = self.replayed = self.streams = 0
        self.current: list[int] = []

    CUDAGraph = property(lambda self: lambda: Graph(self))

    def graph_pool_handle(self) -> object:
        return object()

    def launch(self) -> torch.Tensor:
        self.works += 1
        return torch.zeros(1)

    def forbidden(self) -> None:
        if self.capturing:
            self.broken = True
            raise RuntimeError(FORBIDDEN)

    def breaks(self) -> None:
        self.broken = True

    def raises(self) -> None:
        raise ValueError

    def idles(self) -> None: ...

    # for TorchGpu
    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def set_device(self, index: int) -> None: ...

    def synchronize(self, index: int) -> None:
        self.forbidden()

    def Stream(self, device: object) -> int:
        self.streams += 1
        return self.streams

    @contextmanager
    def stream(self, stream: int) -> Iterator[None]:
        self.current.append(stream)
        try:
            yield
        finally:
            self.current.pop()


class Gpu(TorchGpu):
    """A vendor that captures."""

    captures = True
    identity = Hardware("gpu", "none", "GPU", "none", cache_bytes=2**20)

    def conditions(self) -> Conditions:
        return Conditions()


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Backend:
    made = Backend()

    class Scratch:
        def zero_(self) -> None:
            made.launch()

    def leave(index: int, pool: object) -> None:
        if made.pool is not pool:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        made.pool = None

    monkeypatch.setattr(torch, "zeros", lambda *_args, **_options: Scratch())
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", leave, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_releasePool", lambda _index, pool: made.released.append(pool), raising=False)
    return made


def usable(backend: Backend) -> bool:
    return not backend.capturing and backend.pool is None and not backend.rng_capturing


def test_calls_are_captured_in_order_and_replayed(backend: Backend) -> None:
    order: list[int] = []

    def call(number: int) -> Callable[[], object]:
        return lambda: (order.append(number), backend.launch())  # type: ignore[func-returns-value]

    graph = gpu_queue.capture([call(1), call(2), call(1)], 2, backend, 0)
    graph.replay()
    assert (order, backend.replayed) == ([1, 2, 1], 1)
    assert usable(backend)
    assert backend.released == []  # the graph's memory is its own


def test_as_many_results_as_asked_stay_alive(backend: Backend) -> None:
    alive: list[int] = []
    most: list[int] = []

    class Result:
        def __init__(self) -> None:
            backend.works += 1
            alive.append(1)
            most.append(len(alive))

        def __del__(self) -> None:
            alive.pop()

    gpu_queue.capture([Result] * 10, 3, backend, 0)
    assert max(most) == 4  # three kept while the fourth is made
    assert not alive


@pytest.mark.parametrize(
    ("call", "reason", "released"),
    [
        ("forbidden", "^CUDA error: operation not permitted when stream is capturing$", 1),
        ("raises", "^ValueError$", 0),  # torch releases what it has ended by itself: twice would be fatal
        ("breaks", "previous error during capture", 1),  # shown by the end alone
        ("idles", "no work on the current stream", 0),
    ],
)
def test_after_a_failed_capture_everything_is_put_back(backend: Backend, call: str, reason: str, released: int) -> None:
    calls = [getattr(backend, call)] if call == "idles" else [backend.launch, getattr(backend, call)]
    with pytest.raises(gpu_queue.NotCapturable, match=reason):
        gpu_queue.capture(calls, 1, backend, 0)
    assert usable(backend)
    assert len(backend.released) == released


def test_a_guarded_test_runs_on_the_stream_that_it_captures_on_and_leaves_the_users(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second stream, and a first profile, make each launch dearer from then on: after settling there is neither."""
    profiles: list[int] = []
    monkeypatch.setattr(kineto, "raw_events", lambda call, _activities: (profiles.append(1), call(), [])[2])
    gpu = Gpu(backend=backend)
    gpu.settle()
    gpu.close()
    assert profiles == [1]
    with gpu.aside():  # a guarded test
        assert backend.current == [1]
        gpu.capture([lambda: (profiles.append(backend.current[-1]), backend.launch())], 1)  # type: ignore[func-returns-value]
        assert profiles == [1, 1]
        with pytest.raises(DeviceError, match=r"^GPU: cannot be captured \(CUDA error: operation not permitted"):
            gpu.capture([backend.forbidden], 1)
        assert backend.current == [1]
    assert backend.current == []
    assert backend.streams == 1


def test_without_a_profiler_a_gpu_settles_all_the_same(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: object) -> None:
        raise RuntimeError("no profiler")

    monkeypatch.setattr(kineto, "raw_events", absent)
    gpu = Gpu(backend=backend)
    gpu.settle()
    gpu.close()


def test_a_gpu_that_does_not_capture_says_so(backend: Backend) -> None:
    class Plain(Gpu):
        captures = False

    gpu = Plain(backend=backend)
    with gpu.aside():
        assert backend.streams == 0
    with pytest.raises(DeviceError, match="captures no work"):
        gpu.capture([backend.launch], 1)
