"""Compares the compiled kernels of the base and of the working tree, for the same targets. Only kernels that differ are
compiled, and only as far as they differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec import Struct

from perfguard.measure.binaries.call_binaries import OnTarget
from perfguard.measure.binaries.compile_worker import FirstIr
from perfguard.measure.binaries.compiler import Compiler, Job, binaries_of, facts_of, first_irs
from perfguard.measure.binaries.kernel_code import configuration_of
from perfguard.measure.binaries.kernel_facts import Facts, unfit
from perfguard.measure.binaries.launch_recorder import Recording, compiled_as
from perfguard.measure.binaries.matching import chosen, kernels_of, match
from perfguard.measure.binaries.targets import target_of
from perfguard.model.limits import EITHER, Limits
from perfguard.model.records import Better, Parts, Reading, Value
from perfguard.model.units import Unit

# Instructions are counted in the code, not as executed. An added prologue is no finding, but half the width is one.
_TOLERANCE = 0.1

#: The part for kernels without a counterpart on the other side.
ALL_KERNELS = "all kernels"

CONFIGURATION = Limits(Better.SAME, gated=False, portable=EITHER)
_CLOSEST = 10  # A configuration is a closer cause than its consequences.

LIMITS_OF_TARGETS = {
    "address_bits": Limits(Better.HIGHER),
    "compilations": Limits(Better.LOWER),
    "fp64": Limits(Better.LOWER, tolerance=_TOLERANCE),
    "hints": Limits(Better.HIGHER),
    "instructions": Limits(Better.LOWER, gated=False),
    "load_bits": Limits(Better.HIGHER, tolerance=_TOLERANCE),
    "memory_operators": Limits(Better.SAME),
    "ordering": Limits(Better.HIGHER),
    "registers": Limits(Better.LOWER, gated=False),
    "resident_warps": Limits(Better.HIGHER),
    "sector_bytes": Limits(Better.HIGHER, tolerance=_TOLERANCE),
    "shared_bytes": Limits(Better.LOWER, gated=False),
    "special": Limits(Better.SAME),
    "spills": Limits(Better.LOWER),
    "store_bits": Limits(Better.HIGHER, tolerance=_TOLERANCE),
    "tunings": Limits(Better.LOWER),
    "unfit": Limits(Better.LOWER),
    "unspecialised": Limits(Better.HIGHER),
}

# The facts that are compared, in the order of the readings; and the way in which those of several kernels are joined.
_FACTS = (
    "spills", "resident_warps", "load_bits", "store_bits", "sector_bytes", "fp64", "special",
    "registers", "shared_bytes", "instructions",
)  # fmt: skip
_UNKNOWN_AT_0 = ("load_bits", "store_bits", "sector_bytes")  # A kernel has no accesses, or none can be followed.
_SUMS: dict[str, Callable[[list[int]], int]] = {
    "spills": sum, "registers": max, "shared_bytes": max, "instructions": sum,
}  # fmt: skip


class Sides(Struct, frozen=True):
    """The recordings of one case (`of_pass`) at the base and in the working tree."""

    base: Sequence[OnTarget]
    work: Sequence[OnTarget]


class Compared(Struct, frozen=True):
    """The readings of one case that differ between base and working tree: those of a target, such as `sm_90.spills`,
    and `configuration`.

    Both sides have the same metrics in the same order. The parts of a metric are the differing kernels, by the working
    tree's names.

    Attributes:
        problems: reasons why kernels could not be compared on this machine, such as `sm_90: rows: could not be compiled
            here: …`.
        other_code: target -> the kernels with another binary, by the working tree's names.
    """

    base: list[Reading] = []
    work: list[Reading] = []
    problems: list[str] = []
    other_code: dict[str, list[str]] = {}


def compare_cases(cases: Sequence[Sides], compilers: tuple[Compiler, Compiler]) -> list[Compared]:
    """Compare the kernels of cases, in their order, with all compilations in one pool.

    Kernels are matched by name, else by their place among the launches and their signature. Unmatched kernels are
    compared by the sums of their case, as the part "all kernels". Kernels with equal source, launch and configuration,
    or with equal first IR and options, are not compiled. Kernels with equal binaries are not disassembled.

    Args:
        compilers: the base's and the working tree's, each with its own `path` (and `python`).
    """
    irs: Mapping[Job, FirstIr] = {}
    by_case = [_target_comparisons(sides, compilers) for sides in cases]
    comparisons = [comparison for of_case in by_case for comparison in of_case]
    pairs = [pair for comparison in comparisons for pair in comparison.pairs if not pair.is_known]
    if pairs and compilers[0].toolchain == compilers[1].toolchain:
        irs = first_irs(_jobs(pairs))
        pairs = [pair for pair in pairs if not pair.has_equal(irs)]
    summed = [job for comparison in comparisons for side in comparison.summed for jobs in side.values() for job in jobs]
    binaries = binaries_of([*_jobs(pairs), *summed])
    differing = {pair for pair in pairs if pair.differs(binaries)}
    facts = facts_of([*_jobs(differing), *summed])
    for comparison in comparisons:
        comparison.read([pair for pair in comparison.pairs if pair in differing], facts, irs)
    return [_joined(sides, of_case) for sides, of_case in zip(cases, by_case, strict=True)]


@dataclass(frozen=True)
class _Pair:
    """One launch on both sides. `name` is its name in the working tree."""

    name: str
    base: Job
    work: Job

    @property
    def is_known(self) -> bool:
        """Whether source and specialisation are equal, so that nothing has to be compiled."""
        base, work = self.base.launch, self.work.launch
        return (
            self.base.compiler.toolchain == self.work.compiler.toolchain
            and base.source == work.source != ""
            and (base.module, base.function, compiled_as(base)) == (work.module, work.function, compiled_as(work))
        )

    def has_equal(self, irs: Mapping[Job, FirstIr]) -> bool:
        """Whether both sides have the same first IR and options."""
        base, work = irs[self.base].digest, irs[self.work].digest
        return base == work != "" and compiled_as(self.base.launch)[1] == compiled_as(self.work.launch)[1]

    def differs(self, binaries: Mapping[Job, Facts]) -> bool:
        """Whether the binaries differ, or one could not be compiled."""
        base, work = binaries[self.base], binaries[self.work]
        return base.binary != work.binary or bool(base.error or work.error)


def _jobs(pairs: Iterable[_Pair]) -> list[Job]:
    """The jobs of both sides, alternating, so that both sides compile at the same time."""
    return [job for pair in pairs for job in (pair.base, pair.work)]


Summed = dict[str, list[Job]]  # kernel -> its launches, or those among which a tuner chooses


class _TargetComparison:
    """The comparison of one case on one target: launches are matched first, and read later."""

    def __init__(
        self, target: str, recordings: tuple[Recording, Recording], compilers: tuple[Compiler, Compiler]
    ) -> None:
        self.target = target
        self.base, self.work = recordings
        self.problems: list[str] = []
        self.other_code: list[str] = []
        self.matched = match(*recordings)
        self.pairs = [
            _Pair(name, Job(compilers[0], target, old), Job(compilers[1], target, new))
            for name, old, new in self.matched.pairs
        ]
        self.summed = self._summed(compilers)
        self._values: dict[str, tuple[Parts, Parts]] = {}  # metric -> the base's and the working tree's parts

    def _summed(self, compilers: tuple[Compiler, Compiler]) -> list[Summed]:
        """Both sides' launches, if some have no counterpart. A call has no comparable sums if it was not followed to
        its end, or has kernels on one side only."""
        sides = list(zip((self.base, self.work), compilers, strict=True))
        comparable = all(side.launches and not side.problem for side, _ in sides)
        if not comparable or not any(self.matched.unmatched):
            return []
        return [
            {
                kernel: [Job(compiler, self.target, launch) for launch in chosen(launches)]
                for kernel, launches in kernels_of(side).items()
            }
            for side, compiler in sides
        ]

    def read(self, differing: Sequence[_Pair], facts: Mapping[Job, Facts], irs: Mapping[Job, FirstIr]) -> None:
        """Fill in values, problems and other code. First IRs are empty if the versions of Triton differ."""
        for pair in differing:
            if irs:
                self._add_source(pair, irs[pair.base], irs[pair.work])
            base, work = facts[pair.base], facts[pair.work]
            if not self._failed_here(pair.name, (base, work)):
                self._add_facts(pair.name, base, work)
        if self.summed:
            self._add_sums(facts)
        self.problems += [f"{self.target}: could not be followed here: {problem}" for problem in self._cut_short]
        if self.is_whole:
            self._add_counts()

    @property
    def _cut_short(self) -> list[str]:
        """The problems of this machine that cut a recording short."""
        return [side.problem for side in (self.base, self.work) if side.passing]

    @property
    def is_whole(self) -> bool:
        return not self._cut_short

    def _add_source(self, pair: _Pair, base: FirstIr, work: FirstIr) -> None:
        """Compare what the author wrote. Another configuration unrolls other loops, with what they contain."""
        if work.is_narrower_than(base):
            self._add("address_bits", pair.name, 64, 32)
        self._add("unspecialised", pair.name, pair.base.launch.unspecialised, pair.work.launch.unspecialised)
        if compiled_as(pair.base.launch) == compiled_as(pair.work.launch):
            self._add("ordering", pair.name, base.ordered, work.ordered)
            self._add("hints", pair.name, base.hinted, work.hinted)

    def _add_facts(self, name: str, base: Facts, work: Facts) -> None:
        reasons = self._unfit(base), self._unfit(work)
        self._add("unfit", name, *reasons)
        if base.error or work.error:
            return
        self.other_code.append(name)
        for metric in _FACTS:
            values = _fact(base, metric), _fact(work, metric)
            unknown = metric in _UNKNOWN_AT_0 and not all(values)
            if not unknown and not (metric == "resident_warps" and any(reasons)):
                self._add(metric, name, *values)

    def _add_sums(self, facts: Mapping[Job, Facts]) -> None:
        made = [{kernel: [facts[job] for job in jobs] for kernel, jobs in side.items()} for side in self.summed]
        uncompiled = [
            kernel for side in made for kernel, of_kernel in side.items() if self._failed_here(kernel, of_kernel)
        ]
        if uncompiled:
            return
        base, work = ([one for jobs in side.values() for one in _likely(jobs, facts)] for side in self.summed)
        for metric, join in _SUMS.items():
            before, after = (join([0, *(getattr(one, metric) for one in side)]) for side in (base, work))
            if before != after:
                self._add(metric, ALL_KERNELS, before, after)
        faults = [self._unmatched_faults(number, facts) for number in (0, 1)]
        for name, reason in faults[1].items():
            if reason not in faults[0].values():  # The base's kernel may have had the same fault.
                self._add("unfit", name, "", reason)

    def _unmatched_faults(self, side: int, facts: Mapping[Job, Facts]) -> dict[str, str]:
        jobs = {job.launch: job for jobs in self.summed[side].values() for job in jobs}
        return {
            name: reason
            for name, launch in self.matched.unmatched[side]
            if (reason := self._unfit(facts[jobs[launch]]))
        }

    def _add_counts(self) -> None:
        # If only one side has a walk, the tests differ and not the code.
        alike = bool(self.base.walked) is bool(self.work.walked)
        for metric, kernels in _COUNTED.items() if alike else ():
            before = Counter(self.matched.renamed.get(kernel, kernel) for kernel in kernels(self.base))
            after = Counter(kernels(self.work))
            for kernel in dict.fromkeys((*after, *before)):
                if before[kernel] != after[kernel]:
                    self._add(metric, kernel, before[kernel], after[kernel])
        # On an absent chip a call may fall back to torch's operators unnoticed.
        no_launches = "launches no Triton kernel any more" if self.base.launches and not self.work.launches else ""
        self._add("unfit", "call", self.base.problem, self.work.problem or no_launches)

    def _unfit(self, facts: Facts) -> str:
        return unfit(facts, target_of(self.target))

    def _failed_here(self, name: str, made: Iterable[Facts]) -> bool:
        """Whether a kernel could not be compiled here, which is a problem of the machine and no fact of the kernel."""
        errors = [facts.error for facts in made if facts.passing]
        self.problems += [f"{self.target}: {name}: {error}" for error in errors]
        return bool(errors)

    def _add(self, metric: str, part: str, base: int | float | str, work: int | float | str) -> None:
        """Add both sides' values of a part. A side with an empty text does not get the part."""
        before, after = self._values.setdefault(metric, ({}, {}))
        before |= {} if base == "" else {part: base}
        after |= {} if work == "" else {part: work}

    def readings(self) -> Iterator[tuple[Reading, Reading]]:
        """The readings that differ, as pairs of both sides."""
        values: dict[str, tuple[Value, Value]] = {**self._values}
        if self.is_whole:
            values["memory_operators"] = _operators(self.base), _operators(self.work)
        for metric, (before, after) in sorted(values.items()):
            if before != after:
                yield self._reading(metric, before), self._reading(metric, after)

    def _reading(self, metric: str, value: Value) -> Reading:
        limits, name = LIMITS_OF_TARGETS[metric], f"{self.target}.{metric}"
        text = limits.better is Better.SAME or metric == "unfit"
        unit = Unit.TEXT if text else Unit.BYTES if metric.endswith("_bytes") else Unit.COUNT
        faults = value.items() if metric == "unfit" and isinstance(value, dict) else ()
        note = "; ".join(f"{self.target}: {part}: {reason}" for part, reason in faults)
        if metric == "address_bits":
            note = "an address, or an index before it, is computed in 32 bits, which the base computes in 64: it wraps "
            note += "beyond 2^31 elements"
        return limits.reading(name, unit, value, target=self.target, note=note)


