"""Buffers with known bytes before and behind them, so that an access past either end shows.

Writes to those bytes are found afterwards and reported with the origin of the buffer. Reads of them return NaN in every
float format and -1 in every integer format.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from unittest import mock

import torch

from perfguard.tensors.user_frames import place_in_python

GUARD_BYTES = 512  # on each side; no allocator aligns memory to more, so alignment does not change
MOST_BEHIND = 1 << 20  # most bytes behind a buffer of long strides
GUARD = 0xFF

_new_tensor = torch.empty  # the real one, also while `torch.empty` is patched


@dataclass(frozen=True)
class _Buffer:
    """GUARD_BYTES, the content, GUARD_BYTES or more. Problems refer to it by `name`."""

    bytes: torch.Tensor
    content: int
    name: str

    def written(self) -> str:
        """The overwritten places of the guards in words, or ''."""
        if self.bytes.untyped_storage().nbytes() < self.bytes.numel():
            return ""  # freed or replaced meanwhile, which other checks report
        before = (self.bytes[:GUARD_BYTES] != GUARD).nonzero().flatten()
        behind = (self.bytes[GUARD_BYTES + self.content :] != GUARD).nonzero().flatten()
        words = []
        if before.numel():
            words.append(f"{_bytes(before.numel())} before its start, from offset {int(before[0]) - GUARD_BYTES} on")
        if behind.numel():
            words.append(f"{_bytes(behind.numel())} past its end, from offset {self.content + int(behind[0])} on")
        return f"{self.name} of {_bytes(self.content)}: {' and '.join(words)}, were written" if words else ""


class Canaries:
    """Hands out guarded buffers and keeps them for a later check. Above `limit` bytes in all it hands out no more."""

    def __init__(self, limit: float = float("inf")) -> None:
        self._left = limit
        self._buffers: list[_Buffer] = []

    def storage(self, sharing: Sequence[torch.Tensor], name: str, fill: int | None = None) -> torch.Tensor | None:
        """A guarded buffer of bytes, whose content begins at GUARD_BYTES; None where memory is short.

        Args:
            sharing: the tensors of one storage, whose size the content has.
            fill: value of guards and content; by default only guards are filled. Only guards that hold GUARD are
                checked.
        """
        content, device = sharing[0].untyped_storage().nbytes(), sharing[0].device
        size = GUARD_BYTES + content + max(map(_reach, sharing))
        if size > self._left:
            return None
        try:
            made = _new_tensor(size, dtype=torch.uint8, device=device)
        except RuntimeError:  # torch.OutOfMemoryError on GPUs, a plain one on the CPU
            return None
        self._left -= size
        for part in (made[:GUARD_BYTES], made[GUARD_BYTES + content :]) if fill is None else (made,):
            part.fill_(GUARD if fill is None else fill)
        if fill in (None, GUARD):
            self._buffers.append(_Buffer(made, content, name))
        return made

    def surround(self, fresh: torch.Tensor, allocator: str) -> torch.Tensor:
        """Move a tensor that `allocator` just returned into a guarded buffer. Its values stay undefined."""
        if fresh.requires_grad or fresh.is_pinned() or fresh.storage_offset():
            return fresh
        name = f"{described(fresh)}, {allocator} at {place_in_python()},"
        made = self.storage([fresh], name)
        return fresh if made is None else within(made, fresh)

    def written(self) -> list[str]:
        """One sentence for each buffer with a write past its ends."""
        return [words for words in (buffer.written() for buffer in self._buffers) if words]


def within(guarded: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """A view of a guarded buffer, with the shape, strides and offset that `tensor` has in its storage."""
    place = _new_tensor(0, dtype=tensor.dtype, device=tensor.device)
    offset = GUARD_BYTES // tensor.element_size() + tensor.storage_offset()
    return place.set_(guarded.untyped_storage(), offset, tensor.shape, tensor.stride())


@contextmanager
def empty_tensors_have_addresses() -> Iterator[None]:
    """Within, `data_ptr` of an empty CPU tensor is its place in its storage, where torch answers 0.

    A kernel that reads one element too far then reads its input's storage or a guard. From address 0 the read would end
    the process.
    """
    original = torch.Tensor.data_ptr

    def data_ptr(tensor: torch.Tensor) -> int:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.numel() or tensor.device.type != "cpu":
            return original(tensor)
        return int(tensor.untyped_storage().data_ptr() + tensor.storage_offset() * tensor.element_size())

    with mock.patch.object(torch.Tensor, "data_ptr", data_ptr):
        yield


def _reach(tensor: torch.Tensor) -> int:
    """Bytes of the guard behind a tensor: as many as an index one too high can read. On a CPU that memory may be
    unmapped, and a read of it would end the process."""
    strides = [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]
    step = max(strides, default=0) * tensor.element_size()
    return max(GUARD_BYTES, min(-(-step // GUARD_BYTES) * GUARD_BYTES, MOST_BEHIND))


def described(tensor: torch.Tensor) -> str:
    """`float32[64,2]`."""
    return f"{str(tensor.dtype).removeprefix('torch.')}[{','.join(map(str, tensor.shape))}]"


def _bytes(count: int) -> str:
    return f"{count} byte{'' if count == 1 else 's'}"
