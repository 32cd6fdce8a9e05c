"""The results of one session for a case: readings, accuracy, verdicts."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable
from typing import Annotated, Literal, NamedTuple, get_args

import msgspec
from msgspec import Meta, Struct

from perfguard.model.units import Unit

#: A pass of a guarded call, or the whole call phase of an observed test.
Pass = Literal["forward", "backward", "test"]
PASSES: tuple[Pass, ...] = get_args(Pass)
CaseId = tuple[str, str]  # (suite, case key)
Parts = dict[str, int | float | str]  # Name -> part of one value, for example kernel -> its registers.
Value = int | float | str | list[str] | Parts
Positive = Annotated[float, Meta(gt=0, lt=1e12)]


class ReadingId(NamedTuple):
    """The identity of one metric of one case."""

    suite: str
    key: str
    metric: str

    @property
    def case(self) -> CaseId:
        return self.suite, self.key


class Word(enum.StrEnum):
    """The verdicts, most urgent first, in the order of summaries."""

    WRONG = "WRONG"
    BROKEN = "BROKEN"
    SLOWER = "SLOWER"
    CHANGED = "CHANGED"
    UNRESOLVED = "UNRESOLVED"
    SUSPECT = "SUSPECT"  # Never final: process pairs, or fresh processes beside a rival, decide.
    DRIFT = "DRIFT"
    METHOD_CHANGED = "METHOD_CHANGED"
    OTHER_HARDWARE = "OTHER_HARDWARE"
    STALE = "STALE"
    NEW = "NEW"
    UNSUPPORTED = "UNSUPPORTED"
    FASTER = "FASTER"  # A time is faster, by process pairs.
    BETTER = "CHANGED (better)"  # An exact metric, other than a time, is better.
    OLD_FAULT = "OLD FAULT"  # Inputs beside the given ones give wrong results, at the base as well.
    UNCHANGED = "UNCHANGED"  # The device runs the same code, so that the time is not judged.
    PASS = "PASS"

    @property
    def fails(self) -> bool:
        """Whether a case with this verdict fails its test."""
        return self in (Word.WRONG, Word.BROKEN, Word.SLOWER, Word.CHANGED)

    @property
    def unguarded(self) -> bool:
        """Whether the verdict means that nothing was judged; `strict` turns these into failures."""
        return self in (*OTHER_CONDITIONS, Word.UNRESOLVED, Word.STALE, Word.NEW, Word.SUSPECT)


#: Words for readings that are not compared, because the record was read under other conditions.
OTHER_CONDITIONS = (Word.DRIFT, Word.METHOD_CHANGED, Word.OTHER_HARDWARE)

#: The beginning of the last line of a reason: the value may differ because of another compiler.
BY_TOOLCHAIN = "another toolchain: "


class Better(enum.StrEnum):
    """The direction in which a metric improves; SAME: every change counts as worse."""

    LOWER = "lower"
    HIGHER = "higher"
    SAME = "same"


class Across(enum.StrEnum):
    """The rule to merge the different values of several ranks. EQUAL: they must not differ. MOST: take the greatest.
    EACH: keep all of them, by rank."""

    EQUAL = "equal"
    MOST = "most"
    EACH = "each"


class Case(Struct, frozen=True, order=True):
    """One guarded call: test name + parameters + pass."""

    suite: str
    name: str
    direction: Pass = msgspec.field(name="pass")
    nodeid: str = ""

    @property
    def key(self) -> str:
        """The case's name in baseline files, e.g. `quantize_rowwise[64x48]/forward`."""
        return f"{self.name}/{self.direction}"

    @property
    def id(self) -> CaseId:
        """The identity of the case in a run."""
        return self.suite, self.key

    def labelled(self, label: str) -> Case:
        """The case of a further call in the same test."""
        return msgspec.structs.replace(self, name=f"{self.name}:{label}")


