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
CaseId = tuple[str, str]  # suite, case key
Parts = dict[str, int | float | str]  # parts of one value by name: kernel -> its registers
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
    """The verdicts, most urgent first: the order in which summaries list them."""

    WRONG = "WRONG"
    BROKEN = "BROKEN"
    SLOWER = "SLOWER"
    CHANGED = "CHANGED"
    UNRESOLVED = "UNRESOLVED"
    SUSPECT = "SUSPECT"  # never final: process pairs, or fresh processes beside a rival, decide
    DRIFT = "DRIFT"
    METHOD_CHANGED = "METHOD_CHANGED"
    OTHER_HARDWARE = "OTHER_HARDWARE"
    STALE = "STALE"
    NEW = "NEW"
    UNSUPPORTED = "UNSUPPORTED"
    FASTER = "FASTER"  # a time, by process pairs
    BETTER = "CHANGED (better)"  # an exact metric, which tells of no time
    OLD_FAULT = "OLD FAULT"  # wrong on inputs beside the given ones, at the base too
    UNCHANGED = "UNCHANGED"  # the device runs the same code, so the time is not judged
    PASS = "PASS"

    @property
    def fails(self) -> bool:
        """Whether a case with this verdict fails its test."""
        return self in (Word.WRONG, Word.BROKEN, Word.SLOWER, Word.CHANGED)

    @property
    def unguarded(self) -> bool:
        """Whether the verdict means that nothing was judged; `strict` turns these into failures."""
        return self in (*OTHER_CONDITIONS, Word.UNRESOLVED, Word.STALE, Word.NEW, Word.SUSPECT)


#: The record was read under other conditions than the reading, so they are not compared.
OTHER_CONDITIONS = (Word.DRIFT, Word.METHOD_CHANGED, Word.OTHER_HARDWARE)

#: The first words of the last line of a reason: the value may differ by the compiler that made it.
BY_TOOLCHAIN = "another toolchain: "


class Better(enum.StrEnum):
    """The direction in which a metric improves; SAME: every change counts as worse."""

    LOWER = "lower"
    HIGHER = "higher"
    SAME = "same"


class Across(enum.StrEnum):
    """How one value comes from those of several ranks, where these differ. EQUAL: they must not. MOST: the greatest.
    EACH: all of them, by rank."""

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
        """Its identity in a run."""
        return self.suite, self.key

    def labelled(self, label: str) -> Case:
        """The case of a further call in the same test."""
        return msgspec.structs.replace(self, name=f"{self.name}:{label}")


class Reading(Struct, frozen=True, omit_defaults=True):
    """One metric of one case in one session. It describes itself, so that later stages need not know its name.

    A timed reading's `value` is the session value (median of `blocks`, the times of its blocks, µs); `spread` is its
    standard error within the session, relative. `promise` is the smallest slowdown that the gate promises to catch
    (relative), `floor` the smallest absolute change that may fail, in the reading's unit. An exact reading gates when
    it moved by more than `tolerance` (relative) *and* more than `floor`. `rank` orders the readings that explain a slow
    verdict, the closest cause first, and the verdicts of a case. A reading that `details` another metric (as the
    kernels' names detail their count) explains only that one. `lines` holds the line of Python that a part stands for.
    `unrecorded` is the value, in every part, that a record without the metric implies. None: it implies none, and the
    reading is NEW. A timed reading with a `rival` holds the times of candidate and rival, read by turns. It is judged
    by these two alone and never stored. `across` is for cases of several ranks. `binding_strides` are of a text that
    tells strides: those of the reference, which the reading must have if its record has them. Other strides are shown
    and not judged. None: every word of a text is judged.
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
    gated: bool = True  # False: shown as a cause of other verdicts
    stored: bool = False  # recorded although it gates nothing
    portable: bool = False  # holds on every machine of the target (contract, operators)
    target: str = ""  # the architecture that it describes; never stored, but compared with the base's
    covers: list[str] = []  # timed metrics that cannot have moved if this exact reading is as stored
    drifts: bool = False  # depends on driver, toolkit, torch or triton: DRIFT, not CHANGED, under other versions
    unrecorded: int | str | None = None
    rank: int = 50
    details: str = ""
    lines: dict[str, str] = {}
    rival: float = 0.0  # the rival's time, µs; 0: the reading is of the candidate alone
    problem: str = ""  # why the reading alone shows that the case is wrong; empty: it does not
    note: str = ""
    across: Across = Across.EACH
    binding_strides: list[str] | None = None

    @property
    def timed(self) -> bool:
        return self.timer is not None

    @property
    def is_recorded(self) -> bool:
        """Whether baselines hold it: it gates, covers times, or is to be stored. Of the times, those that are only
        shown, or compared with a rival's, are left out. Those of several ranks are not, though not gated: sessions show
        their noise, without which no gate could be set."""
        if self.target or self.rival:
            return False
        return self.gated or bool(self.covers) or self.stored or (self.timed and self.across is Across.EQUAL)

    @property
    def is_empty(self) -> bool:
        """Whether it says that no part is there: of interest only where some are recorded. That no part has a problem
        is a value, where less is better."""
        return self.value in ({}, []) and self.better is Better.SAME


class Accuracy(Struct, frozen=True, omit_defaults=True):
    """The comparison of one output (or gradient) of the candidate with the reference.

    `error_ratio` is RMSE(candidate)/RMSE(eager), both against the oracle, of which eager's has a least size; `limit` is
    the largest RMSE allowed; `sqnr_db` is 20·log10(RMS(oracle)/RMSE(candidate)). `problem` is empty when the output is
    right.
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
    copy_fraction: float | None = None  # share of the copy ceiling of the same session


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
    interval: tuple[float, float] | None = None  # if process pairs measured it
    limit: float | None = None
    smallest: float | None = None
    storable: bool = True  # False: it rests on no baseline, so no update can accept it
    suite: str = ""  # with `case`: a recorded case (its key) that is gone
    case: str = ""


