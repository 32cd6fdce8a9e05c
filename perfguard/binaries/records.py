"""The stages of the data: a launch as Triton was asked for it, and what became of it on a target."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Pass = Literal["forward", "backward"]


class Launch(Struct, frozen=True):
    """One launch of a kernel, specialised as the just-in-time compiler would for one target.

    Attributes:
        module, file, function: where the kernel is defined; `function` is its qualified name.
        data: what Triton's own hook says of the specialisation, as JSON; it can compile from that.
        configuration: the number of the configuration; None for what the plain call chose.
        twin: of what the plain call chose, the number of the configuration that is the same.
        source: hash of the code that the kernel may depend on, free of comments, paths and line numbers.
        unspecialised: parameters whose values make no other binary, because the decorator says so.
        interpretable: whether Triton's interpreter can run it; it has none for Gluon.
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
    """An autotuner that a call came by: the kernel, and the key under which it would look for its choice."""

    kernel: str
    key: str
    configurations: int
    direction: Pass = "forward"


class Recording(Struct, frozen=True):
    """What one call would launch on one target.

    Attributes:
        walked: the launches of its walk, the plain call's among them.
        tunings: one for each key that tuners would meet on the walk.
        problem: why the call could not be followed to its end.
        entries: of a table, that the configurations come from, by number; empty where none was named.
        memory_operators: torch's operators that fill, copy or read memory in the plain call, by pass and in order.
        arguments: of the plain call's launches of kernels that nothing interprets, by pass and kernel and in order:
            grid, numbers, shapes and strides, as text.
    """

    launches: list[Launch] = []
    walked: list[Launch] = []
    tunings: list[Tuning] = []
    problem: str = ""
    entries: list[str] = []
    memory_operators: dict[Pass, list[str]] = {}
    arguments: dict[Pass, dict[str, list[str]]] = {}


class Facts(Struct, frozen=True, omit_defaults=True):
    """What a compiled kernel asks of the chip, and what it is made of. Counts are of the code, not of its execution.

    Attributes:
        error: the compiler's last words, where it gave no binary; nothing else is set then.
        passing: the error may be the machine's and not the kernel's: it is worth another try.
        binary: hash of the machine code.
        registers: of a thread (AMD: vector registers, accumulation registers among them).
        spills: instructions that move spilled or local values (AMD: vector registers that were spilled).
        stack_bytes: of a thread, in memory: spilled registers and local arrays.
        shared_bytes: of a block.
        resident_warps: of a processor, at most; None where the block does not fit.
        load_bits, store_bits: the mean width of a thread's accesses to global memory; 0 where there are none.
        sector_bytes: that its tiles use of each 32-byte sector they touch, in the mean; 0 where that is not to be seen.
        fp64: instructions that compute in float64, or convert to or from it.
        special: the instructions that have units of their own: matrices, conversions to fp8, copy engines.
        mix: instructions by kind.
        asked: what the author asks for by name (`perfguard.binaries.asking`).
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
        """In all."""
        return sum(self.mix.values())


class Built(Struct, frozen=True, omit_defaults=True):
    """What became of one compilation. `code`: instructions that are yet to be disassembled and counted."""

    facts: Facts
    code: bytes = b""
