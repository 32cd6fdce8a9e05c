"""Memory that nobody may read or write: guards around buffers, and poison in fresh ones.

Guards are known bytes before and behind a buffer. Writes to them are found afterwards and reported with the origin of
the buffer. Reads of them return NaN in every float format and -1 in every integer format.

Poison makes old memory visible, so that elements that a candidate forgets to write do not look right by luck. There are
three values, because each hides errors that another shows: NaN (lost by `max` and by masks), a large finite number
(survives both), zeros (what fresh pages hold, and what an empty sum should be).
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Literal, get_args
from unittest import mock

import torch

from perfguard._compat.torch_compiler import forget_torch_functions, knows_torch_functions
from perfguard._compat.torch_internals import replaced
from perfguard.tensors.user_frames import place_in_python

GUARD_BYTES = 512  # on each side; no allocator aligns memory to more, so alignment does not change
MOST_BEHIND = 1 << 20  # most bytes behind a buffer of long strides
_SHARE = 1 / 8  # most of the free memory for guarded buffers
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
        self._contents: dict[int, tuple[int, int]] = {}

    @classmethod
    def on(cls, device: torch.device) -> Canaries:
        """Canaries that may take their share of the memory that is free on `device`."""
        return cls(_SHARE * free_bytes(device))

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
        self._contents[made.data_ptr()] = made.data_ptr() + GUARD_BYTES, made.data_ptr() + GUARD_BYTES + content
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

    def content_of(self, storage: int) -> tuple[int, int] | None:
        """The addresses of the content of the buffer that begins there; None if there is none."""
        return self._contents.get(storage)

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


def free_bytes(device: torch.device) -> float:
    """Bytes available for a new tensor on `device`."""
    if device.type == "cpu":
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    module = torch.get_device_module(device)
    if not hasattr(module, "mem_get_info"):
        return float("inf")
    reserved = module.memory_reserved(device) - module.memory_allocated(device)
    return float(module.mem_get_info(device)[0] + reserved)


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


# -- poison ------------------------------------------------------------------------------------------------------------

Value = Literal["nan", "large", "zero"]
VALUES: tuple[Value, ...] = get_args(Value)

LARGE = 3e4  # finite in fp16 too
#: Bytes for memory whose dtype is unknown: 0xFF is NaN in every IEEE format, in e4m3fn and in e5m2; 0x76 is
#: large and finite in all of them (e4m3fn 224, fp16 2.6e4, bf16 and fp32 1.2e33, int8 118).
RAW_BYTES: dict[Value, int] = {"nan": 0xFF, "large": 0x76, "zero": 0}
#: (NaN, largest finite) of the 8-bit floats, which have no `fill_` of their own on some devices
CODES: dict[torch.dtype, tuple[int, int]] = {
    torch.float8_e4m3fn: (0x7F, 0x7E),
    torch.float8_e4m3fnuz: (0x80, 0x7F),
    torch.float8_e5m2: (0x7F, 0x7B),
    torch.float8_e5m2fnuz: (0x80, 0x7F),
    torch.float8_e8m0fnu: (0xFF, 0xFE),
}
ALLOCATORS: tuple[tuple[Any, str], ...] = (
    (torch, "empty"),
    (torch, "empty_like"),
    (torch, "empty_strided"),
    (torch, "empty_permuted"),
    (torch.Tensor, "new_empty"),
    (torch.Tensor, "new_empty_strided"),
)

#: The values of the open `poisoned` contexts, innermost last. This list and the wrappers are global, because
#: `torch.compile` guards on the identity of `torch.empty`: a permanent wrapper costs a compiled function one
#: recompilation, one per context would cost one each time and reach the limit. A ContextVar would not do: backward
#: passes run on threads of their own.
_open: list[tuple[Value | None, Canaries | None]] = []


@contextmanager
def poisoned(value: Value | None, canaries: Canaries | None = None) -> Iterator[None]:
    """Fill tensors from `torch.empty` and its kin (`ALLOCATORS`) with `value` until the context ends.

    With `canaries` each tensor also lies between guards, which detect writes past its ends. With `value` None only the
    guards are filled.

    Integers get their largest value for "nan": read as any float, its bytes are NaN too. Code that is being traced or
    compiled gets the plain functions. Names imported earlier (`from torch import empty`) and memory that C++ code
    allocates itself are not filled; `recycle` covers those.
    """
    knows_torch = knows_torch_functions()
    _open.append((value, canaries))
    try:
        with replaced([(*place, wrapper) for place, wrapper in zip(ALLOCATORS, _WRAPPERS, strict=True)]):
            yield
    finally:
        _open.pop()
        if not knows_torch and knows_torch_functions():
            # The compiler was loaded meanwhile and took the wrappers for torch's own, so its table is cleared.
            forget_torch_functions()


def recycle(sizes: Iterable[int], device: torch.device, value: Value, *, copies: int = 2) -> None:
    """Allocate blocks of these sizes (bytes), fill them with `value`, and free them.

    The allocator hands them out again, so memory that is not filled afterwards still holds `value`. Sizes above the
    free memory are left out.
    """
    blocks = []
    for size in sorted(set(sizes), reverse=True):
        for _ in range(copies if size else 0):
            try:
                block = _new_tensor(size, dtype=torch.uint8, device=device)
            except RuntimeError:  # torch.OutOfMemoryError on GPUs, a plain one on the CPU
                break
            blocks.append(block.fill_(RAW_BYTES[value]))


def fill(tensor: torch.Tensor, value: Value) -> None:
    """Overwrite all elements in place, whatever the dtype."""
    dtype = tensor.dtype
    with torch.no_grad():
        if value == "zero":
            tensor.zero_()
        elif dtype in CODES:
            tensor.view(torch.uint8).fill_(CODES[dtype][value == "large"])
        elif dtype.is_floating_point or dtype.is_complex:
            tensor.fill_(float("nan") if value == "nan" else LARGE)
        elif dtype is torch.bool:
            tensor.fill_(True)
        elif value == "nan":
            tensor.fill_(torch.iinfo(dtype).max)
        else:
            byte = RAW_BYTES[value]
            tensor.fill_(int.from_bytes(bytes([byte] * dtype.itemsize), "little"))


def _filling(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def allocate(*args: Any, **kwargs: Any) -> Any:
        tensor = original(*args, **kwargs)
        if torch.compiler.is_compiling() or not _open or type(tensor) is not torch.Tensor:
            return tensor  # fake and functional tensors hold no memory; subclasses manage their own
        if tensor.layout is torch.strided and tensor.device.type != "meta":
            value, canaries = _open[-1]
            # An `out` is the caller's and stays in place. An empty tensor gets guards too: what is written to it shows.
            if canaries is not None and kwargs.get("out") is None and not _is_resized(sys._getframe(1)):
                tensor = canaries.surround(tensor, original.__name__)
            if value is not None and tensor.numel():
                fill(tensor, value)
        return tensor

    return allocate


def _is_resized(frame: FrameType) -> bool:
    """Whether FSDP allocates. It frees its buffers and takes their memory again by resizing the storage to what the
    tensor alone needs, which leaves none for guards: the next gather would write beyond the end."""
    return str(frame.f_globals.get("__name__")).startswith("torch.distributed.fsdp.")


_WRAPPERS = tuple(_filling(getattr(owner, name)) for owner, name in ALLOCATORS)
