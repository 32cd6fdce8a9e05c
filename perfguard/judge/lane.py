"""Lanes: the hardware that is judged, its baselines, and their noise."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from msgspec.structs import replace

from perfguard.judge.record import Record, differing_versions, other_power
from perfguard.judge.statistics import UNLEARNT, History, Prior, fit_prior, history_of
from perfguard.model.limits import KERNEL_TIME
from perfguard.model.records import (
    NO_BASE,
    NO_COMMIT,
    NO_RECORD,
    Baseline,
    BaseTree,
    CaseBaseline,
    CaseId,
    CaseResult,
    Entry,
    Hardware,
    Reading,
    ReadingId,
    TimedEntry,
    Toolchain,
)
from perfguard.model.records.baseline import EVERY_CPU, entries_of
from perfguard.model.records.code import CODE, same_parts


@dataclass(frozen=True)
class Lane:
    """One hardware that is judged, with its baselines and the base of its times.

    Attributes:
        files: the baselines of this hardware, of its target, and of other hardware. The last only show on which
            hardware a case is known.
        base: the commit that every case is compared with; None if each case has the commit of its own record.
        base_at: returns the tree of a commit that a record names.
    """

    hardware: Hardware
    toolchain: Toolchain
    files: Sequence[Baseline] = ()
    base: BaseTree | None = NO_BASE
    base_at: Callable[[str], BaseTree] = lambda commit: NO_BASE

    def base_of(self, suite: str, key: str) -> BaseTree:
        """The commit that a case is compared with, by default that of its record: it shows whether the code got slower
        since."""
        if self.base is not None:
            return self.base
        if (suite, key) not in self.remembered:
            return NO_RECORD
        commit = self.commit_of(suite, key)
        return NO_COMMIT if commit is None else self.base_at(commit)

    def commit_of(self, suite: str, key: str) -> str | None:
        """The commit of a case's record, as the record names it; None without one."""
        for files in (self.baselines, self.portable):
            if suite in files and key in files[suite].cases:
                return files[suite].provenance_of(key).commit
        return None

    @cached_property
    def _by_folder(self) -> Mapping[str, Mapping[str, Baseline]]:
        folders: dict[str, dict[str, Baseline]] = defaultdict(dict)
        for file in self.files:
            folders[file.hardware][file.suite] = file
        return folders

    @cached_property
    def baselines(self) -> Mapping[str, Baseline]:
        """Suite -> baseline of this hardware, of one device and of several."""
        return joined(file for file in self.files if is_own(self.hardware.slug, file.hardware))

    @property
    def portable(self) -> Mapping[str, Baseline]:
        """Suite -> baseline that holds on every machine of the hardware's target."""
        return self._by_folder.get(self.hardware.target or "", {})

    @cached_property
    def elsewhere(self) -> Mapping[CaseId, Sequence[str]]:
        """(suite, case key) -> slugs of other hardware with a baseline of the case, sorted."""
        slugs_by_case: dict[CaseId, list[str]] = defaultdict(list)
        for file in sorted(self.files, key=lambda file: file.hardware):
            for key in () if self.judges_by(file) or file.hardware == EVERY_CPU else file.cases:
                slugs_by_case[file.suite, key].append(file.hardware)
        return slugs_by_case

    @cached_property
    def remembered(self) -> frozenset[CaseId]:
        """(suite, case key) of every case in the baselines of the hardware or of its target."""
        return frozenset(
            (suite, key)
            for files in (self.baselines, self.portable)
            for suite, baseline in files.items()
            for key in baseline.cases
        )

    @cached_property
    def timed(self) -> Mapping[ReadingId, TimedEntry]:
        """Every stored time of this hardware."""
        return {
            ReadingId(suite, key, metric): entry
            for suite, baseline in self.baselines.items()
            for key, case in baseline.cases.items()
            for metric, entry in case.entries.items()
            if isinstance(entry, TimedEntry)
        }

    @cached_property
    def _priors(self) -> Mapping[str, Prior]:
        histories: dict[str, list[History]] = defaultdict(list)
        for entry in self.timed.values():
            histories[timer_class(entry.timer)].append(history_of(entry.sessions))
        return {name: fit_prior(of_class) for name, of_class in histories.items()}

    def prior(self, name: str) -> Prior:
        """The noise between the stored sessions of a timer class."""
        return self._priors.get(name, UNLEARNT)

    def comparable(self, result: CaseResult) -> bool:
        """Whether the times of `result` have the inputs, power limit and toolchain of the stored ones."""
        baseline = self.baselines.get(result.case.suite)
        key = key_of_record(baseline, result)
        stored = baseline.cases.get(key) if baseline else None
        if baseline is None or stored is None:
            return False
        provenance = baseline.provenance_of(key)
        return (
            stored.inputs in ("", result.inputs)
            and not other_power(provenance, self.hardware)
            and not differing_versions(provenance, self.toolchain)
        )

    def is_portable(self, reading: Reading) -> bool:
        """Whether `reading` is stored for a target, not for this hardware."""
        return reading.portable and self.hardware.target is not None

    def record(self, result: CaseResult, reading: Reading) -> Record:
        """The record of a reading of the case."""
        files = self._by_folder.get(folder_of(self.hardware, reading, result.ranks), {})
        file, key = files.get(result.case.suite), key_of_record(files.get(result.case.suite), result)
        covers = [
            each for each in result.readings if reading.metric in each.covers and reading.timed and not each.timed
        ]
        covering = [self.record(result, each) for each in covers]
        return Record(self.hardware, self.toolchain, result, reading, file, key, covering)

    def moved(self, results: Iterable[CaseResult]) -> set[CaseId]:
        """The records that were found for cases with other keys."""
        return {
            (result.case.suite, key)
            for result in results
            for files in (self.baselines, self.portable)
            if (key := key_of_record(files.get(result.case.suite), result)) != result.case.key
        }

    def stored(self, suite: str, key: str) -> Mapping[str, Entry]:
        """The entries of a case that are stored for this hardware."""
        return entries_of(self.baselines, suite, key)

    def code_of(self, suite: str, key: str) -> Mapping[str, str]:
        """The fingerprints of a case's kernels, by kernel."""
        stored = [case.entries.get(CODE) for case in self.stored_cases(suite, key)]
        return {kernel: str(code) for each in stored if isinstance(each, dict) for kernel, code in each.items()}

    def to_read(self, suite: str, key: str) -> set[str]:
        """The stored metrics of a case that a run reads. Times of kernels in tests are read in recordings only."""
        stored = {metric for case in self.stored_cases(suite, key) for metric in case.entries}
        return stored - {KERNEL_TIME}

    def stored_cases(self, suite: str, key: str) -> list[CaseBaseline]:
        """All records of a case, for this hardware and for every machine of its target."""
        return [file.cases[key] for file in self.files_of(suite, key) if self.judges_by(file)]

    def files_of(self, suite: str, key: str) -> list[Baseline]:
        """The files that hold a case, of any hardware."""
        return [file for file in self.files if file.suite == suite and key in file.cases]

    def judges_by(self, file: Baseline) -> bool:
        """Whether a file is of this hardware or of its target."""
        return is_own(self.hardware.slug, file.hardware) or file.hardware == self.hardware.target


