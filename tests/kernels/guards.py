"""Memory that shows what a quantiser does to it: poisoned allocations between guard bytes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch

GUARD_BYTES = 1024
GUARD = 0xA5
# What recycled memory may hold: NaN codes, a large finite code, zero. As fp32 scales 0x7F7F7F7F is 3.4e38.
POISONS = (0x7F, 0x80, 0x7E, 0x00)


@dataclass
class Allocations:
    """Every buffer that was handed out, with its guards."""

    poison: int
    buffers: list[torch.Tensor] = field(default_factory=list)

    def hand_out(
        self, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: torch.device | None, zero: bool
    ) -> torch.Tensor:
        reach = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
        content = max(0, reach) * dtype.itemsize if math.prod(shape) else 0
        buffer = _EMPTY(2 * GUARD_BYTES + content, dtype=torch.uint8, device=device)
        buffer.fill_(GUARD)
        inside = buffer[GUARD_BYTES : GUARD_BYTES + content].fill_(0 if zero else self.poison)
        self.buffers.append(buffer)
        return inside.view(dtype).as_strided(tuple(shape), tuple(stride))

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether this tensor lies in a buffer of ours; if not, its poison and guards prove nothing."""
        storage = tensor.untyped_storage().data_ptr()
        return any(buffer.untyped_storage().data_ptr() == storage for buffer in self.buffers)

    def assert_guards_intact(self) -> None:
        for number, buffer in enumerate(self.buffers):
            for name, guard in (("before", buffer[:GUARD_BYTES]), ("after", buffer[-GUARD_BYTES:])):
                written = (guard != GUARD).nonzero().flatten()
                assert not written.numel(), (
                    f"buffer {number} of {buffer.numel() - 2 * GUARD_BYTES} bytes: {written.numel()} bytes "
                    f"written {name} it, the first at {written[0].item()} of the {GUARD_BYTES}"
                )


_EMPTY = torch.empty


@contextmanager
def guarded_allocations(poison: int) -> Iterator[Allocations]:
    """Within, `torch.empty`, `zeros`, `empty_strided`, `empty_like` and `new_*` hand out such memory."""
    allocations = Allocations(poison)

    def contiguous(shape: Sequence[int]) -> list[int]:
        return [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]

    def shape_of(sizes: tuple[Any, ...]) -> Sequence[int]:
        return sizes[0] if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes

    def fresh(zero: bool) -> Callable[..., torch.Tensor]:
        def allocate(*sizes: Any, dtype: Any = None, device: Any = None, **_: Any) -> torch.Tensor:
            shape = shape_of(sizes)
            dtype = dtype or torch.get_default_dtype()
            return allocations.hand_out(shape, contiguous(shape), dtype, device, zero)

        return allocate

    def like(zero: bool) -> Callable[..., torch.Tensor]:
        def allocate(other: torch.Tensor, *sizes: Any, dtype: Any = None, device: Any = None, **_: Any) -> torch.Tensor:
            shape = shape_of(sizes) if sizes else other.shape
            device = device or other.device
            return allocations.hand_out(shape, contiguous(shape), dtype or other.dtype, device, zero)

        return allocate

    def strided(shape: Any, stride: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> torch.Tensor:
        return allocations.hand_out(shape, stride, dtype or torch.get_default_dtype(), device, False)

    def new_strided(other: torch.Tensor, shape: Any, stride: Any, *, dtype: Any = None, **_: Any) -> torch.Tensor:
        return allocations.hand_out(shape, stride, dtype or other.dtype, other.device, False)

    with (
        mock.patch.object(torch, "empty", fresh(zero=False)),
        mock.patch.object(torch, "zeros", fresh(zero=True)),
        mock.patch.object(torch, "empty_strided", strided),
        mock.patch.object(torch, "empty_like", like(zero=False)),
        mock.patch.object(torch, "zeros_like", like(zero=True)),
        mock.patch.object(torch.Tensor, "new_empty", like(zero=False)),
        mock.patch.object(torch.Tensor, "new_zeros", like(zero=True)),
        mock.patch.object(torch.Tensor, "new_empty_strided", new_strided),
    ):
        yield allocations


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
