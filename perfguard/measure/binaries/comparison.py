"""What the compilers make of the base's kernels and of the working tree's, for the same targets: found out only for
kernels that differ, and as far as they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from perfguard.measure.binaries.call_binaries import OnTarget
from perfguard.measure.binaries.compiler import Compiler
from perfguard.model.records import Reading, Value


class Compared(Struct, frozen=True):
    """The readings of one case that differ between base and working tree; `sm_90.spills` and so on, with `target` set.

    Both sides have the same metrics in the same order and, of each, the same kernels by the working tree's names, so
    that `judge_exact(reading, compared.before[reading.metric])` gives the verdict of each reading of `work`. Empty if
    nothing differs.

    Attributes:
        problems: why something could not be compared here, `sm_90: could not be compiled here: …`; no fact of a kernel.
        other_code: target -> the kernels whose binaries differ, by the working tree's names.
    """

    base: list[Reading] = []
    work: list[Reading] = []
    problems: list[str] = []
    other_code: dict[str, list[str]] = {}

    @property
    def before(self) -> Mapping[str, Value]:
        """Metric -> the base's value."""
        return {reading.metric: reading.value for reading in self.base}


class Sides(Struct, frozen=True):
    """The recordings of one case (`of_pass`) at the base and in the working tree."""

    base: Sequence[OnTarget]
    work: Sequence[OnTarget]


def compare(base: Sequence[OnTarget], work: Sequence[OnTarget], compilers: tuple[Compiler, Compiler]) -> Compared:
    """Compare one case, as `compare_cases` does."""
    return compare_cases([Sides(base, work)], compilers)[0]


def compare_cases(cases: Sequence[Sides], compilers: tuple[Compiler, Compiler]) -> list[Compared]:
    """Compare the kernels of cases, in the order of `cases`; what has to be compiled is compiled in one pool.

    Kernels are matched by name, else by their place among the launches and their signature. What is unmatched is
    compared by the sums of its case, as the part "all kernels".

    Args:
        compilers: the base's and the working tree's, with a `path` (and `python`) of their own.
    """
    raise NotImplementedError
