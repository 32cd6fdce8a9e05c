"""What kernels may not do: write beside their results, wait for the device, read data on the host."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch

from perfguard.check.memory import Canaries, Value, poisoned

_FILLED = (torch, "zeros"), (torch, "zeros_like"), (torch.Tensor, "new_zeros")


@contextmanager
def guarded_allocations(held: Value = "large") -> Iterator[None]:
    """Within, fresh memory holds `held` and lies between guards, also if zeros are asked for. A write to a guard is an
    error at the end."""
    canaries = Canaries()
    with ExitStack() as stack:
        stack.enter_context(poisoned(held, canaries))
        for owner, name in _FILLED:
            empty = name.replace("zeros", "empty")
            stack.enter_context(mock.patch.object(owner, name, _zeroed(getattr(owner, empty))))
        yield
    beside = canaries.written()
    assert not beside, beside


def _zeroed(allocate: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda *args, **options: allocate(*args, **options).zero_()


@contextmanager
def no_device_waits() -> Iterator[None]:
    """Within, the host may not wait for an NVIDIA GPU; elsewhere nothing tells of it."""
    if not torch.cuda.is_available():
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the mode announces itself as a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


@contextmanager
def no_host_reads() -> Iterator[None]:
    """Within, to read a tensor's data on the host is an error. What a GPU calls a synchronisation."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("the host reads tensor data: on a GPU that waits for the device")

    readers = ("item", "tolist", "cpu", "numpy", "nonzero", "__bool__", "__int__", "__float__", "__index__")
    patches = [mock.patch.object(torch.Tensor, reader, refuse) for reader in readers]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()
