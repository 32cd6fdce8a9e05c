"""Report files: saved whole and atomically after every case, so that a killed run leaves all it knew."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

import msgspec

from perfguard.errors import UsageError
from perfguard.records import SCHEMA, Report, dump_report, load_report


def write_atomically(path: Path, data: bytes) -> None:
    """Replace `path` by `data` or leave it untouched; creates missing folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), 0o666 & ~_umask())  # temporary files are their owner's alone, reports are for all
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _umask() -> int:
    """What the process takes from the rights of new files; there is no other way to ask."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def save_report(path: Path, report: Report) -> None:
    """Write `report` as JSON.

    Raises:
        UsageError: it cannot be written, the disk is full for one.
    """
    try:
        write_atomically(path, dump_report(report))
    except OSError as error:
        why = error.strerror or error
        raise UsageError(
            f"{path}: the report cannot be written ({why}); make room, or name another folder: --perfguard-reports"
        ) from error


def read_report(path: Path) -> Report:
    """Read a report written by `save_report`.

    Raises:
        UsageError: no such file, not a report, or another schema; the message names file and next step.
    """
    try:
        report = load_report(path.read_bytes())
    except FileNotFoundError as error:
        raise UsageError(f"{path}: no such report; make one with: pytest --perfguard") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path}: not a perfguard report ({error}); make one with: pytest --perfguard") from error
    if report.schema != SCHEMA:
        raise UsageError(
            f"{path}: report schema {report.schema}, this perfguard reads {SCHEMA}; "
            "use the perfguard version that wrote it"
        )
    return report
