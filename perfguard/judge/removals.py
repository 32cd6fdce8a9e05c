"""What an update removes: records of cases that are gone, and of metrics that a case no longer has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from perfguard.judge.case_verdicts import not_read
from perfguard.judge.lane import is_own
from perfguard.model.records import Baseline, CaseResult, Hardware, Verdict, Word
from perfguard.model.records.baseline import EVERY_CPU
from perfguard.model.records.change import Change


class BaselineSource(Protocol):
    """The folder of baseline files, as far as a plan reads it."""

    def load(self, folder: str, suite: str) -> Baseline | None: ...

    def folders(self) -> Sequence[str]: ...


def cases_gone(store: BaselineSource, hardware: Hardware, verdict: Verdict) -> list[Change]:
    """The removals of a case, by the verdict that it is gone."""
    return [
        Change(category="stale", folder=file.hardware, suite=verdict.suite, key=verdict.case, note=verdict.reason)
        for file in _files(store, verdict.suite, lambda folder: folder == EVERY_CPU or is_own(hardware.slug, folder))
        if verdict.case in file.cases
    ]


def metrics_gone(store: BaselineSource, hardware: Hardware, result: CaseResult) -> list[Change]:
    """The removals of a case's metrics that are recorded, but were not read."""
    gone = {
        verdict.metric
        for verdict in result.verdicts
        if verdict.word is Word.UNRESOLVED and verdict.reason == not_read(verdict.metric)
    }
    suite, key = result.id
    if not gone:
        return []
    return [
        Change(category="stale", folder=file.hardware, suite=suite, key=key, metric=metric, before=entry)
        for file in (_files(store, suite, lambda folder: folder == hardware.target or is_own(hardware.slug, folder)))
        if key in file.cases
        for metric, entry in file.cases[key].entries.items()
        if metric in gone
    ]


def _files(store: BaselineSource, suite: str, chosen: Callable[[str], bool]) -> list[Baseline]:
    loaded = [store.load(folder, suite) for folder in store.folders() if chosen(folder)]
    return [file for file in loaded if file is not None]
