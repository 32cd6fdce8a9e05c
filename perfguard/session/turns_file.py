"""Stores between runs how far each case came with derived inputs and configurations, in a file of the cache folder."""

from __future__ import annotations

import contextlib
from collections.abc import Set
from pathlib import Path

import msgspec
from filelock import FileLock

from perfguard.check.turns import Reached
from perfguard.model.atomic_files import write_atomically
from perfguard.model.records import Case

_MOST_CASES = 10_000  # About 2 MB; beyond it, the cases written longest ago are dropped.
_LOCK_SECONDS = 5.0  # A write takes milliseconds. If the lock is not free, nothing is written.


class TurnsFile:
    """The stored progress of the cases in one lane.

    A file that is absent, damaged or of another version counts as empty. If it cannot be written, each run begins as
    the last one did.

    Args:
        path: the file, which several processes may read and write at once.
        lane: the hardware's name, or the target's where any machine of it serves, whose runs follow each other.
    """

    def __init__(self, path: Path, lane: str) -> None:
        self._path, self._lane = path, lane
        self._known = self._read()
        self._new: dict[str, Reached | None] = {}  # Changes since the last save; None: the case begins anew.

    def of(self, case: Case) -> Reached | None:
        """How far the case came in earlier runs; None if it begins anew."""
        return self._known.get(self._key(case))

    def put(self, case: Case, reached: Reached | None) -> None:
        """How far the case has come now."""
        key = self._key(case)
        if reached != self._known.pop(key, None):
            self._new[key] = reached
        if reached is not None:
            self._known[key] = reached

    def tried(self, code: str) -> Set[str]:
        """The kinds that have had a turn with a code, in any case of the lane."""
        known = [known for key, known in self._known.items() if known.code == code and key.startswith(f"{self._lane} ")]
        return {kind for each in known for kind, number in each.done.items() if number}

    def save(self) -> None:
        """Write the new entries, beside those of other processes."""
        if not self._new:
            return
        with contextlib.suppress(OSError), FileLock(self._path.with_suffix(".lock"), timeout=_LOCK_SECONDS):
            written = {key: reached for key, reached in self._read().items() if key not in self._new}
            written |= {key: reached for key, reached in self._new.items() if reached is not None}
            kept = dict([*written.items()][-_MOST_CASES:])
            write_atomically(self._path, msgspec.json.encode(kept))
            self._new = {}

    def _read(self) -> dict[str, Reached]:
        with contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, Reached])
        return {}

    def _key(self, case: Case) -> str:
        return f"{self._lane} {case.suite}::{case.name}"