class Conditions(Struct, frozen=True, omit_defaults=True):
    """The device's state at one moment."""

    clock_mhz: int | None = None
    throttle_reasons: list[str] = []
    other_processes: int | None = None
    board: str | None = None  # `Device.board`


class HardCounts(Struct, frozen=True, omit_defaults=True):
    """What is checked beside the given call, by kind: compared, left out by reason, left for the next run."""

    ran: dict[str, int] = {}
    left_out: dict[str, int] = {}
    waiting: dict[str, int] = {}


class Doubt(Struct, frozen=True, omit_defaults=True):
    """A fault that the given inputs do not show: of a derived input, or of a configuration that is not chosen. The base
    commit is asked whether it has the fault, too. The text and the steps mean the same in every process and commit.

    One configuration may have several, one for each problem: whoever compares them does so by name and pass.

    Attributes:
        name: what is tried: `hard input, argument 0 (zero)`, or the configuration's description without its number.
        problem: what is wrong, in a sentence that says what was tried; in the base's answer empty if the base is right.
        output: the output or gradient that is wrong; empty: none is singled out.
        backward: whether the fault is the backward pass's.
        inputs: dtypes, shapes, strides and values of the given inputs, from which others are derived.
        cut: place among all leaves of the call -> steps that made the call small; empty: it is as given.
        tried: derived inputs, each by its parts (kind, place -> steps). They are run in order, and the last one is
            judged. Those before it leave something behind in the candidate. Empty: a configuration.
    """

    name: str
    problem: str = ""
    output: str = ""
    backward: bool = False
    inputs: str = ""
    cut: dict[int, str] = {}
    tried: list[list[tuple[str, dict[int, str]]]] = []


class CaseResult(Struct, frozen=True, omit_defaults=True):
    """All results of one session for one case."""

    case: Case
    inputs: str = ""  # dtypes, shapes and strides of the inputs: another spec is another measurement
    accuracy: list[Accuracy] = []
    readings: list[Reading] = []
    verdicts: list[Verdict] = []
    throughput: Throughput | None = None
    notes: list[str] = []  # remarks for the reader that are no problems
    hard: HardCounts | None = None  # counts for both passes, in the forward case
    unchecked: dict[str, str] = {}  # options that stay neutral: `weight_decay of lion` -> `0.0`; '': it has others, too
    doubts: list[Doubt] = []  # faults that the given inputs do not show; of a base that is asked: its answers
    conditions: Conditions | None = None  # read right after the times, while clocks are up
    seconds: float = 0.0  # spent on the case
    device: int = 0  # index among several devices of one kind
    ranks: int = 1  # processes that made the call together, each on a device of its own or all on one CPU

    @property
    def all_notes(self) -> list[str]:
        """The remarks on the case and on its readings, but for readings that say that no part is there."""
        told = [reading.note for reading in self.readings if reading.note and not reading.is_empty]
        return [*self.notes, *told]

    @property
    def id(self) -> CaseId:
        """Its case's identity."""
        return self.case.id

    @property
    def is_timed(self) -> bool:
        """Whether any of its readings is a time."""
        return any(reading.timed for reading in self.readings)

    def reading(self, metric: str) -> Reading | None:
        """The reading named `metric`, if the session has it."""
        return next((reading for reading in self.readings if reading.metric == metric), None)

    def rank(self, metric: str) -> int:
        """Sort key of its metrics, the one that tells most first: times and errors, then exact ones by their `rank`."""
        reading = self.reading(metric)
        return 0 if reading is None or reading.timed else reading.rank

    def place(self, verdict: Verdict) -> tuple[int, int]:
        """Sort key of its verdicts, the one to lead with first: by word, then by metric."""
        return URGENCY[verdict.word], self.rank(verdict.metric)

    @property
    def word(self) -> Word:
        """The case's worst verdict (`worst`)."""
        return worst(self.verdicts)


