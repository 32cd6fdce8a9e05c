"""The stages of the data, each one frozen record: Case, Reading, Accuracy, CaseResult, Baseline, Verdict, Report.

JSON, YAML and validation come from the types (msgspec). Times are microseconds, memory is bytes.
"""

from __future__ import annotations

import enum
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from perfguard.units import Unit

SCHEMA = 1

Pass = Literal["forward", "backward"]
Parts = dict[str, int | float | str]  # of a whole, by name: kernel -> its registers
Value = int | float | str | list[str] | Parts
Positive = Annotated[float, Meta(gt=0, lt=1e12)]


class Word(enum.StrEnum):
    """The verdicts, most urgent first: the order in which summaries list them."""

    WRONG = "WRONG"
    BROKEN = "BROKEN"
    SLOWER = "SLOWER"
    CHANGED = "CHANGED"
    UNRESOLVED = "UNRESOLVED"
    DRIFT = "DRIFT"
    METHOD_CHANGED = "METHOD_CHANGED"
    OTHER_HARDWARE = "OTHER_HARDWARE"
    RENAMED = "RENAMED"
    STALE = "STALE"
    NEW = "NEW"
    UNSUPPORTED = "UNSUPPORTED"
    FASTER = "FASTER"
    UNCHANGED = "UNCHANGED"  # the device runs the very same code: its time is not judged
    PASS = "PASS"
    SUSPECT = "SUSPECT"  # never final: a pair, or fresh processes beside a rival, have to tell

    @property
    def fails(self) -> bool:
        """Whether a case with this verdict fails its test."""
        return self in (Word.WRONG, Word.BROKEN, Word.SLOWER, Word.CHANGED)

    @property
    def unguarded(self) -> bool:
        """Whether the verdict means that nothing was judged; `strict` turns these into failures."""
        return self in (
            Word.UNRESOLVED,
            Word.DRIFT,
            Word.METHOD_CHANGED,
            Word.OTHER_HARDWARE,
            Word.RENAMED,
            Word.STALE,
            Word.NEW,
            Word.SUSPECT,
        )


class Better(enum.StrEnum):
    """Which way a metric improves; SAME: any change is a change."""

    LOWER = "lower"
    HIGHER = "higher"
    SAME = "same"


class Case(Struct, frozen=True, order=True):
    """One guarded call: test name + parameters + pass."""

    suite: str
    name: str
    direction: Pass = msgspec.field(name="pass")
    nodeid: str = ""

    @property
    def key(self) -> str:
        """How baseline files name the case, e.g. `quantize_rowwise[64x48]/forward`."""
        return f"{self.name}/{self.direction}"


class Reading(Struct, frozen=True, omit_defaults=True):
    """One metric of one case in one session. It describes itself, so that nobody downstream knows its name.

    A timed reading's `value` is the session value (median of `blocks`, the times of its blocks, µs); `spread` is its
    standard error within the session, relative. `promise` is the smallest slowdown that the gate promises to
    catch (relative), `floor` the smallest absolute change that may fail, in the reading's unit.
    An exact reading gates when it moved by more than `tolerance` (relative) *and* more than `floor`.
    `rank` orders the readings that explain a slow verdict, the closest cause first; one that `details` another
    metric (the kernels' names their count) explains that one alone.
    A timed reading with a `rival` holds the candidate's and the rival's time, read by turns: it is judged by these
    two alone and never stored.
    """

    metric: str
    unit: Unit
    value: Value
    better: Better = Better.LOWER
    timer: str | None = None  # set for timed readings: the method, part of the key
    blocks: list[float] = []
    rejected_blocks: int = 0
    spread: float = 0.0
    promise: float = 0.03
    floor: float = 0.0
    tolerance: float = 0.0
    gated: bool = True  # False: stored and shown, explains other verdicts, never one by itself
    portable: bool = False  # holds on every machine of the target (contract, operators), not on this one only
    target: str = ""  # the architecture that it is about, wherever it was read: stored for that target
    covers: list[str] = []  # timed metrics that cannot have moved where this exact reading is as stored
    drifts: bool = False  # depends on driver, toolkit, torch or triton: DRIFT, not CHANGED, under other versions
    rank: int = 50
    details: str = ""
    rival: float = 0.0  # µs, of what the candidate has to beat; 0: the reading is about the candidate alone
    problem: str = ""  # the reading by itself shows that the case is wrong; empty: it does not
    note: str = ""

    @property
    def timed(self) -> bool:
        return self.timer is not None


class Accuracy(Struct, frozen=True, omit_defaults=True):
    """How one output (or gradient) of the candidate compares with the reference.

    `error_ratio` is RMSE(candidate)/RMSE(eager), both against the oracle; `limit` is the largest RMSE allowed;
    `sqnr_db` is 20·log10(RMS(oracle)/RMSE(candidate)). `problem` is empty when the output is right.
    """

    output: str
    dtype: str
    sqnr_db: float | None = None
    error_ratio: float | None = None
    rmse: float | None = None
    limit: float | None = None
    worst_group: str = ""
    worst_index: list[int] = []
    got: str = ""
    want: str = ""
    ties: int = 0  # fp8 codes one step from the reference at a rounding tie
    problem: str = ""