def folder_of(hardware: Hardware, reading: Reading, ranks: int) -> str:
    """The folder of baselines that holds a reading of a case on `ranks` ranks."""
    return (hardware.target if reading.portable else None) or folder_of_ranks(hardware, ranks)


def folder_of_ranks(hardware: Hardware, ranks: int) -> str:
    """`nvidia-h200`, or `nvidia-h200-x2` for two GPUs. All ranks of a CPU share one folder."""
    return hardware.slug if ranks == 1 or hardware.target else f"{hardware.slug}-x{ranks}"


def is_own(slug: str, folder: str) -> bool:
    """Whether a folder holds cases on one device of this kind, or on several."""
    return re.fullmatch(rf"{re.escape(slug)}(-x[1-9]\d*)?", folder) is not None


def joined(files: Iterable[Baseline]) -> dict[str, Baseline]:
    """Suite -> its files in several folders, merged; the name of a recording then begins with its folder."""
    by_suite: dict[str, Baseline] = {}
    for file in files:
        known = by_suite.get(file.suite)
        if known is None:
            by_suite[file.suite] = file
            continue
        recordings = {f"{file.hardware}/{name}": each for name, each in file.recordings.items()}
        cases = {key: replace(case, recording=f"{file.hardware}/{case.recording}") for key, case in file.cases.items()}
        recordings, cases = known.recordings | recordings, known.cases | cases
        by_suite[file.suite] = replace(known, recordings=recordings, cases=cases)
    return by_suite


def timer_class(timer: str) -> str:
    """The class of timers with similar noise: the id without its counts, `graph-cold-u64-r12` -> `graph-cold`."""
    return re.sub(r"-[a-z]+\d+", "", timer)


# -- ids of parameters -------------------------------------------------------------------------------------------------

# pytest calls a parameter without an id `shape0`, so that a case inserted before others renames them. Therefore the
# record of such a case is also found by its inputs and code.
_POSITION = re.compile(r"(?<=[\[-])([^\W\d]\w*?)\d+(?=[\]-])")
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{8,}\b")  # Numbers that people write are shorter.


def key_of_record(file: Baseline | None, result: CaseResult) -> str:
    """The key of a case's record in a file: its own key, unless that record has other inputs or code, and exactly one
    other record of the same test has these."""
    key = result.case.key
    if file is None or not _POSITION.search(key):
        return key
    pattern = _POSITION.sub(r"\1", key)
    known = {key: file.cases[key]} if key in file.cases else {}
    known |= {other: case for other, case in file.cases.items() if _POSITION.sub(r"\1", other) == pattern}
    fitting = [other for other, case in known.items() if case.inputs == result.inputs]
    alike = [other for other in fitting if _has_code_of(known[other], result)]
    for candidates in (alike, fitting):
        if key in candidates:
            return key
        if len(candidates) == 1:
            return candidates[0]
    return key


def _has_code_of(case: CaseBaseline, result: CaseResult) -> bool:
    reading, stored = result.reading(CODE), case.entries.get(CODE, {})
    now = {} if reading is None else reading.value
    return isinstance(stored, dict) and isinstance(now, dict) and same_parts(stored, now)


def unstable_id(key: str) -> str:
    """Why the key of a case changes with each process; empty if it does not."""
    address = _ADDRESS.search(key)
    if address is None:
        return ""
    return (
        f"its id holds an address, {address[0]}, which is another one in every process; name its parameters: "
        "ids=lambda each: f'{each.rows}x{each.columns}', or pytest.param(each, id='64x48')"
    )