class Reading(Struct, frozen=True, omit_defaults=True):
    """One metric of one case in one session. It describes itself: later stages do not depend on its name.

    A timed reading's `value` is the session value (the median of `blocks`, µs); `spread` is its standard error within
    the session, relative. `promise` is the smallest slowdown that the gate promises to catch (relative), and `floor`
    the smallest absolute change that may fail, in the reading's unit. An exact reading gates if it changed by more than
    `tolerance` (relative) *and* more than `floor`. `rank` orders the readings that explain a slow verdict, the closest
    cause first, and the verdicts of a case. A reading that `details` another metric (as the kernels' names detail their
    count) explains only that metric. `lines` maps a part to its line of Python. `unrecorded` is the value, in every
    part, that a record without the metric implies; if it is None, the reading is NEW. A timed reading with a `rival`
    holds the times of candidate and rival, measured alternately. It is judged by these two alone and never stored.
    `across` is for cases of several ranks. `binding_strides` is for texts with strides: the strides of the reference,
    which the reading must have if its record has them. Other strides are shown, but not judged. If it is None, the
    whole text is judged.
    """

    metric: str
    unit: Unit
    value: Value
    better: Better = Better.LOWER
    timer: str | None = None  # The method of a timed reading, part of the key.
    blocks: list[float] = []
    rejected_blocks: int = 0
    spread: float = 0.0
    promise: float = 0.03
    floor: float = 0.0
    tolerance: float = 0.0
    gated: bool = True  # Ungated readings are shown as causes of other verdicts.
    stored: bool = False  # Whether it is recorded although it gates nothing.
    portable: bool = False  # Whether it holds on every machine of the target (contract, operators).
    target: str = ""  # The architecture that it describes. Such readings are not stored, but compared with the base's.
    covers: list[str] = []  # Timed metrics that cannot have changed if this exact reading is as stored.
    drifts: bool = False  # Whether other versions of driver, toolkit, torch or triton make it DRIFT, not CHANGED.
    unrecorded: int | str | None = None
    rank: int = 50
    details: str = ""
    lines: dict[str, str] = {}
    rival: float = 0.0  # The rival's time, µs; 0: there is no rival.
    problem: str = ""  # Why the reading alone shows that the case is wrong; empty if it does not.
    note: str = ""
    across: Across = Across.EACH
    binding_strides: list[str] | None = None

    @property
    def timed(self) -> bool:
        return self.timer is not None

    @property
    def is_recorded(self) -> bool:
        """Whether baselines hold the reading: it gates, covers times, or is to be stored. Times that are only shown, or
        compared with a rival's, are left out. Ungated times of several ranks are stored, because a gate could not be
        set without the noise of their sessions."""
        if self.target or self.rival:
            return False
        return self.gated or bool(self.covers) or self.stored or (self.timed and self.across is Across.EQUAL)

    @property
    def is_empty(self) -> bool:
        """Whether the reading has no parts, which matters only if some are recorded. If less is better, a reading
        without parts is a value: no part has a problem."""
        return self.value in ({}, []) and self.better is Better.SAME


class Accuracy(Struct, frozen=True, omit_defaults=True):
    """The comparison of one output (or gradient) of the candidate with the reference.

    `error_ratio` is RMSE(candidate)/RMSE(eager), both against the oracle, with a lower limit for eager's; `limit` is
    the largest RMSE allowed; `sqnr_db` is 20·log10(RMS(oracle)/RMSE(candidate)). `problem` is empty if it is right.
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
    ties: int = 0  # The number of fp8 codes one step from the reference at a rounding tie.
    problem: str = ""


class Throughput(Struct, frozen=True):
    """The throughput that follows from a case's time and declared work. It is shown, but never gated."""

    bytes_per_second: float | None = None
    flop_per_second: float | None = None
    copy_fraction: float | None = None  # The share of the copy ceiling of the same session.
    matmul_fraction: float | None = None  # The same of a large matrix product, in the dtype `matmul`.
    matmul: str = ""


class Verdict(Struct, frozen=True, omit_defaults=True):
    """One word with a reason. A `ratio` above 1 always means worse, and `interval` is its 95 % interval; `limit` is the
    smallest relative change that may fail, `smallest` the minimum detectable effect of this judgement."""

    word: Word
    metric: str = ""  # Empty for the whole case.
    reason: str = ""
    before: Value | None = None
    after: Value | None = None
    unit: Unit = Unit.TEXT
    ratio: float | None = None
    interval: tuple[float, float] | None = None  # None unless process pairs measured it.
    limit: float | None = None
    smallest: float | None = None
    storable: bool = True  # False if no baseline is involved, so that no update can accept it.
    suite: str = ""  # With `case`, the key of a recorded case that is gone.
    case: str = ""


