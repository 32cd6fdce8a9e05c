"""Writes files atomically: a file is complete or unchanged, even if the writing process is killed."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from pathlib import Path

from perfguard.model.errors import UsageError

STALE_SECONDS = 3600.0  # No write takes this long.
_STAGING = ".perfguard-"


def write_atomically(path: Path, data: bytes) -> None:
    """Replace `path` by `data`, or leave it untouched. The data is on the disk on return. Missing folders are created.

    The incomplete file is in a folder of its own, which git ignores even if a killed process leaves it behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=_STAGING, dir=path.parent))
    try:
        (folder / ".gitignore").write_bytes(b"*\n")
        with (folder / "whole").open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(folder / "whole", path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
        UsageError: the folder cannot be made, for example because a file has its name.
    """
    if folder.is_dir():
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / ".gitignore", b"*\n")
    except OSError as error:
        raise UsageError(
            f"{folder}: cannot be a folder ({error.strerror}); move what stands in its way, or name another one: "
            "--perfguard-reports"
        ) from error
