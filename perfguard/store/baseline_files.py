"""Lists, reads and replaces the files in the folder of baselines, and writes chosen changes into them."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from filelock import FileLock, Timeout
from msgspec.structs import replace

from perfguard.model.atomic_files import check_writable, clear_stale, write_atomically
from perfguard.model.errors import BaselineError
from perfguard.model.records import Baseline, CaseBaseline, Entry, Provenance, TimedEntry
from perfguard.model.records.baseline import EVERY_CPU, as_stored
from perfguard.model.records.change import Change
from perfguard.store.baseline_form import CASE_FIELDS, parse, render

_PART = re.compile(r"[\w+-][\w.+-]*")
_LOCK = ".perfguard-lock"  # A folder, so that git can ignore all of it.
_LOCK_SECONDS = 300.0  # Writing and checking a file of 16 MB took 190 s on a busy machine.


class Store:
    """The baseline files under `root`. A folder is a hardware's slug, or `cpu` for entries that hold on every CPU."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._parsed: dict[Path, tuple[bytes, Baseline]] = {}  # Valid while a file has these bytes.

    def path(self, folder: str, suite: str) -> Path:
        """The path of the suite's file.

        Raises:
            BaselineError: a name cannot be part of a path below the root.
        """
        for part in (*folder.split("/"), *suite.split("/")):
            if not _PART.fullmatch(part):
                raise BaselineError(
                    f"{folder}/{suite}: {part!r} cannot name a baseline file; "
                    "use letters, digits, '_', '.', '+' and '-'"
                )
        return self.root / folder / f"{suite}.yaml"

    def load(self, folder: str, suite: str) -> Baseline | None:
        """The folder's baseline of the suite; None if there is no file.

        Raises:
            BaselineError: the file cannot be read as a baseline of this folder.
        """
        path = self.path(folder, suite)
        data = _read(path)
        if data is None:
            return None
        known = self._parsed.get(path)
        if known is None or known[0] != data:
            known = self._parsed[path] = data, parse(data, path, folder, suite)
        return known[1]

    def folders(self) -> list[str]:
        """The folders with any baselines, sorted.

        Raises:
            BaselineError: a file has the name of the folder of baselines.
        """
        if self.root.is_file():
            raise _in_the_way(self.root)
        return sorted({path.parent.name for path in self.root.glob("*/*.yaml")})

    def suites(self, folder: str) -> list[str]:
        """The suites with a file in a folder, sorted."""
        return sorted(path.stem for path in (self.root / folder).glob("*.yaml"))

    def baselines(self, folder: str) -> dict[str, Baseline]:
        """Suite -> the baseline in a folder.

        Raises:
            BaselineError: a file cannot be read.
        """
        loaded = {suite: self.load(folder, suite) for suite in self.suites(folder)}
        return {suite: baseline for suite, baseline in loaded.items() if baseline is not None}

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing baselines between a read and the write that follows from it.

        Raises:
            BaselineError: the lock cannot be made, or another process has it for minutes.
        """
        folder = self.root / _LOCK
        try:
            if not folder.is_dir():
                write_atomically(folder / ".gitignore", b"*\n")
            lock = FileLock(folder / "lock", timeout=_LOCK_SECONDS)
            lock.acquire()
        except Timeout as error:
            raise BaselineError(
                f"{self.root}: another process has been writing baselines for {_LOCK_SECONDS:.0f} s; wait for it to end"
            ) from error
        except (FileExistsError, NotADirectoryError) as error:
            raise _in_the_way(self.root) from error
        except OSError as error:
            raise self._unwritable(error) from error
        try:
            yield
        finally:
            lock.release()

    def check_writable(self, folders: Iterable[str]) -> None:
        """Find out before a run measures whether its update can be written.

        Raises:
            BaselineError: nothing can be written in one of `folders`.
        """
        try:
            for folder in folders:
                check_writable(self.root / folder)
        except OSError as error:
            raise self._unwritable(error) from error

    def replace(self, contents: Mapping[Path, bytes | None]) -> None:
        """Replace each file by its new bytes, or remove it for None. Each file is replaced atomically.

        Raises:
            BaselineError: a file cannot be written; the message names those that were written before.
        """
        done: list[Path] = []
        try:
            for path, data in contents.items():
                if data is None:
                    path.unlink()
                else:
                    write_atomically(path, data)
                done.append(path)
            for folder in {Path(os.path.realpath(path)).parent for path in contents}:
                clear_stale(folder)
        except OSError as error:
            raise self._unwritable(error, done) from error

    def _unwritable(self, error: OSError, done: Sequence[Path] = ()) -> BaselineError:
        written = f" (already written: {', '.join(map(str, done))})" if done else ""
        return BaselineError(
            f"{error.filename or self.root}: cannot write ({error.strerror}){written}; "
            "make room or mend the permissions, then record again"
        )


def _in_the_way(path: Path) -> BaselineError:
    return BaselineError(f"{path}: a file, expected a folder; move it away")


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except NotADirectoryError as error:
        raise _in_the_way(path) from error
    except UnicodeEncodeError as error:
        raise BaselineError(
            f"{str(path)!a}: this locale has no such file names; set LC_ALL=C.UTF-8, or PYTHONUTF8=1"
        ) from error
    except OSError as error:
        raise BaselineError(f"{path}: cannot read ({error.strerror}); mend its permissions") from error


def apply(store: Store, changes: Sequence[Change], provenance: Provenance, reason: str = "") -> list[Path]:
    """Write `changes`, which `select` chose; the lines of other cases do not change. A file without cases is removed.
    Comments in a file are lost when it is written.

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
        raise BaselineError(f"{path}: its new content is not read back ({error}); give the case another id") from error
    if not same:
        raise BaselineError(
            f"{path}: a name or value would be read back as another one; give the case or the metric another name"
        )
    return data


def _ends_lines_with_crlf(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.readline().endswith(b"\r\n")
    except OSError:
        return False
