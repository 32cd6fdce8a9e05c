"""Saves reports, atomically and after every case, so that a killed run leaves all its results, and reads them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from perfguard.model.atomic_files import clear_stale, write_atomically
from perfguard.model.errors import UsageError
from perfguard.model.records import SCHEMA, Report, dump_report, load_report


def save_report(path: Path, report: Report) -> None:
    """Write `report` as JSON.

    Raises:
        UsageError: the file cannot be written, for example because the disk is full.
    """
    try:
        write_atomically(path, dump_report(report))
        clear_stale(path.parent)
    except OSError as error:
        why = error.strerror or error
        raise UsageError(
            f"{path}: the report cannot be written ({why}); make room, or name another folder: --perfguard-reports"
        ) from error


def read_report(path: Path) -> Report:
    """Read a report written by `save_report`.

    Raises:
        UsageError: the file is missing, no report, or of another schema; the message names file and next step.
    """
    try:
        report = load_report(path.read_bytes())
    except FileNotFoundError as error:
        raise UsageError(f"{path}: no such report; make one with: pytest --perfguard") from error
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); name a report of pytest --perfguard") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path}: not a perfguard report ({error}); make one with: pytest --perfguard") from error
    if report.schema != SCHEMA:
        raise UsageError(
            f"{path}: report schema {report.schema}, this perfguard reads {SCHEMA}; "
            "use the perfguard version that wrote it"
        )
    return report
