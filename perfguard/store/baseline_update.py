"""Writes chosen changes. All files are made and checked before the first one is replaced.

The layout is perfguard's own: comments in a file are lost when it is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from perfguard.model.errors import BaselineError
from perfguard.model.records import Baseline, CaseBaseline, Entry, Provenance, TimedEntry
from perfguard.model.records.baseline import as_stored
from perfguard.model.records.change import Change, relevant
from perfguard.store.baseline_files import Store
from perfguard.store.baseline_parser import CASE_FIELDS, parse
from perfguard.store.baseline_writer import render


def apply(store: Store, changes: Sequence[Change], provenance: Provenance, reason: str = "") -> list[Path]:
    """Write `changes`, which `select` chose; the lines of other cases stay as they are.

    A file keeps its head. Cases that are recorded anew carry their own provenance, unless all cases are. A file without
    cases is removed.

    Returns:
        The files written or removed.

    Raises:
        BaselineError: a file is broken, has changed since the changes were planned, or cannot be written; a change is
            refused, or needs a reason and has none. Nothing is written in these cases.
    """
    files: dict[tuple[str, str], list[Change]] = {}
    for change in changes:
        if change.refused:
            raise BaselineError(f"{change.name}: {change.refused}")
        if change.needs_reason and not reason.strip():
            raise BaselineError(f"{change.name}: {change.demand}")
        files.setdefault((change.folder, change.suite), []).append(change)
    contents = {}
    for (folder, suite), group in files.items():
        path = store.path(folder, suite)
        now = relevant(folder, provenance)
        old = store.load(folder, suite) or Baseline(hardware=folder, suite=suite, provenance=now)
        new = _changed(old, group, now, reason.strip(), path)
        contents[path] = _bytes(new, path) if new.cases else None
    store.replace(contents)
    return list(contents)


def _changed(old: Baseline, changes: Sequence[Change], now: Provenance, reason: str, path: Path) -> Baseline:
    cases = dict(old.cases)
    recorded: dict[str, Provenance] = {}
    for change in changes:
        if change.metric in CASE_FIELDS:
            raise BaselineError(
                f"{change.name}: {change.metric!r} names a field of a baseline; call the metric otherwise"
            )
        case = cases.get(change.key, CaseBaseline(entries={}))
        if change.metric and case.entries.get(change.metric) != change.before:
            raise BaselineError(f"{path}: {change.name} has changed since it was compared; run the update again")
        if change.after is None:
            left = {metric: entry for metric, entry in case.entries.items() if change.metric not in ("", metric)}
            if left:
                cases[change.key] = replace(case, entries=left)
            else:
                cases.pop(change.key, None)
            continue
        recorded[change.key] = change.provenance or recorded.get(change.key, now)
        cases[change.key] = replace(
            case,
            entries={**case.entries, change.metric: as_stored(_anchored(change, reason))},
            inputs=change.inputs,
            reasons=_reasons(case, change, reason),
        )
    afresh = recorded.keys() >= set(cases)  # the head applies to no case any more
    head = now if afresh else old.provenance
    for key, own in recorded.items():
        same = own == replace(head, clock_mhz=own.clock_mhz)  # clocks differ a little between any two runs
        cases[key] = replace(cases[key], provenance=None if same else own)
    return replace(old, provenance=head, cases=cases)


def _anchored(change: Change, reason: str) -> Entry:
    """The entry to store: a level that was accepted with a reason is its own anchor."""
    assert change.after is not None
    if change.grown and reason and isinstance(change.after, TimedEntry):
        return replace(change.after, anchor=None)
    return change.after


def _reasons(case: CaseBaseline, change: Change, reason: str) -> dict[str, str]:
    if change.needs_reason or (change.category == "slower" and reason):
        return {**case.reasons, change.metric: reason}
    if change.category == "faster":
        return {metric: why for metric, why in case.reasons.items() if metric != change.metric}
    return case.reasons


def _bytes(new: Baseline, path: Path) -> bytes:
    """The file's new bytes, which are parsed before anything is written, so that perfguard can read every file it
    writes."""
    try:
        data = render(new).encode("utf-8")
    except UnicodeEncodeError as error:
        raise BaselineError(f"{path}: a name is no text ({error}); give the case another id") from error
    if parse(data, path, new.hardware, new.suite) != new:
        raise BaselineError(
            f"{path}: a name or value in it reads back otherwise; give the case or the metric another name"
        )
    return data