class Conditions(Struct, frozen=True, omit_defaults=True):
    """The state of the device at one time."""

    clock_mhz: int | None = None
    throttle_reasons: list[str] = []
    other_processes: int | None = None
    board: str | None = None  # `Device.board`


class HardCounts(Struct, frozen=True, omit_defaults=True):
    """The number of checks beside the given call, by kind; of `untried` kinds no run has tried anything."""

    ran: dict[str, int] = {}
    left_out: dict[str, int] = {}
    waiting: dict[str, int] = {}
    untried: list[str] = []


class Doubt(Struct, frozen=True, omit_defaults=True):
    """A fault of a derived input, or of a configuration that is not chosen. The base commit is asked whether it has it.
    Text and steps mean the same in every process and commit. Those of one configuration are compared by name and pass.

    Attributes:
        name: the trial: `hard input, argument 0 (zero)`, or the configuration's description without its number.
        problem: a sentence that names the trial and the fault; empty in the base's answer if the base is right.
        output: the wrong output or gradient; empty if none is singled out.
        backward: whether the backward pass has the fault.
        inputs: dtypes, shapes, strides and values of the given inputs, from which others are derived.
        cut: position among all leaves of the call -> steps that made the call small; empty: it is as given.
        tried: derived inputs, each by its parts (kind, position -> steps). They run in order, and the last one is
            judged. Earlier ones leave state in the candidate. Empty: a configuration.
        unmentioned: whether it is a fault only if the base is right (`Derivation.unmentioned`).
    """

    name: str
    problem: str = ""
    output: str = ""
    backward: bool = False
    inputs: str = ""
    cut: dict[int, str] = {}
    tried: list[list[tuple[str, dict[int, str]]]] = []
    unmentioned: bool = False


class CaseResult(Struct, frozen=True, omit_defaults=True):
    """All results of one session for one case."""

    case: Case
    inputs: str = ""  # Dtypes, shapes and strides of the inputs. Results with different inputs are not compared.
    accuracy: list[Accuracy] = []
    readings: list[Reading] = []
    verdicts: list[Verdict] = []
    throughput: Throughput | None = None
    notes: list[str] = []  # Remarks for the reader that are no problems.
    hard: HardCounts | None = None  # Counts for both passes, in the forward case.
    unchecked: dict[str, str] = {}  # Neutral options: `weight_decay of lion` -> `0.0`; '' if other values occur.
    doubts: list[Doubt] = []  # Faults that the given inputs do not show, or a base's answers to them.
    conditions: Conditions | None = None  # The state right after the times were read, while clocks are high.
    seconds: float = 0.0  # The time spent on the case.
    device: int = 0  # The index among several devices of one kind.
    ranks: int = 1  # The number of processes that made the call, each on its own device or all on one CPU.

    @property
    def all_notes(self) -> list[str]:
        """The remarks on the case and on its readings, except empty ones."""
        of_readings = [reading.note for reading in self.readings if reading.note and not reading.is_empty]
        return [*self.notes, *of_readings]

    @property
    def id(self) -> CaseId:
        """The identity of the case."""
        return self.case.id

    @property
    def is_timed(self) -> bool:
        """Whether any of its readings is a time."""
        return any(reading.timed for reading in self.readings)

    def reading(self, metric: str) -> Reading | None:
        """The reading of `metric`; None if the session has none."""
        return next((reading for reading in self.readings if reading.metric == metric), None)

    def rank(self, metric: str) -> int:
        """The sort key of a metric, the most informative first: times and errors, then exact ones by `rank`."""
        reading = self.reading(metric)
        return 0 if reading is None or reading.timed else reading.rank

    def sort_key(self, verdict: Verdict) -> tuple[int, int]:
        """The sort key of a verdict, the most important first: by word, then by metric."""
        return URGENCY[verdict.word], self.rank(verdict.metric)

    @property
    def word(self) -> Word:
        """The case's worst verdict (`worst`)."""
        return worst(self.verdicts)


