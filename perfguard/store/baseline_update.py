"""Writes chosen changes. All contents are made and checked before the first file is replaced.

Comments in a file are lost when it is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from perfguard.model.errors import BaselineError
from perfguard.model.records import Baseline, CaseBaseline, Entry, Provenance, TimedEntry
from perfguard.model.records.baseline import EVERY_CPU, as_stored
from perfguard.model.records.change import Change
from perfguard.store.baseline_files import Store
from perfguard.store.baseline_form import CASE_FIELDS, parse, render


def apply(store: Store, changes: Sequence[Change], provenance: Provenance, reason: str = "") -> list[Path]:
    """Write `changes`, which `select` chose; the lines of other cases do not change. A file without cases is removed.

    Args:
        provenance: the provenance of the new entries.
        reason: the reason that is stored with them.

    Returns:
        The files that were written or removed.

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
        store.path(change.folder, change.suite)  # It refuses names that lead out of the folder.
        files.setdefault((change.folder, change.suite), []).append(change)
    if not files:
        return []
    contents: dict[Path, bytes | None] = {}
    with store.locked():  # Another process may have written since the changes were planned.
        for (folder, suite), group in files.items():
            path = store.path(folder, suite)
            old = store.load(folder, suite) or Baseline(folder, suite)
            new = _changed(old, group, provenance, reason.strip(), path)
            contents[path] = _bytes(new, path) if new.cases else None
        store.replace(contents)
    return list(contents)


def _changed(old: Baseline, changes: Sequence[Change], now: Provenance, reason: str, path: Path) -> Baseline:
    cases, recordings = dict(old.cases), old
    own: dict[str, Provenance] = {}  # Case -> the provenance of one of its changes.
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
        if change.provenance is not None:
            own[change.key] = change.provenance
        origin = own.get(change.key, now)
        if old.hardware == EVERY_CPU:  # Its entries hold on any board, driver and clock.
            origin = replace(origin, driver=None, toolkit=None, power_limit_watts=None, clock_mhz=None, board=None)
        recordings, recording = recordings.with_recording(replace(origin, reason=reason))
        entries = {**case.entries, change.metric: as_stored(_anchored(change, reason))}
        cases[change.key] = CaseBaseline(entries, change.inputs, recording)
    return replace(recordings, cases=cases).pruned()


def _anchored(change: Change, reason: str) -> Entry:
    """The entry to store. A level that was accepted with a reason becomes the anchor."""
    assert change.after is not None
    if change.grown and reason and isinstance(change.after, TimedEntry):
        return replace(change.after, anchor=None)
    return change.after


def _bytes(new: Baseline, path: Path) -> bytes:
    """The new bytes of a file, parsed for a check, so that perfguard can read every file that it writes. Its line ends
    stay those of git's setting on this machine."""
    data = render(new).encode("utf-8", "backslashreplace")
    if _ends_lines_with_crlf(path):
        data = data.replace(b"\n", b"\r\n")
    try:
        same = parse(data, path, new.hardware, new.suite) == new
    except BaselineError as error:
        raise BaselineError(f"{path}: what would be written is not read ({error}); give the case another id") from error
    if not same:
        raise BaselineError(
            f"{path}: a name or value in it reads back otherwise; give the case or the metric another name"
        )
    return data


def _ends_lines_with_crlf(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.readline().endswith(b"\r\n")
    except OSError:
        return False