class Throughput(Struct, frozen=True):
    """Derived from a case's time and declared work; shown, never gated."""

    bytes_per_second: float | None = None
    flop_per_second: float | None = None
    copy_fraction: float | None = None  # of the copy ceiling measured in the same session


class Verdict(Struct, frozen=True, omit_defaults=True):
    """One word with a reason. `ratio` above 1 always means worse, `interval` is its 95 % interval; `limit` is the
    smallest relative change that may fail, `smallest` the smallest that this judgement could have seen (the minimum
    detectable effect)."""

    word: Word
    metric: str = ""  # empty: the whole case
    reason: str = ""
    before: Value | None = None
    after: Value | None = None
    unit: Unit = Unit.TEXT
    ratio: float | None = None
    interval: tuple[float, float] | None = None  # where process pairs measured it
    limit: float | None = None
    smallest: float | None = None
    storable: bool = True  # False: it rests on no baseline, and no update can accept it
    suite: str = ""  # with `case`: a remembered case (its key) that this run does not hold, STALE or RENAMED
    case: str = ""


class Conditions(Struct, frozen=True, omit_defaults=True):
    """The device's state at one moment."""

    clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    temperature_celsius: int | None = None
    power_watts: float | None = None
    throttle_reasons: list[str] = []
    other_processes: int | None = None
    board: str | None = None  # `Device.board`


class CaseResult(Struct, frozen=True, omit_defaults=True):
    """Everything one session knows about one case."""

    case: Case
    inputs: str = ""  # dtypes, shapes and strides of the inputs: another spec is another measurement
    accuracy: list[Accuracy] = []
    readings: list[Reading] = []
    verdicts: list[Verdict] = []
    throughput: Throughput | None = None
    notes: list[str] = []  # what a reader should know although nothing is wrong
    conditions: Conditions | None = None  # of the device right after it was timed, while its clocks are up
    seconds: float = 0.0  # spent on the case
    device: int = 0  # which of several devices of one kind it ran on

    def reading(self, metric: str) -> Reading | None:
        """The reading named `metric`, if the session has it."""
        return next((reading for reading in self.readings if reading.metric == metric), None)

    @property
    def is_suspect(self) -> bool:
        """Whether a time of the case is in question: a verdict waits for process pairs."""
        return any(verdict.word is Word.SUSPECT for verdict in self.verdicts)

    @property
    def word(self) -> Word:
        """The case's worst verdict (the first in the order of `Word`)."""
        order = list(Word)
        return min((verdict.word for verdict in self.verdicts), key=order.index, default=Word.PASS)


class Hardware(Struct, frozen=True, omit_defaults=True):
    """One kind of device. Two devices with one slug are interchangeable for baselines."""

    slug: str
    vendor: str
    name: str
    architecture: str  # sm_90, gfx942, x86_64 …
    target: str | None = None  # the folder of machine-independent facts, "cpu" on a CPU
    memory_bytes: int | None = None
    cache_bytes: int | None = None  # last-level cache: what a cold reading must evict
    units: int | None = None  # multiprocessors, compute units, cores in use
    fp8_dtypes: list[str] = []
    partition: str | None = None
    power_limit_watts: float | None = None
    index: int = 0
    warnings: list[str] = []  # what could not be read, and the next step


class Toolchain(Struct, frozen=True, omit_defaults=True):
    """Versions a time depends on. Another toolchain than the baseline's means DRIFT."""

    torch: str | None = None
    triton: str | None = None
    driver: str | None = None
    toolkit: str | None = None  # CUDA, ROCm or oneAPI
    python: str | None = None


class Provenance(Struct, frozen=True, omit_defaults=True):
    """Where a stored reading comes from."""

    torch: str | None = None
    triton: str | None = None
    driver: str | None = None
    toolkit: str | None = None
    python: str | None = None
    power_limit_watts: float | None = None
    clock_mhz: int | None = None  # under load
    board: str | None = None  # which of several alike, where it was one
    commit: str | None = None
    recorded: str | None = None  # ISO date