def _fact(facts: Facts, metric: str) -> int | float | str:
    value = getattr(facts, metric)
    return " ".join(value) or "none" if metric == "special" else value or 0


def configuration_reading(configuration: Mapping[str, str]) -> Reading:
    """The reading with the parts of `configuration_of`."""
    value: Parts = {**configuration}
    return CONFIGURATION.reading("configuration", Unit.TEXT, value, rank=_CLOSEST, portable=True)


def _likely(jobs: Sequence[Job], facts: Mapping[Job, Facts]) -> list[Facts]:
    """The facts of a kernel's launches; if a tuner chooses among them, those of the launch with the fewest spills."""
    made = [facts[job] for job in jobs if not facts[job].error]
    tuned = all(job.launch.configuration is not None for job in jobs)
    return [min(made, key=lambda each: each.spills)] if tuned and made else made


_COUNTED: dict[str, Callable[[Recording], list[str]]] = {
    "compilations": lambda recording: [launch.kernel for launch in recording.walked],
    "tunings": lambda recording: [each.kernel for each in recording.tunings if each.configurations > 1],
}


def _operators(recording: Recording) -> str:
    """Torch's fills, copies and reads beside the kernels, which on a GPU are launches and waits of the host."""
    names = (name.removeprefix("aten.") for operators in recording.memory_operators.values() for name in operators)
    return ", ".join(f"{count} {name}" for name, count in sorted(Counter(names).items())) or "none"


def _target_comparisons(sides: Sides, compilers: tuple[Compiler, Compiler]) -> list[_TargetComparison]:
    """Comparisons of the case on every target that both sides have."""
    base = {followed.target: followed.recording for followed in sides.base}
    return [
        _TargetComparison(followed.target, (base[followed.target], followed.recording), compilers)
        for followed in sides.work
        if followed.target in base
    ]


def _joined(sides: Sides, comparisons: Sequence[_TargetComparison]) -> Compared:
    both = [readings for comparison in comparisons for readings in comparison.readings()]
    renamed = {before: after for comparison in comparisons for before, after in comparison.matched.renamed.items()}
    whole = {comparison.target for comparison in comparisons if comparison.is_whole}
    old, new = ([followed for followed in side if followed.target in whole] for side in (sides.base, sides.work))
    before, after = configuration_of(old, renamed), configuration_of(new)
    if before != after:
        both.insert(0, (configuration_reading(before), configuration_reading(after)))
    return Compared(
        [base for base, _ in both],
        [work for _, work in both],
        list(dict.fromkeys(problem for comparison in comparisons for problem in comparison.problems)),
        {comparison.target: comparison.other_code for comparison in comparisons if comparison.other_code},
    )
