"""Memory of a call: by the CPU's allocator, and by a stand-in for a GPU's."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from perfguard.measure.devices import allocators
from perfguard.measure.devices.activity import MemoryUse
from perfguard.measure.devices.allocators import GpuMemory

SIZE = 4 << 12
MIB = 2**20
held: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_held() -> None:
    held.clear()


def tensor() -> torch.Tensor:
    return torch.empty(1 << 12)


def through_a_temporary() -> torch.Tensor:
    temporary, result = tensor(), tensor()
    del temporary
    return result


def keeps() -> torch.Tensor:
    held[:] = [tensor()]
    return tensor()


def grows() -> torch.Tensor:
    held.append(tensor())
    return tensor()


def makes_a_cycle() -> torch.Tensor:
    cycle: list[Any] = [tensor()]
    cycle.append(cycle)
    return tensor()


@pytest.mark.parametrize(
    ("call", "use"),
    [
        (lambda: None, MemoryUse(0, 0)),
        (tensor, MemoryUse(SIZE, 0)),
        (through_a_temporary, MemoryUse(2 * SIZE, 0)),
        (keeps, MemoryUse(2 * SIZE, SIZE)),
        (grows, MemoryUse(2 * SIZE, SIZE)),
        (makes_a_cycle, MemoryUse(2 * SIZE, 0)),  # garbage is no residue
    ],
)
def test_a_cpu(call: Callable[[], Any], use: MemoryUse) -> None:
    call()
    assert allocators.cpu_use(call) == use


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the pauses for threads that free memory late."""
    monkeypatch.setattr(allocators, "_PAUSES", (0.0,))


def test_a_gpu(backend: Any, hurried: None) -> None:
    machine = backend()

    def keeping() -> Any:
        held[:] = [machine.allocate(10)]
        machine.allocate(30).free()
        return machine.allocate(100)

    keeping()
    assert GpuMemory(machine, 0).use_of(keeping) == MemoryUse(100, 10)
    machine.memory_snapshot = None  # a torch that does not tell: only the totals speak
    assert GpuMemory(machine, 0).use_of(keeping).residue == 0


def test_what_another_thread_lets_go_of_late_is_no_residue(backend: Any) -> None:
    """As the thread that runs a backward pass does."""
    machine = backend()
    late: list[threading.Timer] = []

    def backward() -> Any:
        allocation = machine.allocate(10)
        late.append(threading.Timer(0.03, allocation.free))
        late[-1].start()
        return machine.allocate(100)

    assert GpuMemory(machine, 0).use_of(backward).residue == 0
    for timer in late:
        timer.join()


def test_blocks_of_a_snapshot_as_torch_writes_it(backend: Any) -> None:
    machine = backend()
    blocks = [
        {"state": "active_allocated", "size": 512, "address": 4096},
        {"state": "inactive", "size": 1024, "address": 4608},
        {"state": "active_pending_free", "size": 512, "address": 5632},
        {"state": "active_allocated", "size": 512},  # older: the addresses follow from the sizes
    ]
    segments = [
        {"device": 0, "address": 4096, "segment_pool_id": (0, 0), "blocks": blocks},
        {"device": 0, "address": 1 << 20, "segment_pool_id": (0, 1), "blocks": [{"state": "inactive", "size": 64}]},
        {"device": 1, "address": 4096, "blocks": blocks},
    ]
    machine.memory_snapshot = lambda: segments
    assert GpuMemory(machine, 0).blocks() == {4096: 512, 6144: 512}
    assert GpuMemory(machine, 0).free_sizes(7) == [1024]  # what belongs to a graph is not taken
    segments[0]["stream"] = 8
    assert GpuMemory(machine, 0).free_sizes(7) == []  # a block is free for its own stream
    assert GpuMemory(machine, 0).free_sizes(8) == [1024]


def test_a_free_block_of_a_small_segment_is_asked_for_in_pieces(backend: Any) -> None:
    """Of up to 1 MiB: a larger request would be served elsewhere, and the block stay as it is."""
    machine = backend()
    free = [{"state": "inactive", "size": 2 * MIB - 512, "address": 0}]
    small = {"device": 0, "address": 0, "segment_pool_id": (0, 0), "segment_type": "small", "blocks": free}
    machine.memory_snapshot = lambda: [small]
    assert GpuMemory(machine, 0).free_sizes(7) == [MIB, MIB - 512]
    machine.memory_snapshot = lambda: [small | {"segment_type": "large"}]
    assert GpuMemory(machine, 0).free_sizes(7) == [2 * MIB - 512]


X = torch.ones(1 << 16)
BYTES = 4 << 16


@torch.library.custom_op("perfguard_tests::joined", mutates_args=())
def joined(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, x])[: x.shape[0]].clone()


def in_turn() -> None:
    for _ in range(3):
        torch.ones(1 << 16)


@pytest.mark.parametrize(
    ("call", "peak"),
    [
        (lambda: joined(X), 3 * BYTES),  # temporaries inside a custom operator
        (lambda: X.clone(), BYTES),
        (lambda: X.view(-1), 0),
        (in_turn, BYTES),  # no sum
        (lambda: [torch.ones(1 << 16) for _ in range(3)], 3 * BYTES),
    ],
)
def test_the_peak_on_a_cpu(call: Callable[[], Any], peak: int) -> None:
    assert allocators.cpu_use(call).peak == peak


def test_the_peak_of_a_backward_pass_repeats() -> None:
    x = X.clone().requires_grad_()
    y = (x * x).sum()
    peaks = {allocators.cpu_use(lambda: torch.autograd.grad(y, x, retain_graph=True)).peak for _ in range(3)}
    assert len(peaks) == 1
    assert 2 * BYTES <= peaks.pop() <= 3 * BYTES + 64