def with_readings(result: CaseResult, readings: Collection[Reading]) -> CaseResult:
    """The result with further readings, which replace those of the same metrics."""
    kept = [own for own in result.readings if all(own.metric != reading.metric for reading in readings)]
    return msgspec.structs.replace(result, readings=[*kept, *readings])


URGENCY = {word: place for place, word in enumerate(Word)}

#: Words for readings that were compared. The other words give the reason why a reading was not.
_JUDGED = (Word.SLOWER, Word.CHANGED, Word.FASTER, Word.BETTER, Word.UNCHANGED, Word.PASS)
#: Words of cases that can be guarded. An old fault does not affect other comparisons.
_GUARDED = (*_JUDGED, Word.OLD_FAULT)


def worst(verdicts: Collection[Verdict]) -> Word:
    """The most urgent word of a case's verdicts; NEW on a metric counts only if no metric of the case was compared."""
    judged = is_compared(verdicts)
    words = [each.word for each in verdicts if not (judged and each.word is Word.NEW and each.metric)]
    return min(words, key=URGENCY.__getitem__, default=Word.PASS)


def is_compared(verdicts: Iterable[Verdict]) -> bool:
    """Whether any reading of a case was compared with a record, or with the base."""
    return any(verdict.word in _JUDGED and verdict.before is not None for verdict in verdicts)


def words_of(result: CaseResult, verdicts: Collection[Verdict]) -> list[Word]:
    """The words of a case's verdicts, except those on metrics that lack a record in a judged case."""
    new = new_metrics(result)
    return [verdict.word for verdict in verdicts if not any(verdict is each for each in new)]


def new_metrics(result: CaseResult) -> list[Verdict]:
    """The verdicts on metrics without a record, in a case with other judged metrics."""
    if result.word is Word.NEW:
        return []
    return [verdict for verdict in result.verdicts if verdict.word is Word.NEW and verdict.metric]


def is_unread(verdict: Verdict) -> bool:
    """Whether no process pair, or too few, read a time in question."""
    return verdict.word is Word.UNRESOLVED and verdict.reason.startswith(("UNPAIRED", "UNDECIDED"))


def is_inconclusive(results: Collection[CaseResult]) -> bool:
    """Whether a run is neither a success nor a regression: most of its timed cases are undecided, or a time that too
    few process pairs read is slower than its promise by its own reading."""
    times = (time for result in results for time in _judged_times(result))
    unread = (is_unread(verdict) and (verdict.ratio or 1.0) > 1 + promise for promise, verdict in times)
    return is_mostly_undecided(results) or any(unread)


def is_mostly_undecided(results: Iterable[CaseResult]) -> bool:
    """Whether most timed cases are undecided."""
    words = [{verdict.word for _, verdict in _judged_times(result)} for result in results]
    return 2 * sum(bool(each & {Word.UNRESOLVED, Word.SUSPECT}) for each in words) > sum(map(bool, words))


def _judged_times(result: CaseResult) -> list[tuple[float, Verdict]]:
    """(promise, verdict) for a case's times with the smallest promise, which are the device's if there are any. Host
    times promise only 50 %, which cannot be decided on a shared machine."""
    gated = [reading for reading in result.readings if reading.timed and reading.gated]
    least = min((reading.promise for reading in gated), default=0.0)
    judged = {reading.metric for reading in gated if reading.promise == least}
    return [(least, verdict) for verdict in result.verdicts if verdict.metric in judged]


def is_guarded(result: CaseResult, word: Word | None) -> bool:
    """Whether a case with the worst verdict `word` is guarded: `word` is a comparison, and at least one gated reading
    was compared with a baseline or the base, or has a record and cannot have changed."""
    gated = {reading.metric for reading in result.readings if reading.gated}
    return word in _GUARDED and any(
        verdict.before is not None
        if verdict.word is Word.UNCHANGED
        else verdict.word in _JUDGED and verdict.metric in gated and verdict.storable
        for verdict in result.verdicts
    )
