"""Fingerprints of a call's kernels: whether a record was made of the same code, without compiling it for any target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfguard.measure.binaries.call_binaries import OnTarget
from perfguard.measure.binaries.compiler import Compiler


def code_of(
    found: Sequence[OnTarget], compiler: Compiler | None, known: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Kernel function -> `<source>-<ir>`, 8 hex digits each, over all of its launches: those of the plain call, of its
    configurations and of its walk.

    `<source>` is of the code that the kernel may depend on and of its specialisations, `<ir>` of Triton's first IR in
    place of the code. Both are of what else would show on a GPU: targets, tunings, memory operators, and arguments of
    kernels that cannot be interpreted. Neither depends on paths, ids or addresses. `<ir>` is empty if it was not asked
    for, or if it could not be made here.

    Args:
        found: of one pass (`of_pass`).
        compiler: makes the first IRs, in one pool. None: only kernels that `known` holds get one.
        known: the record's fingerprints. Of a kernel with the record's source, the record's own text is returned, and
            nothing is compiled.
    """
    raise NotImplementedError


def same_code(a: str, b: str) -> bool:
    """Whether two fingerprints are of equal code. One half is enough: the IR differs after an upgrade of Triton, and
    the source after a renaming of variables."""
    raise NotImplementedError


def configuration_of(found: Sequence[OnTarget]) -> dict[str, str]:
    """``\\`kernel\\`: NAME`` -> value, for every constant and option of the launches that the plain call chooses; `entry`
    for the entry of a table that they come from, `tuned` for those that a tuner is to choose. Values that differ
    between targets name them: `9 on sm_80 sm_90, 2 on gfx942`."""
    raise NotImplementedError
