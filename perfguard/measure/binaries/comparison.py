"""What the compilers make of the base's kernels and of the working tree's, for the same targets: found out only for
kernels that differ, and as far as they differ."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import Struct

from perfguard.measure.binaries.call_binaries import OnTarget, named
from perfguard.measure.binaries.compile_worker import FirstIr
from perfguard.measure.binaries.compiler import Compiler, Job, binaries_of, facts_of, first_irs
from perfguard.measure.binaries.kernel_facts import Facts, unfit
from perfguard.measure.binaries.launch_recorder import Launch, Recording, compiled_as, specialised, types_of
from perfguard.measure.binaries.targets import target_of
from perfguard.model.limits import Limits
from perfguard.model.records import Better, Parts, Reading, Value
from perfguard.model.units import Unit

# Instructions are counted in the code, not as executed: an added prologue is no finding, but half the width is.
_TOLERANCE = 0.1

#: The part for kernels that have no counterpart on the other side.
ALL_KERNELS = "all kernels"

LIMITS_OF_TARGETS = {
    "compilations": Limits(Better.LOWER),
    "fp64": Limits(Better.LOWER, tolerance=_TOLERANCE),
    "instructions": Limits(Better.LOWER, gated=False),
    "load_bits": Limits(Better.HIGHER, tolerance=_TOLERANCE),
    "memory_operators": Limits(Better.SAME),
    "registers": Limits(Better.LOWER, gated=False),
    "resident_warps": Limits(Better.HIGHER),
    "sector_bytes": Limits(Better.HIGHER, tolerance=_TOLERANCE),
    "shared_bytes": Limits(Better.LOWER, gated=False),
    "special": Limits(Better.SAME),
    "spills": Limits(Better.LOWER),
    "stack_bytes": Limits(Better.LOWER),
    "store_bits": Limits(Better.HIGHER, tolerance=_TOLERANCE),
    "tunings": Limits(Better.LOWER),
    "unfit": Limits(Better.LOWER),
}

_FACTS: dict[str, Callable[[Facts], int | float | str]] = {
    "spills": lambda facts: facts.spills,
    "stack_bytes": lambda facts: facts.stack_bytes,
    "resident_warps": lambda facts: facts.resident_warps or 0,
    "load_bits": lambda facts: facts.load_bits,
    "store_bits": lambda facts: facts.store_bits,
    "sector_bytes": lambda facts: facts.sector_bytes,
    "fp64": lambda facts: facts.fp64,
    "special": lambda facts: " ".join(facts.special) or "none",
    "registers": lambda facts: facts.registers,
    "shared_bytes": lambda facts: facts.shared_bytes,
    "instructions": lambda facts: facts.instructions,
}
_UNKNOWN_AT_0 = ("load_bits", "store_bits", "sector_bytes")  # no accesses, or none that can be followed

_SUMS: dict[str, Callable[[Sequence[Facts]], int]] = {
    "spills": lambda all_facts: sum(facts.spills for facts in all_facts),
    "stack_bytes": lambda all_facts: sum(facts.stack_bytes for facts in all_facts),
    "registers": lambda all_facts: max((facts.registers for facts in all_facts), default=0),
    "shared_bytes": lambda all_facts: max((facts.shared_bytes for facts in all_facts), default=0),
    "instructions": lambda all_facts: sum(facts.instructions for facts in all_facts),
}


class Sides(Struct, frozen=True):
    """The recordings of one case (`of_pass`) at the base and in the working tree."""

    base: Sequence[OnTarget]
    work: Sequence[OnTarget]


class Compared(Struct, frozen=True):
    """The readings of one case that differ between base and working tree; `sm_90.spills` and so on, with `target` set.

    Both sides have the same metrics in the same order and, of each, the kernels that differ by the working tree's
    names, so that `judge_exact(reading, compared.before[reading.metric])` gives the verdict of each reading of `work`.

    Attributes:
        problems: why something could not be compared here, `sm_90: rows: could not be compiled here: …`; these are no
            facts of a kernel.
        other_code: target -> the kernels with another binary, by the working tree's names; empty if none has one.
    """

    base: list[Reading] = []
    work: list[Reading] = []
    problems: list[str] = []
    other_code: dict[str, list[str]] = {}

    @property
    def before(self) -> Mapping[str, Value]:
        """Metric -> the base's value."""
        return {reading.metric: reading.value for reading in self.base}