class TimedEntry(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Session values of a timed metric, µs, oldest first, and the timer they were read with.

    `anchor`, µs: the level at the first recording, or at the last one that was accepted with a reason or brought a
    real improvement; None where it is the level of `sessions` themselves.
    """

    sessions: Annotated[list[Positive], Meta(min_length=1, max_length=20)]
    timer: str
    anchor: Positive | None = None


Entry = TimedEntry | int | float | str | list[str] | Parts


class CaseBaseline(Struct, frozen=True):
    """What is remembered of one case: metric -> entry. `reasons` holds why something got worse."""

    entries: dict[str, Entry]
    inputs: str = ""
    reasons: dict[str, str] = {}
    provenance: Provenance | None = None  # only where it differs from the file's


class Baseline(Struct, frozen=True):
    """One file: the cases of one suite on one hardware (or target)."""

    hardware: str
    suite: str
    provenance: Provenance = Provenance()
    cases: dict[str, CaseBaseline] = {}

    def provenance_of(self, key: str) -> Provenance:
        """The case's own provenance, else the file's."""
        own = self.cases[key].provenance
        return self.provenance if own is None else own


class BaseTree(Struct, frozen=True, omit_defaults=True):
    """What the working tree is compared with: one commit of the repository.

    Attributes:
        commit: its full hash; None where there is none to compare with, and `problem` says why.
        equal: the working tree differs from it in documentation, baselines and reports at most: no time can have moved
            because of the code.
        problem: why nothing can be compared, with the next step.
    """

    commit: str | None = None
    equal: bool = False
    problem: str = ""


NO_BASE = BaseTree(problem="nobody looked for a base commit")


class PairReading(Struct, frozen=True, omit_defaults=True):
    """What one process pair says about one time: new processes of the base, of a second checkout of the base (the
    control) and of the working tree, measured by turns on one device.

    Attributes:
        pair: the number of the pair, from 1.
        change: ln(working tree / base).
        control: ln(second checkout of the base / base).
        base_us, work_us: median block, µs per call.
        base_mhz, work_mhz: mean clock of the device's processors in these blocks; None where nobody tells.
    """

    pair: Annotated[int, Meta(ge=1)]
    change: float
    control: float
    base_us: float
    work_us: float
    base_mhz: float | None = None
    work_mhz: float | None = None


class PairedTime(Struct, frozen=True, omit_defaults=True):
    """One time of one case in all process pairs; `problem`: why some or all of them did not read it."""

    metric: str
    timer: str = ""
    readings: list[PairReading] = []
    problem: str = ""


class PairedCase(Struct, frozen=True, omit_defaults=True):
    """One case beside its base.

    Attributes:
        base: what the base's process read of it (exact metrics; no times); None where the base does not have it.
        times: what was in question.
        problem: why base and working tree cannot be compared at all.
    """

    suite: str
    key: str
    base: CaseResult | None = None
    times: list[PairedTime] = []
    problem: str = ""


class Pairing(Struct, frozen=True, omit_defaults=True):
    """All process pairs of one run on one device.

    Attributes:
        base: full hash of the commit that was measured beside the working tree.
        pairs: how many there were.
        problem: why it ended before everything was decided; empty if it did not.
    """

    base: str
    cases: list[PairedCase] = []
    pairs: int = 0
    problem: str = ""
    device: int = 0


class Session(Struct, frozen=True, omit_defaults=True):
    """What one fresh process read, its blocks left out: what is recorded, and times beside a rival's."""

    results: list[CaseResult]
    device: int = 0


class Report(Struct, frozen=True, omit_defaults=True):
    """All readings and verdicts of one run on one hardware, or the bare readings of one session."""

    schema: int
    hardware: Hardware
    toolchain: Toolchain
    started: str  # ISO date and time, UTC
    commit: str | None = None
    perfguard: str = ""
    results: list[CaseResult] = []
    fresh: list[Session] = []  # oldest first: what whoever judges again needs, and what a baseline is made from
    fresh_problem: str = ""  # why there are fewer fresh processes than were asked for
    base: BaseTree | None = None  # what the working tree is compared with; None: nobody looked
    pairings: list[Pairing] = []  # one for each device on which times were in question
    stale: list[Verdict] = []
    copy_bytes_per_second: float | None = None
    conditions: list[Conditions] = []  # at the start and at the end
    complete: bool = False  # False: the run was cut short
    exact_only: bool = False  # nothing was timed: only what holds on every machine of the hardware's target was read
    guarded: int = 0  # cases judged against a baseline
    remembered: int = 0  # cases the baselines of the collected suites hold

    @property
    def lane(self) -> str:
        """The lane that the run is: named after the hardware, after its target where any machine of it would do."""
        return self.hardware.target if self.exact_only and self.hardware.target else self.hardware.slug

    @property
    def usual_clock_mhz(self) -> int | None:
        """The device's clock while its cases were timed: the median; None where nobody knows."""
        seen = [result.conditions.clock_mhz for result in self.results if result.conditions is not None]
        clocks = sorted(clock for clock in seen if clock is not None)
        return clocks[len(clocks) // 2] if clocks else None

    @property
    def board(self) -> str | None:
        """The one device that timed all cases; None where there were several, or nobody knows."""
        seen = {result.conditions.board for result in self.results if result.conditions is not None}
        return seen.pop() if len(seen) == 1 else None

    @property
    def provenance(self) -> Provenance:
        """Where what is recorded from the report comes from."""
        return Provenance(
            **msgspec.structs.asdict(self.toolchain),
            power_limit_watts=self.hardware.power_limit_watts,
            clock_mhz=self.usual_clock_mhz,
            board=self.board,
            commit=self.commit,
            recorded=self.started[:10],
        )


def load_report(data: bytes) -> Report:
    """A report from its JSON bytes; msgspec.ValidationError names the field that is wrong."""
    return msgspec.json.decode(data, type=Report)


def dump_report(report: Report) -> bytes:
    """Readable JSON of a report."""
    return msgspec.json.format(msgspec.json.encode(report), indent=1)
