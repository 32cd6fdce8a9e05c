"""The architectures for which kernels can be compiled, with the capacity of one of their processors; a driver for one
that is absent.

NVIDIA: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability". AMD: the CDNA 3 and CDNA 4
instruction set manuals; a compute unit has four SIMDs.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal

from perfguard._compat.triton_internals import TARGET
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


class Driver:
    """A driver for Triton's launchers that describes an absent device.

    Attributes:
        questions: the queries so far whose answer depends on the target.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.questions: list[str] = []
        self.utils = SimpleNamespace(get_device_properties=self._properties)

    def get_current_target(self) -> Any:
        self.questions.append("target")
        arch = int(self.target.name.removeprefix("sm_")) if self.target.backend == "cuda" else self.target.name
        return TARGET.get()(self.target.backend, arch, self.target.warp_width)

    def get_current_device(self) -> str:
        return f"perfguard-{self.target.name}"  # A kernel keeps its back end under this key.

    def get_current_stream(self, device: Any = None) -> int:
        return 0

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cuda", 0)

    def get_device_interface(self) -> Any:
        import torch

        return torch.cuda

    def _properties(self, device: Any = 0) -> dict[str, int]:
        self.questions.append("properties")
        return {
            "max_shared_mem": self.target.block_shared_bytes,
            "multiprocessor_count": self.target.processors,
            "warpSize": self.target.warp_width,
            "max_num_regs": self.target.registers or 65536,
        }