def compare(base: Sequence[OnTarget], work: Sequence[OnTarget], compilers: tuple[Compiler, Compiler]) -> Compared:
    """Compare one case, as `compare_cases` does."""
    return compare_cases([Sides(base, work)], compilers)[0]


def compare_cases(cases: Sequence[Sides], compilers: tuple[Compiler, Compiler]) -> list[Compared]:
    """Compare the kernels of cases, in their order; what has to be compiled is compiled in one pool.

    Kernels are matched by name, else by their place among the launches and their signature. What is unmatched is
    compared by the sums of its case, as the part "all kernels". Kernels of equal source, launch and configuration are
    not compiled, those of equal first IR and options neither, and those of equal binaries are not disassembled.

    Args:
        compilers: the base's and the working tree's, with a `path` (and a `python`) of their own.
    """
    cases_on_targets = [_on_targets(sides, compilers) for sides in cases]
    every = [each for of_case in cases_on_targets for each in of_case]
    pairs = [pair for each in every for pair in each.pairs if not pair.is_known]
    if compilers[0].toolchain == compilers[1].toolchain:
        irs = first_irs(job for pair in pairs for job in pair.jobs)
        pairs = [pair for pair in pairs if not pair.has_equal(irs)]
    unmatched = [job for each in every for job in each.summed]
    binaries = binaries_of([*(job for pair in pairs for job in pair.jobs), *unmatched])
    differing = {pair for pair in pairs if pair.differs(binaries)}
    facts = facts_of([*(job for pair in differing for job in pair.jobs), *unmatched])
    for each in every:
        each.read([pair for pair in each.pairs if pair in differing], facts)
    return [_joined(of_case) for of_case in cases_on_targets]


@dataclass(frozen=True)
class _Pair:
    """One launch of both sides. `name`: in the working tree."""

    name: str
    base: Job
    work: Job

    @property
    def jobs(self) -> tuple[Job, Job]:
        return self.base, self.work

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
        """Whether both sides have one first IR, and equal options."""
        base, work = (irs[job].digest for job in self.jobs)
        return base == work != "" and compiled_as(self.base.launch)[1] == compiled_as(self.work.launch)[1]

    def differs(self, binaries: Mapping[Job, Facts]) -> bool:
        """Whether the binaries differ, or one could not be made."""
        base, work = (binaries[job] for job in self.jobs)
        return base.binary != work.binary or bool(base.error or work.error)


@dataclass
class _Side:
    """One side's launches of a case on a target, by name, and those that the other side lacks."""

    recording: Recording
    compiler: Compiler
    unmatched: list[tuple[str, Launch]] = field(default_factory=list)

    @property
    def kernels(self) -> dict[str, list[Launch]]:
        """Kernel -> its launches, in the order of their first ones."""
        found: dict[str, list[Launch]] = {}
        for launch in self.recording.launches:
            found.setdefault(launch.kernel, []).append(launch)
        return found

    @property
    def chosen(self) -> dict[str, list[Launch]]:
        """Kernel -> the launches of the plain call; where a tuner chooses, all that it chooses from."""
        return {
            kernel: [each for each in launches if each.configuration is None] or launches
            for kernel, launches in self.kernels.items()
        }


