"""The stages of the data: a launch as requested of Triton, and its facts on a target."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Pass = Literal["forward", "backward"]


class Launch(Struct, frozen=True):
    """One launch of a kernel, specialised for one target as by the just-in-time compiler.

    Attributes:
        module, file, function: where the kernel is defined; `function` is its qualified name.
        data: the specialisation from Triton's own hook, as JSON; Triton can compile from it.
        configuration: the number of the configuration; None for the plain call's choice.
        twin: for the plain call's choice, the number of the identical configuration.
        source: hash of the code that the kernel may depend on, without comments, paths and line numbers.
        unspecialised: parameters that the decorator excludes from specialisation.
        interpretable: whether Triton's interpreter can run the kernel; it cannot run Gluon.
    """

    module: str
    file: str
    function: str
    data: str
    direction: Pass = "forward"
    configuration: int | None = None
    twin: int | None = None
    source: str = ""
    unspecialised: tuple[str, ...] = ()
    interpretable: bool = True

    @property
    def kernel(self) -> str:
        """The function's own name."""
        return self.function.rpartition(".")[2]


class Tuning(Struct, frozen=True):
    """An autotuner that a call reached: the kernel, and the key under which it would look up its choice."""

    kernel: str
    key: str
    configurations: int
    direction: Pass = "forward"


class Recording(Struct, frozen=True):
    """The launches of one call on one target.

    Attributes:
        walked: the launches of its walk, including the plain call's.
        tunings: one for each key that tuners would see on the walk.
        problem: the reason why the call could not be followed to its end.
        entries: names of the table's entries by configuration number; empty if no table was named.
        memory_operators: torch's operators that fill, copy or read memory in the plain call, by pass and in order.
        arguments: for the plain call's launches of kernels that cannot be interpreted, by pass and kernel and in
            order: grid, numbers, shapes and strides, as text.
    """

    launches: list[Launch] = []
    walked: list[Launch] = []
    tunings: list[Tuning] = []
    problem: str = ""
    entries: list[str] = []
    memory_operators: dict[Pass, list[str]] = {}
    arguments: dict[Pass, dict[str, list[str]]] = {}


class Facts(Struct, frozen=True, omit_defaults=True):
    """The resources and contents of a compiled kernel. Instructions are counted in the code, not as executed.

    Attributes:
        error: the compiler's last output if there is no binary; nothing else is set then.
        passing: the error may be transient, of the machine and not the kernel, and is worth another try.
        binary: hash of the machine code.
        registers: of a thread (AMD: vector registers, accumulation registers among them).
        spills: instructions that move spilled or local values (AMD: vector registers that were spilled).
        stack_bytes: of a thread, in memory: spilled registers and local arrays.
        shared_bytes: of a block.
        resident_warps: most warps on a processor; None if a block does not fit.
        load_bits, store_bits: the mean width of a thread's accesses to global memory; 0 without any.
        sector_bytes: mean bytes that its tiles use of each 32-byte sector they touch; 0 if unknown.
        fp64: instructions that compute in float64, or convert to or from it.
        special: instructions with their own units: matrices, conversions to fp8, copy engines.
        mix: instructions by kind.
        asked: the operations that the author requests by name (`perfguard.measure.binaries.asked_for`).
        written: hash of the code before the compiler's first pass, without names of files and lines.
    """

    error: str = ""
    passing: bool = False
    binary: str = ""
    threads: int = 0
    registers: int = 0
    spills: int = 0
    stack_bytes: int = 0
    shared_bytes: int = 0
    resident_warps: int | None = None
    load_bits: float = 0.0
    store_bits: float = 0.0
    sector_bytes: float = 0.0
    fp64: int = 0
    special: list[str] = []
    mix: dict[str, int] = {}
    asked: str = ""
    written: str = ""

    @property
    def instructions(self) -> int:
        """Total number of instructions."""
        return sum(self.mix.values())


class Built(Struct, frozen=True, omit_defaults=True):
    """The result of one compilation. `code`: instructions still to be disassembled and counted."""

    facts: Facts
    code: bytes = b""