def with_readings(result: CaseResult, readings: Collection[Reading]) -> CaseResult:
    """The result with further readings, in place of its own of the same metrics."""
    kept = [own for own in result.readings if all(own.metric != reading.metric for reading in readings)]
    return msgspec.structs.replace(result, readings=[*kept, *readings])


URGENCY = {word: place for place, word in enumerate(Word)}

#: Words for readings that were compared. The others give the reason why a reading was not.
_JUDGED = (Word.SLOWER, Word.CHANGED, Word.FASTER, Word.BETTER, Word.UNCHANGED, Word.PASS)
#: Words of cases that can be guarded: an old fault takes nothing away from what was compared.
_GUARDED = (*_JUDGED, Word.OLD_FAULT)


def worst(verdicts: Collection[Verdict]) -> Word:
    """The most urgent word of a case's verdicts. A metric without a record counts only where nothing else of the case
    was judged: NEW is said of cases."""
    judged = is_compared(verdicts)
    words = [each.word for each in verdicts if not (judged and each.word is Word.NEW and each.metric)]
    return min(words, key=URGENCY.__getitem__, default=Word.PASS)


def is_compared(verdicts: Iterable[Verdict]) -> bool:
    """Whether any reading of a case was compared with a record, or with the base."""
    return any(verdict.word in _JUDGED and verdict.before is not None for verdict in verdicts)


def words_of(result: CaseResult, verdicts: Collection[Verdict]) -> list[Word]:
    """The words of a case's verdicts, without those on metrics that only wait for a record."""
    new = new_metrics(result)
    return [verdict.word for verdict in verdicts if not any(verdict is each for each in new)]


def new_metrics(result: CaseResult) -> list[Verdict]:
    """The verdicts on metrics without a record, of a case of which other metrics were judged."""
    if result.word is Word.NEW:
        return []
    return [verdict for verdict in result.verdicts if verdict.word is Word.NEW and verdict.metric]


def is_unread(verdict: Verdict) -> bool:
    """Whether no process pair, or too few, read a time in question."""
    return verdict.word is Word.UNRESOLVED and verdict.reason.startswith(("UNPAIRED", "UNDECIDED"))


def is_inconclusive(results: Collection[CaseResult]) -> bool:
    """Whether a run is neither a success nor a regression: most of its timed cases are undecided, or one that no or too
    few process pairs read is slower than its gate promises to find, as far as it was read."""
    times = (time for result in results for time in _judged_times(result))
    unread = (is_unread(verdict) and (verdict.ratio or 1.0) > 1 + promise for promise, verdict in times)
    return is_mostly_undecided(results) or any(unread)


def is_mostly_undecided(results: Iterable[CaseResult]) -> bool:
    """Whether most timed cases are undecided."""
    words = [{verdict.word for _, verdict in _judged_times(result)} for result in results]
    return 2 * sum(bool(each & {Word.UNRESOLVED, Word.SUSPECT}) for each in words) > sum(map(bool, words))


def _judged_times(result: CaseResult) -> list[tuple[float, Verdict]]:
    """The verdicts on a case's times with the smallest promise, and that promise: the device's if there is one. A host
    time beside it promises only 50 %, and on a shared machine even that cannot be decided."""
    gated = [reading for reading in result.readings if reading.timed and reading.gated]
    least = min((reading.promise for reading in gated), default=0.0)
    judged = {reading.metric for reading in gated if reading.promise == least}
    return [(least, verdict) for verdict in result.verdicts if verdict.metric in judged]


def is_guarded(result: CaseResult, word: Word | None) -> bool:
    """Whether `word`, a case's worst verdict, is a comparison, and at least one gated reading was compared with a
    baseline or the base, or has a record and cannot have changed."""
    gated = {reading.metric for reading in result.readings if reading.gated}
    return word in _GUARDED and any(
        verdict.before is not None
        if verdict.word is Word.UNCHANGED
        else verdict.word in _JUDGED and verdict.metric in gated and verdict.storable
        for verdict in result.verdicts
    )