@dataclass
class _OnOneTarget:
    """One case on one target, matched, then read. Values are the base's and the working tree's."""

    target: str
    base: _Side
    work: _Side
    pairs: list[_Pair] = field(default_factory=list)
    renamed: dict[str, str] = field(default_factory=dict)  # the base's kernel -> the working tree's
    values: dict[str, tuple[Parts, Parts]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    other_code: list[str] = field(default_factory=list)

    @property
    def sides(self) -> tuple[_Side, _Side]:
        return self.base, self.work

    @property
    def summed(self) -> list[Job]:
        """The launches that are summed up because some of them have no counterpart. A call that was not followed to
        its end, or has kernels on one side alone, has no sums to compare."""
        followed = all(side.recording.launches and not side.recording.problem for side in self.sides)
        lacking = any(launch in side.chosen[launch.kernel] for side in self.sides for _, launch in side.unmatched)
        if not (followed and lacking):
            return []
        return [
            Job(side.compiler, self.target, launch)
            for side in self.sides
            for launches in side.chosen.values()
            for launch in launches
        ]

    def read(self, differing: Sequence[_Pair], facts: Mapping[Job, Facts]) -> None:
        """Fill in values, problems and other code."""
        for pair in differing:
            base, work = facts[pair.base], facts[pair.work]
            if self._failed_here(pair.name, base) or self._failed_here(pair.name, work):
                continue
            if base.error or work.error:
                self._add("unfit", pair.name, self._unfit(base), self._unfit(work))
                continue
            self.other_code.append(pair.name)
            self._add_facts(pair.name, base, work)
        if self.summed:
            self._add_sums(facts)
        self._add_counts()

    def _add_facts(self, name: str, base: Facts, work: Facts) -> None:
        reasons = self._unfit(base), self._unfit(work)
        self._add("unfit", name, *reasons)
        for metric, of in _FACTS.items():
            values = of(base), of(work)
            unknown = metric in _UNKNOWN_AT_0 and not all(values)
            if not unknown and not (metric == "resident_warps" and any(reasons)):
                self._add(metric, name, *values)

    def _add_sums(self, facts: Mapping[Job, Facts]) -> None:
        totals: list[list[Facts]] = []
        for side in self.sides:
            chosen = []
            for kernel, launches in side.chosen.items():
                made = [facts[Job(side.compiler, self.target, launch)] for launch in launches]
                if any(self._failed_here(kernel, each) for each in made):
                    return
                compiled = [each for each in made if not each.error]
                tuned = all(launch.configuration is not None for launch in launches)
                chosen += [min(compiled, key=lambda each: each.spills)] if tuned and compiled else compiled
            totals.append(chosen)
        for metric, total in _SUMS.items():
            values = total(totals[0]), total(totals[1])
            if values[0] != values[1]:
                self._add(metric, ALL_KERNELS, *values)
        before, after = (
            {name: reason for name, launch in side.unmatched if (reason := self._unfit_of(side, launch, facts))}
            for side in self.sides
        )
        for name, reason in after.items():
            if reason not in before.values():  # the kernel that could not be matched had the same fault
                self._add("unfit", name, "", reason)

    def _add_counts(self) -> None:
        base, work = self.base.recording, self.work.recording
        for metric, kernels_of in _COUNTED.items():
            before = Counter(self.renamed.get(kernel, kernel) for kernel in kernels_of(base))
            after = Counter(kernels_of(work))
            for kernel in dict.fromkeys((*after, *before)):
                if before[kernel] != after[kernel]:
                    self._add(metric, kernel, before[kernel], after[kernel])
        self._add("unfit", "call", base.problem, work.problem or self._gone)

    @property
    def _gone(self) -> str:
        """A call may fall back to torch's operators where nobody looks: on a chip that is not here."""
        gone = self.base.recording.launches and not self.work.recording.launches
        return "launches no Triton kernel any more" if gone else ""

    def _unfit(self, facts: Facts) -> str:
        return unfit(facts, target_of(self.target))

    def _unfit_of(self, side: _Side, launch: Launch, facts: Mapping[Job, Facts]) -> str:
        found = facts.get(Job(side.compiler, self.target, launch))
        return "" if found is None else self._unfit(found)

    def _failed_here(self, name: str, facts: Facts) -> bool:
        if facts.passing:
            self.problems.append(f"{self.target}: {name}: {facts.error}")
        return facts.passing

    def _add(self, metric: str, part: str, base: int | float | str, work: int | float | str) -> None:
        """Add a part's values; "" of `unfit` is no fault."""
        before, after = self.values.setdefault(metric, ({}, {}))
        if metric != "unfit" or base:
            before[part] = base
        if metric != "unfit" or work:
            after[part] = work

    def readings(self) -> Iterator[tuple[Reading, Reading]]:
        """The readings that differ, of both sides."""
        for metric in LIMITS_OF_TARGETS:
            before, after = self.values.get(metric, ({}, {}))
            if before != after:
                yield self._reading(metric, before), self._reading(metric, after)
        operators = _operators(self.base.recording), _operators(self.work.recording)
        if operators[0] != operators[1]:
            yield self._reading("memory_operators", operators[0]), self._reading("memory_operators", operators[1])

    def _reading(self, metric: str, value: Value) -> Reading:
        limits, name = LIMITS_OF_TARGETS[metric], f"{self.target}.{metric}"
        text = limits.better is Better.SAME or metric == "unfit"
        unit = Unit.TEXT if text else Unit.BYTES if metric.endswith("_bytes") else Unit.COUNT
        faults = value.items() if metric == "unfit" and isinstance(value, dict) else ()
        note = "; ".join(f"{self.target}: {part}: {reason}" for part, reason in faults)
        return limits.reading(name, unit, value, target=self.target, note=note)


_COUNTED: dict[str, Callable[[Recording], list[str]]] = {
    "compilations": lambda recording: [launch.kernel for launch in recording.walked],
    "tunings": lambda recording: [each.kernel for each in recording.tunings if each.configurations > 1],
}


def _operators(recording: Recording) -> str:
    """Torch's fills, copies and reads beside the kernels: on a GPU they are launches, and waits of the host."""
    names = (name.removeprefix("aten.") for operators in recording.memory_operators.values() for name in operators)
    return ", ".join(f"{count} {name}" for name, count in sorted(Counter(names).items())) or "none"


def _joined(found: Sequence[_OnOneTarget]) -> Compared:
    both = [readings for each in found for readings in each.readings()]
    return Compared(
        [base for base, _ in both],
        [work for _, work in both],
        list(dict.fromkeys(problem for each in found for problem in each.problems)),
        {each.target: each.other_code for each in found if each.other_code},
    )


# -- matching ----------------------------------------------------------------------------------------------------------


def _on_targets(sides: Sides, compilers: tuple[Compiler, Compiler]) -> list[_OnOneTarget]:
    """The case on every target that both sides know."""
    recordings = {each.target: each.recording for each in sides.base}
    return [
        _match(
            _OnOneTarget(each.target, _Side(recordings[each.target], compilers[0]), _Side(each.recording, compilers[1]))
        )
        for each in sides.work
        if each.target in recordings
    ]


def _match(case: _OnOneTarget) -> _OnOneTarget:
    """Fill in pairs, renamed kernels and unmatched launches."""
    base, work = case.sides
    case.renamed.update(_counterparts(base.kernels, work.kernels))
    of_base: dict[str, list[Launch]] = {case.renamed.get(name, ""): each for name, each in base.kernels.items()}
    names = {id(launch): name for side in case.sides for name, launch in named(side.recording.launches)}
    matched: set[int] = set()
    for kernel, launches in work.kernels.items():
        for before, after in _launch_pairs(of_base.get(kernel, []), launches):
            matched |= {id(before), id(after)}
            jobs = Job(base.compiler, case.target, before), Job(work.compiler, case.target, after)
            case.pairs.append(_Pair(names[id(after)], *jobs))
    for side in case.sides:
        side.unmatched = [(names[id(each)], each) for each in side.recording.launches if id(each) not in matched]
    return case


def _counterparts(base: Mapping[str, Sequence[Launch]], work: Mapping[str, Sequence[Launch]]) -> dict[str, str]:
    """The base's kernel -> the working tree's: of the same name, or renamed, after the same kernel and with parameters
    of the same types."""
    places = [_places(kernels, base.keys() & work.keys()) for kernels in (base, work)]
    return {name: places[1].get(place, "") for place, name in places[0].items() if place in places[1]}


def _places(kernels: Mapping[str, Sequence[Launch]], common: set[str]) -> dict[tuple[object, ...], str]:
    """Place -> kernel."""
    counts: Counter[tuple[object, ...]] = Counter()
    found: dict[tuple[object, ...], str] = {}
    last = ""
    for name, launches in kernels.items():
        if name in common:
            last = name
            found[name,] = name
        else:
            place = last, json.dumps(types_of(launches[0]))
            counts[place] += 1
            found[*place, counts[place]] = name
    return found


def _launch_pairs(base: Sequence[Launch], work: Sequence[Launch]) -> list[tuple[Launch, Launch]]:
    """The launches of one kernel by their specialisations, whichever of them the plain call chooses. Of the others,
    those of the plain call are paired in their order, and configurations if there are as many on both sides: one that
    was inserted makes no other one worse."""
    pairs: list[tuple[Launch, Launch]] = []
    before, after = list(base), list(work)

    def pair(candidates: list[Launch], fits: Callable[[Launch, Launch], bool]) -> None:
        for launch in list(after):
            found = next((each for each in candidates if fits(each, launch)), None)
            if found is not None:
                pairs.append((found, launch))
                after.remove(launch)
                if found in before:
                    before.remove(found)

    pair(before, lambda old, new: _is_plain(old) is _is_plain(new) and specialised(old) == specialised(new))
    pair(before, lambda old, new: _is_plain(old) and _is_plain(new))
    pair(list(base), lambda old, new: specialised(old) == specialised(new))
    known = set(map(specialised, work))
    before = [each for each in before if not _is_plain(each) and specialised(each) not in known]
    after = [each for each in after if not _is_plain(each)]
    return pairs + list(zip(before, after, strict=True)) if len(before) == len(after) else pairs


def _is_plain(launch: Launch) -> bool:
    return launch.configuration is None
