"""Files that are whole or not there at all, whatever kills the process that writes them."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from perfguard.model.errors import UsageError

STALE_SECONDS = 3600.0  # no write takes as long


_STAGING = ".perfguard-"


def write_atomically(path: Path, data: bytes) -> None:
    """Replace `path` by `data` or leave it untouched; creates missing folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with staging(path.parent) as folder:
        os.replace(write_through(folder / "whole", data), path)


def write_through(path: Path, data: bytes) -> Path:
    """A new file that is on the disk when this returns."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return path


@contextlib.contextmanager
def staging(parent: Path) -> Iterator[Path]:
    """A folder in `parent` for incomplete files. Git ignores it, also if a killed process leaves it behind."""
    folder = Path(tempfile.mkdtemp(prefix=_STAGING, dir=parent))
    try:
        (folder / ".gitignore").write_bytes(b"*\n")
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def clear_stale(parent: Path) -> None:
    """Remove `staging` folders that killed processes left. Young ones may be in use by another process."""
    with contextlib.suppress(OSError):
        for folder in parent.glob(f"{_STAGING}*"):
            if folder.is_dir() and time.time() - folder.stat().st_mtime > STALE_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)


def make_folder(folder: Path) -> None:
    """Make a folder for files that belong in no commit, which git ignores. An existing folder is left as it is.

    Raises:
        UsageError: it cannot be made, for example because a file has its name.
    """
    if folder.is_dir():
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / ".gitignore", b"*\n")
    except OSError as error:
        raise UsageError(f"{folder}: cannot be a folder ({error.strerror}); move what stands in its way") from error
