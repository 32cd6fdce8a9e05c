"""The report of one run on one hardware and the readings of its process pairs, as they are saved and judged again."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from perfguard.model.records.baseline import Hardware, Provenance, Toolchain
from perfguard.model.records.case import CaseId, CaseResult, Conditions, Verdict, Word

SCHEMA = 1


class BaseTree(Struct, frozen=True, omit_defaults=True):
    """The commit of the repository that the working tree is compared with.

    Attributes:
        commit: the full hash; None if there is no commit, for the reason in `problem`.
        equal: whether the working tree differs from the commit at most in files that the run does not use, such as
            documentation, baselines, reports and modules that it has not loaded, so that no time can have changed.
        problem: the reason why nothing can be compared, with the next step.
    """

    commit: str | None = None
    equal: bool = False
    problem: str = ""


NO_BASE = BaseTree(problem="no base commit was looked for")
NO_RECORD = BaseTree(problem="the case has no record, and so no commit to be compared with")
NO_COMMIT = BaseTree(problem="the record names no commit; record again, or name a base: --perfguard-base")
NO_COMMIT_YET = "the repository has no commit yet; commit first"
NEW_SINCE_BASE, NOT_AT_BASE = "new since the base", "the base has no such case"
NO_PAIRS = "no process pair measured it"
TOO_NOISY = "NOISY: process pairs scatter more than the change that would fail"
#: The beginning of the reason of a verdict on warps that rise on some targets and fall by a step on others.
BOTH_WAYS = "not gated, both ways between targets: "


def awaits_commit(verdict: Verdict) -> bool:
    """Whether it is on a time that is only shown, because no commit has its test yet (`while_uncommitted`)."""
    return verdict.word is Word.NEW and verdict.reason.startswith("UNPAIRED")


class PairReading(Struct, frozen=True, omit_defaults=True):
    """The result of one process pair for one time: new processes of the base, of a second checkout of the base (the
    control) and of the working tree, measured alternately on one device.

    Attributes:
        pair: the number of the pair, from 1.
        change: ln(working tree / base).
        control: ln(second checkout of the base / base).
        base_us, work_us: median block, µs per call.
        base_mhz, work_mhz: median clock of the device's processors in these blocks; None if unknown.
    """

    pair: Annotated[int, Meta(ge=1)]
    change: float
    control: float
    base_us: float
    work_us: float
    base_mhz: float | None = None
    work_mhz: float | None = None


class PairedTime(Struct, frozen=True, omit_defaults=True):
    """One time of one case in all process pairs. `problem` is the reason if a pair did not read it."""

    metric: str
    timer: str = ""
    readings: list[PairReading] = []
    problem: str = ""


class PairedCase(Struct, frozen=True, omit_defaults=True):
    """The comparison of one case with its base.

    Attributes:
        base: the result in the base's process: exact metrics, facts of its kernels on the targets, answers to doubts,
            but no times. None if the base lacks the case.
        times: the times in question.
        problem: the reason why base and working tree cannot be compared at all.
    """

    suite: str
    key: str
    base: CaseResult | None = None
    times: list[PairedTime] = []
    problem: str = ""

    @property
    def id(self) -> CaseId:
        """The case's identity."""
        return self.suite, self.key


class Pairing(Struct, frozen=True, omit_defaults=True):
    """The comparison of one run with one base commit on one device.

    Attributes:
        base: the full hash of the commit.
        cases: the cases in doubt.
        pairs: the number of process pairs.
        problem: the reason for an end before everything was decided; otherwise empty.
    """

    base: str
    cases: list[PairedCase] = []
    pairs: int = 0
    problem: str = ""
    device: int = 0


class Session(Struct, frozen=True, omit_defaults=True):
    """The readings of one fresh process without their blocks: recorded metrics, and times with a rival."""

    results: list[CaseResult]
    device: int = 0


#: Environment variables with which the same tests run other code. Commands that repeat a run set them again.
VARIABLES = ("TRITON_INTERPRET", "TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE")


class Invocation(Struct, frozen=True, omit_defaults=True):
    """The start of a run, apart from its tests. `variables` holds those of VARIABLES that are set; `device` is the one
    that an option names."""

    variables: dict[str, str] = {}
    device: str = ""


class Report(Struct, frozen=True, omit_defaults=True):
    """All readings and verdicts of one run on one hardware, or the bare readings of one session."""

    schema: int
    hardware: Hardware
    toolchain: Toolchain
    started: str  # ISO date and time, UTC
    commit: str | None = None
    perfguard: str = ""
    results: list[CaseResult] = []
    fresh: list[Session] = []  # Oldest first; needed to judge again and to make baselines.
    fresh_problem: str = ""  # The reason for fewer fresh processes than requested.
    base: BaseTree | None = None  # The base of every case; None if unknown, or if each case has that of its record.
    bases: dict[str, BaseTree] = {}  # Commit in a record -> its tree, if each case has the base of its record.
    pairings: list[Pairing] = []  # One for each base and device with cases in doubt.
    stale: list[Verdict] = []
    copy_bytes_per_second: float | None = None
    conditions: list[Conditions] = []  # The states at the start and at the end.
    complete: bool = False  # False if the run was cut short.
    invocation: Invocation = Invocation()
    exact_only: bool = False  # Whether only metrics that hold on every machine of the target were read, but no times.
    guarded: int = 0  # The number of guarded cases.
    remembered: int = 0  # The number of cases in the baselines of the collected suites.

    @property
    def lane(self) -> str:
        """The run's lane: the hardware's slug, or its target if the run holds for any machine of the target."""
        return self.hardware.target if self.exact_only and self.hardware.target else self.hardware.slug

    @property
    def usual_clock_mhz(self) -> int | None:
        """The median clock of the device while its cases were timed; None if unknown."""
        seen = [result.conditions.clock_mhz for result in self.results if result.conditions is not None]
        clocks = sorted(clock for clock in seen if clock is not None)
        return clocks[len(clocks) // 2] if clocks else None

    @property
    def board(self) -> str | None:
        """The one device that timed all cases; None if there were several, or if it is unknown."""
        seen = {result.conditions.board for result in self.results if result.conditions is not None}
        return seen.pop() if len(seen) == 1 else None

    @property
    def provenance(self) -> Provenance:
        """The provenance of baselines made from the report."""
        return Provenance(
            **msgspec.structs.asdict(self.toolchain),
            power_limit_watts=self.hardware.power_limit_watts,
            clock_mhz=self.usual_clock_mhz,
            board=self.board,
            commit=self.commit,
            recorded=self.started[:10],
        )


def commits_beside(report: Report) -> list[str]:
    """The sorted commits with which the cases were compared."""
    bases = [*report.bases.values(), *([report.base] if report.base is not None else [])]
    return sorted({base.commit for base in bases if base.commit is not None})


def load_report(data: bytes) -> Report:
    """A report from its JSON bytes. If a field is wrong, msgspec.ValidationError names it."""
    return msgspec.json.decode(data, type=Report)


def dump_report(report: Report) -> bytes:
    """Readable JSON of a report."""
    return msgspec.json.format(msgspec.json.encode(report), indent=1)
