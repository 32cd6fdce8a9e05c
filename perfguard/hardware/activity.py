"""What one call did to a device and to its memory: the exact facts behind the interface of `Device`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Copied:
    """One copy: its name, the bytes that it moved and the line of Python, where somebody tells (else 0 and "")."""

    name: str
    bytes: int = 0
    place: str = ""


@dataclass(frozen=True)
class Waited:
    """The host waited for the device, or read a tensor's data.

    Attributes:
        name: of the operator or of the runtime's function, e.g. `aten._local_scalar_dense`.
        place: the line of Python that asked for it, `moe/dispatch.py:57 in counts`; empty where none did.
    """

    name: str
    place: str = ""


@dataclass(frozen=True)
class Activity:
    """What one call set going, in order.

    Attributes:
        launches: names of kernels, copies and fills on a device with a queue; of the operators dispatched on a CPU.
        copies: those of them that only move bytes: transfers, and layout or dtype copies.
        fills: how many of them are memory fills (memset); 0 on a CPU.
        waits: where the host waited for the device or read a tensor's data.
        tensor_bytes: peak of the bytes in tensors that operators returned (a CPU's, the same on every machine);
            None where nobody counts it.
        code: a short hash of everything that ran on the device, in order: binaries, grids, copies. Equal hashes under
            one toolchain mean that the device ran the very same code. None where anything that ran has no known
            binary, and on a CPU.
    """

    launches: Sequence[str] = ()
    copies: Sequence[Copied] = ()
    fills: int = 0
    waits: Sequence[Waited] = ()
    tensor_bytes: int | None = None
    code: str | None = None


@dataclass(frozen=True)
class MemoryUse:
    """Memory of one call, bytes.

    Attributes:
        peak: most that was asked for at once above what was held before; the result counts, inputs do not.
        held: of that, what the call holds when it returns: its result, and what else it keeps.
        residue: what is still allocated when the result is gone.
        reserved: most that the allocator took from the device for it; None where nothing is reserved.
    """

    peak: int
    held: int
    residue: int
    reserved: int | None = None

    @property
    def workspace(self) -> int:
        """Needed besides what stays: temporaries at the peak."""
        return max(0, self.peak - self.held)


@dataclass(frozen=True)
class Growth:
    """How much more memory is taken after `calls` further calls whose results are gone, bytes."""

    calls: int
    allocated: int
    reserved: int = 0


@dataclass
class Ledger:
    """Allocations that are alive, by address: what a memory reader keeps account of."""

    alive: dict[int, int] = field(default_factory=dict)
    total: int = 0
    peak: int = 0

    def add(self, address: int, count: int) -> None:
        """`count` bytes at `address`; what is already known there is replaced."""
        self.total += count - self.alive.get(address, 0)
        self.alive[address] = count
        self.peak = max(self.peak, self.total)

    def remove(self, address: int) -> None:
        """Freed; an address that nobody knows is none of this account."""
        self.total -= self.alive.pop(address, 0)
