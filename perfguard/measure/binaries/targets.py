"""The architectures for which kernels can be compiled, with the capacity of one of their processors.

NVIDIA: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability". AMD: the CDNA 3 and CDNA 4
instruction set manuals; a compute unit has four SIMDs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from perfguard.model.errors import UsageError

KB = 1 << 10


@dataclass(frozen=True, kw_only=True)
class Target:
    """One architecture. A processor is a multiprocessor (NVIDIA) or a compute unit (AMD).

    Attributes:
        chip: a product with this architecture, with `processors` processors.
        block_shared_bytes: the most shared memory that one block may request.
        reserved_shared_bytes: shared memory that the system reserves on a processor for each block.
        registers: registers of 32 bits per processor; None if the compiler itself states the waves that they allow.
    """

    name: str
    chip: str
    processors: int
    warp_width: int
    block_threads: int = 1024
    block_shared_bytes: int
    shared_bytes: int
    reserved_shared_bytes: int = KB
    warps: int
    blocks: int
    registers: int | None = 65536

    @property
    def backend(self) -> Literal["cuda", "hip"]:
        """Triton's name of the back end."""
        return "cuda" if self.name.startswith("sm_") else "hip"

    @property
    def capability(self) -> tuple[int, int]:
        """NVIDIA's compute capability; for AMD the digits that torch reports instead."""
        digits = self.name.removeprefix("sm_").removeprefix("gfx")
        return (int(digits[:-1]), int(digits[-1])) if self.backend == "cuda" else (int(digits[0]), int(digits[1]))


def _amd(name: str, chip: str, processors: int, shared_bytes: int) -> Target:
    return Target(
        name=name, chip=chip, processors=processors, warp_width=64, block_shared_bytes=shared_bytes,
        shared_bytes=shared_bytes, reserved_shared_bytes=0, warps=32, blocks=32, registers=None,
    )  # fmt: skip


def _nvidia(name: str, chip: str, processors: int, shared_bytes: int, warps: int, blocks: int) -> Target:
    return Target(
        name=name, chip=chip, processors=processors, warp_width=32, block_shared_bytes=shared_bytes - KB,
        shared_bytes=shared_bytes, warps=warps, blocks=blocks,
    )  # fmt: skip


TARGETS = {
    target.name: target
    for target in (
        _nvidia("sm_80", "A100", 108, 164 * KB, 64, 32),
        _nvidia("sm_89", "L40S", 142, 100 * KB, 48, 24),
        _nvidia("sm_90", "H100", 132, 228 * KB, 64, 32),
        _nvidia("sm_100", "B200", 148, 228 * KB, 64, 32),
        _nvidia("sm_120", "RTX 5090", 170, 100 * KB, 48, 24),
        _amd("gfx942", "MI300X", 304, 64 * KB),
        _amd("gfx950", "MI355X", 256, 160 * KB),
    )
}


def target_of(name: str) -> Target:
    """The row of an architecture.

    Raises:
        UsageError: the architecture has no row.
    """
    if name not in TARGETS:
        raise UsageError(f"[tool.perfguard] targets: {name!r} is not known; known: {', '.join(TARGETS)}")
    return TARGETS[name]
