"""Judges the readings of a case by its record: the first rule that applies decides.

Verdicts on exact metrics are final here. A time is UNCHANGED, within its record, or in question (SUSPECT). Process
pairs decide the last kind (`perfguard.judge.run_verdicts`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from msgspec.structs import replace

from perfguard.judge.exact import describe_difference, judge_exact, machine_change, spelled_out, word_by
from perfguard.judge.lane import Lane, folder_of_ranks, timer_class, unstable_id
from perfguard.judge.pair_test import judge_rival
from perfguard.judge.record import Record, same_board
from perfguard.judge.screen import NO_CONTROLS, Controls, covering, has_other_code, judge_kernel_times, within_record
from perfguard.judge.statistics import history_of
from perfguard.model.limits import timed_kernel
from perfguard.model.records import (
    NO_BASE,
    NO_RECORD,
    OTHER_CONDITIONS,
    BaseTree,
    Better,
    CaseResult,
    Doubt,
    Entry,
    PairedCase,
    Reading,
    ReadingId,
    TimedEntry,
    Value,
    Verdict,
    Word,
)
from perfguard.model.records.baseline import UNSTABLE
from perfguard.model.records.code import CODE, CONFIGURATION
from perfguard.model.units import Unit, format_change

_OF_KERNELS = ("kernel_work", "launches", "other_inputs")  # What constants and options of launches change.
_NOTICEABLE = 0.01  # A larger slowdown of unchanged code is attributed to the machine.


def judge_case(result: CaseResult, lane: Lane, controls: Mapping[str, Controls] = NO_CONTROLS) -> list[Verdict]:
    """One verdict by the record for each doubt and each reading of `result`, in this order, and then one for each
    stored metric that was not read.

    The given inputs are judged elsewhere. A case with an accuracy problem was not measured, so no metric counts as
    missing.

    Args:
        controls: timer class -> the deviation of the run's unchanged cases from their records.
    """
    case = _Case(result, lane)
    same = covering(result, lane)
    verdicts = [case.doubted(doubt) for doubt in result.doubts]
    for reading in result.readings:
        if not reading.timed:
            verdicts.append(case.exact(reading))
        elif reading.rival:
            verdicts.append(case.beside_rival(reading))
        elif reading.metric in same:
            verdicts.append(case.unchanged(reading, f"{same[reading.metric]} is as recorded"))
        else:
            verdicts.append(case.timed(reading, controls))
    measured = result.word not in (Word.WRONG, Word.BROKEN, Word.UNSUPPORTED)
    if measured and not any(accuracy.problem for accuracy in result.accuracy):
        verdicts += case.not_read(same)
        verdicts += judge_kernel_times(result, lane)
    return verdicts


def certain_faults(result: CaseResult, lane: Lane, answer: PairedCase | None = None) -> list[Verdict]:
    """The failing verdicts that neither the base nor other cases can change, which the test itself reports: exact
    metrics that are worse than their records, and faults beside the given inputs if no base can be asked.

    Args:
        answer: the answer of a base that lacks the test.
    """
    case = _Case(result, lane, answer)
    worse = [case.exact(reading) for reading in result.readings if case.is_worse(reading)]
    return [verdict for verdict in (*map(case.doubted, result.doubts), *worse) if verdict.word.fails]


def beside_base(
    result: CaseResult, verdicts: Sequence[Verdict], lane: Lane, answer: PairedCase | None
) -> list[Verdict]:
    """The verdicts of `judge_case`, with those that the base decides: on doubts, and on exact metrics that have no
    comparable record, are worse, or were read since. Times stay in question.

    Args:
        answer: the base's answer; None if it was not asked about the case.
    """
    case = _Case(result, lane, answer)
    by_metric = {verdict.metric: verdict for verdict in verdicts[len(result.doubts) :]}
    settled = [case.doubted(doubt) for doubt in result.doubts]
    for reading in result.readings:
        known = by_metric.pop(reading.metric, None)
        asks = answer is not None and not reading.timed
        if known is None or (asks and (is_doubtful(known) or not reading.is_recorded or reading.metric == CODE)):
            known = case.exact(reading)
        settled.append(known)
    return [*settled, *by_metric.values()]


def is_doubtful(verdict: Verdict) -> bool:
    """Whether the base can add to the verdict on an exact metric: no record judges it, or it is worse."""
    return verdict.word in (Word.NEW, Word.CHANGED, *OTHER_CONDITIONS)


def unpaired(result: CaseResult, metric: str, lane: Lane, why: str) -> Verdict:
    """The verdict on a time that no process pair can judge: the problem with its record, otherwise UNRESOLVED."""
    if timed_kernel(metric):
        return Verdict(Word.UNRESOLVED, metric, f"UNPAIRED: {why}", unit=Unit.MICROSECONDS)
    reading = result.reading(metric)
    assert reading is not None
    return _Case(result, lane).unpaired(reading, why)


@dataclass(frozen=True)
class _Case:
    """One case in its lane."""

    result: CaseResult
    lane: Lane
    beside: PairedCase | None = None

    @cached_property
    def _stored(self) -> dict[str, Value]:
        """The stored values of its exact metrics."""
        stored = {each.metric: self.lane.record(self.result, each).implied for each in self.result.readings}
        return {metric: entry for metric, entry in stored.items() if not isinstance(entry, TimedEntry | None)}

    @cached_property
    def _base(self) -> BaseTree:
        """The commit that the case is compared with."""
        return self.lane.base_of(*self.result.id)

    @cached_property
    def _at_base(self) -> dict[str, Value]:
        """The base's readings of exact metrics on the same inputs."""
        base = None if self.beside is None else self.beside.base
        if base is None or base.inputs != self.result.inputs:
            return {}
        return {reading.metric: reading.value for reading in base.readings if not reading.timed}

    @cached_property
    def _answers(self) -> dict[str, Doubt]:
        """Name of a doubt -> the base's answer."""
        base = None if self.beside is None else self.beside.base
        return {} if base is None else {each.name: each for each in reversed(base.doubts)}

    def doubted(self, doubt: Doubt) -> Verdict:
        """The verdict on a fault that the given inputs do not show; SUSPECT until the base has answered."""
        at = (self._base.commit or "")[:12]
        answer = self._answers.get(doubt.name)
        if doubt.unmentioned and (answer is None or answer.problem):
            return Verdict(Word.PASS, doubt.output)
        if self._base.equal:
            return Verdict(Word.OLD_FAULT, doubt.output, f"so it is at {at}, whose code this is: {doubt.problem}")
        if self._base.commit is None:
            was_sought = self._base not in (NO_BASE, NO_RECORD)  # A case without a record is new.
            unasked = f"\nno base was asked: {self._base.problem}" if was_sought else ""
            return Verdict(Word.WRONG, doubt.output, f"{doubt.problem}{unasked}")
        if self.beside is None:
            return Verdict(Word.SUSPECT, reason=doubt.problem)  # A time in question has a metric.
        if answer is None:
            why = self.beside.problem or "new since then"
            return Verdict(Word.WRONG, doubt.output, f"{doubt.problem}\nnot comparable with {at}: {why}")
        if answer.problem:
            return Verdict(Word.OLD_FAULT, doubt.output, f"so it is at {at}: {doubt.problem}")
        return Verdict(Word.WRONG, doubt.output, f"{doubt.problem}\nright at {at}")

    def is_worse(self, reading: Reading) -> bool:
        """Whether an exact metric is worse than its record, whatever the conditions of either."""
        entry = self.lane.record(self.result, reading).implied if reading.gated and not reading.timed else None
        return entry is not None and not isinstance(entry, TimedEntry) and word_by(reading, entry) is Word.CHANGED

    def exact(self, reading: Reading) -> Verdict:
        """The verdict on an exact reading by its record, or by the base's reading if no record is comparable."""
        if not reading.is_recorded:
            return self.only_beside_base(reading)
        verdict = self.by_record(reading)
        if reading.metric == CODE and reading.note and not self._is_known_code(reading):
            return replace(verdict, word=Word.UNRESOLVED, reason=f"not compared with the base: {reading.note}")
        if reading.metric == CODE and verdict.before not in (None, reading.value) and self._is_known_code(reading):
            return replace(verdict, word=Word.UNCHANGED, reason="")
        if verdict.word not in (Word.NEW, *OTHER_CONDITIONS):
            return verdict
        before = self._at_base.get(reading.metric)
        if before is not None:
            return self._explained(judge_exact(reading, before), reading)
        if self._base.equal and verdict.word is Word.DRIFT:  # The base has the same code.
            return replace(verdict, word=Word.UNCHANGED, reason=f"{self._same_tree}; {verdict.reason}")
        return verdict

    def _is_known_code(self, reading: Reading) -> bool:
        """Whether the kernels are those of the record, by half of their fingerprints, or those of the base."""
        return not has_other_code(self.result, self.lane) or self._at_base.get(CODE) == reading.value

    def only_beside_base(self, reading: Reading) -> Verdict:
        """The verdict on a reading that no record holds: one that explains others, or one of code compiled for a
        target. The latter is not compared if the code is the recorded one."""
        before = self._at_base.get(reading.metric)
        if before is None or (reading.target and not has_other_code(self.result, self.lane)):
            return replace(_unjudged(Word.PASS, reading, ""), storable=False)
        return self._explained(judge_exact(reading, before), reading)

    def by_record(self, reading: Reading) -> Verdict:
        """The verdict on an exact reading by its record alone."""
        record = self.lane.record(self.result, reading)
        entry = record.implied
        if reading.is_empty and not entry:
            return _unjudged(Word.PASS, reading, "")
        if record.baseline is None and self._is_known_to_the_target_alone(reading):
            return _unjudged(Word.PASS, reading, f"not gated: {self.lane.hardware.slug} has no record of its own")
        if entry is None:
            return self._unknown(reading, record)
        if entry == UNSTABLE and self.result.case.direction == "test":
            return _unjudged(Word.PASS, reading, "not gated: it differed between processes when it was recorded")
        changed = record.other_method(entry)
        if changed or isinstance(entry, TimedEntry):
            return _unjudged(Word.METHOD_CHANGED, reading, changed, entry)
        return self._explained(judge_exact(reading, entry, record.drift), reading)

    def _explained(self, verdict: Verdict, reading: Reading) -> Verdict:
        if verdict.word is not Word.CHANGED:
            return verdict
        details = spelled_out(reading.metric, self.result.readings, {**self._stored, **self._at_base})
        cause = self._configured if reading.target or reading.metric in _OF_KERNELS else ""
        return replace(verdict, reason="\n".join(filter(None, (verdict.reason, cause, details, reading.note))))

    @cached_property
    def _configured(self) -> str:
        """Constants and options of launches that differ from the base's, as the cause of other compiled code."""
        reading = self.result.reading(CONFIGURATION)
        before = self._at_base.get(CONFIGURATION)
        difference = "" if reading is None or before is None else describe_difference(reading, before)
        return f"because: {difference}" if difference else ""

    def timed(self, reading: Reading, controls: Mapping[str, Controls]) -> Verdict:
        shown, value = self._shown(reading), reading.value
        if not isinstance(value, int | float) or not 0 < value < math.inf:
            reason = f"NOISY: read {value}, which is no time"
            return Verdict(Word.UNRESOLVED, reading.metric, reason, unit=reading.unit)
        if not reading.gated:
            change = f": {format_change(shown.ratio)}" if shown.ratio is not None else ""
            return replace(shown, word=Word.PASS, reason=f"not gated{change}")
        other = self._why_not_comparable(reading)
        if self._base.equal:
            return self.unchanged(reading, self._same_tree)
        if other is None:
            why = self._outside_record(self.lane.record(self.result, reading), controls)
            if not why:
                return replace(shown, word=Word.PASS, reason="")
        else:
            why = "nothing is recorded" if other.word is Word.NEW else "its record is of another kind"
        if self._base.commit is None:
            return self.unpaired(reading, self._base.problem)
        if other is not None and self.lane.base is None and other.word in (Word.NEW, Word.OTHER_HARDWARE):
            return other  # Without a record there is no commit of a record to compare with.
        return replace(shown, word=Word.SUSPECT, reason=f"to be paired: {why}")

    def beside_rival(self, reading: Reading) -> Verdict:
        verdict = judge_rival(reading)
        return replace(verdict, word=Word.UNCHANGED, reason=self._same_tree) if self._base.equal else verdict

    def unchanged(self, reading: Reading, why: str) -> Verdict:
        """The verdict on a time of unchanged code. If the time moved, the verdict names the machine as the cause."""
        shown, suite, key = self._shown(reading), *self.result.id
        baseline = self.lane.baselines.get(suite)
        if (shown.ratio or 1.0) > 1 + _NOTICEABLE and baseline is not None and key in baseline.cases:
            moved = machine_change(baseline.provenance_of(key), self.result.conditions)
            why += f", so the machine: {moved}" if moved else ""
        return replace(shown, word=Word.UNCHANGED, reason=why)

    def unpaired(self, reading: Reading, why: str) -> Verdict:
        other = self._why_not_comparable(reading)
        return other or replace(self._shown(reading), word=Word.UNRESOLVED, reason=f"UNPAIRED: {why}")

    def not_read(self, same: Mapping[str, str]) -> list[Verdict]:
        """The verdicts on stored metrics without a reading. `same` maps a covered metric to the one that covers it."""
        suite, key = self.result.id
        verdicts = []
        for metric in sorted(self.lane.to_read(suite, key) - {reading.metric for reading in self.result.readings}):
            if metric in same:
                reason = f"{same[metric]} is as recorded; not timed"
                before = math.exp(history_of(self.lane.timed[ReadingId(suite, key, metric)].sessions).centre)
                verdicts.append(Verdict(Word.UNCHANGED, metric, reason, before=before, unit=Unit.MICROSECONDS))
            else:
                verdicts.append(Verdict(Word.UNRESOLVED, metric, not_read(metric)))
        return verdicts

    # -- parts -------------------------------------------------------------------------------------------------------

    @property
    def _same_tree(self) -> str:
        return f"the working tree is {(self._base.commit or '')[:12]}, but for files that the run does not use"

    def _outside_record(self, record: Record, controls: Mapping[str, Controls]) -> str:
        entry = record.entry
        assert isinstance(entry, TimedEntry)
        name = timer_class(entry.timer)
        on_its_board = same_board(record.provenance, self.result)
        beside = controls.get(name, Controls())
        return within_record(record.reading, entry, self.lane.prior(name), beside, on_its_board=on_its_board)

    def _why_not_comparable(self, reading: Reading) -> Verdict | None:
        """The verdict on a time that cannot be compared with its record, with the reason; None if it can."""
        record = self.lane.record(self.result, reading)
        if record.entry is None:
            return self._unknown(reading, record)
        if record.why_time_differs is None:
            return None
        word, why = record.why_time_differs
        shown = self._shown(reading) if word is Word.DRIFT else _unjudged(word, reading, "", record.entry)
        return replace(shown, word=word, reason=why)

    def _shown(self, reading: Reading) -> Verdict:
        """A verdict with the time and the record of the same timer, if any. The caller sets word and reason."""
        entry = self.lane.record(self.result, reading).entry
        shown = Verdict(Word.PASS, reading.metric, after=reading.value, unit=reading.unit)
        value = reading.value
        if not isinstance(entry, TimedEntry) or entry.timer != reading.timer or not isinstance(value, int | float):
            return shown
        centre = history_of(entry.sessions).centre
        slowdown = math.log(value) - centre if 0 < value < math.inf else 0.0
        ratio = math.exp(-slowdown if reading.better is Better.HIGHER else slowdown)
        return replace(shown, before=math.exp(centre), ratio=ratio)

    def _is_known_to_the_target_alone(self, reading: Reading) -> bool:
        """Whether a case has only a portable record, and `reading` is not portable."""
        portable = self.lane.portable.get(self.result.case.suite)
        return not self.lane.is_portable(reading) and portable is not None and self.result.case.key in portable.cases

    def _unknown(self, reading: Reading, record: Record) -> Verdict:
        lane, portable = self.lane, self.lane.is_portable(reading)
        slugs = lane.elsewhere.get(self.result.id, ())
        if record.case is None and slugs and not portable:
            reason = f"known on {', '.join(slugs)}, not on {lane.hardware.slug}"
            return _unjudged(Word.OTHER_HARDWARE, reading, reason)
        folder = lane.hardware.target if portable else folder_of_ranks(lane.hardware, self.result.ranks)
        why = unstable_id(record.key)
        return replace(_unjudged(Word.NEW, reading, why or f"no baseline on {folder}"), storable=not why)


def _unjudged(word: Word, reading: Reading, reason: str, entry: Entry | None = None) -> Verdict:
    before = None if isinstance(entry, TimedEntry) else entry
    return Verdict(word, reading.metric, reason, before=before, after=reading.value, unit=reading.unit)


def not_read(metric: str) -> str:
    """The reason of a verdict on a recorded metric that the run failed to read."""
    return f"{metric} has a baseline, but was not read; if it is gone: --perfguard-update=stale"
