"""torch's devices: the profiler's events, the pools of a capture, a kernel that waits."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from perfguard._compat.private import Private

EVENT = Private("torch._C._profiler", "_EventType", "reading the profiler's allocations")
DEVICE_TYPE = Private("torch.autograd", "DeviceType", "telling the profiler's device work from the host's")
END_ALLOCATE = Private("torch", "_C._cuda_endAllocateToPool", "leaving the pool of a capture that failed")
RELEASE_POOL = Private("torch", "_C._cuda_releasePool", "leaving the pool of a capture that failed")

#: Only a torch that is built for a GPU has these.
OF_GPUS = (
    END_ALLOCATE,
    RELEASE_POOL,
    Private("torch.cuda", "_sleep", "a wait on the device behind which work is enqueued"),
)

NAMES = (Private("torch._C._profiler", "_EventType.Allocation", "reading the profiler's allocations"),)


def leave_pool(index: int, pool: Any) -> None:
    """Leave the pool that a failed capture keeps the allocator in; torch has no public function for it."""
    with contextlib.suppress(Exception):  # raises if torch has left the pool itself; torch then releases it too
        END_ALLOCATE.get()(index, pool)
        RELEASE_POOL.get()(index, pool)


def spin_of(backend: Any) -> Callable[[int], None] | None:
    """The backend's kernel that waits for a number of cycles; None where there is none, as in torch.xpu."""
    spin: Callable[[int], None] | None = getattr(backend, "_sleep", None)
    return spin
