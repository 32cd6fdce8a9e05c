"""Writes files atomically: a file is complete or unchanged, even if the writing process is killed."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path

from perfguard.model.errors import UsageError

STALE_SECONDS = 3600.0  # No write takes this long.
_STAGING = ".perfguard-"
_LEAST_ROOM = 1 << 16  # Bytes that a disk has to have left: the report of a few cases.


def write_atomically(path: Path, data: bytes) -> None:
    """Replace `path` by `data`, or leave it untouched. The data is on the disk on return. Missing folders are created,
    a link is followed, and an existing file keeps its permissions.

    The incomplete file is in a folder of its own, which git ignores even if a killed process leaves it behind.

    Raises:
        OSError: it cannot be written; with its name, which neither a full disk nor the other folder would tell.
    """
    try:
        _replace(Path(os.path.realpath(path)), data)
    except OSError as error:
        error.filename = str(path)
        raise


def _replace(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=_STAGING, dir=path.parent))
    try:
        (folder / ".gitignore").write_bytes(b"*\n")
        with (folder / "whole").open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(OSError):  # The file is new, or its file system has no permissions.
            (folder / "whole").chmod(stat.S_IMODE(path.stat().st_mode))
        os.replace(folder / "whole", path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check_writable(folder: Path) -> None:
    """Write in a folder, or in the nearest one above it that exists, and leave nothing there.

    Raises:
        OSError: nothing can be written; with the name of the folder that exists.
    """
    there = next(each for each in (folder, *folder.parents) if each.is_dir())
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(bytes(_LEAST_ROOM))
            file.flush()
    except OSError as error:
        error.filename = str(there)
        raise


def check_file(path: Path) -> None:
    """Refuse a folder in place of a file to be written, before anything is measured.

    Raises:
        UsageError: the path is a folder.
    """
    if path.is_dir():
        raise UsageError(f"{path}: is a folder; name a file")


def clear_stale(parent: Path) -> None:
    """Remove old folders of incomplete files that killed processes left. Other processes may use recent ones."""
    with contextlib.suppress(OSError):
        for folder in parent.glob(f"{_STAGING}*"):
            if folder.is_dir() and time.time() - folder.stat().st_mtime > STALE_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)


def make_folder(folder: Path) -> None:
    """Make a folder that git ignores. An existing folder is left unchanged.

    Raises:
        UsageError: nothing can be written there, for example because a file has its name, or the disk is full.
    """
    try:
        if folder.is_dir():
            check_writable(folder)
        else:
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / ".gitignore", b"*\n")
    except OSError as error:
        what, step = "nothing can be written there", "mend its permissions or make room"
        if isinstance(error, FileExistsError | NotADirectoryError):
            what, step = "cannot be a folder", "move what stands in its way"
        raise UsageError(
            f"{folder}: {what} ({error.strerror}); {step}, or name another one: --perfguard-reports"
        ) from error
