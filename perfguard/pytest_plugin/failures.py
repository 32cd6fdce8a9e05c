"""Turns exceptions into pytest's usage errors, failures other than by a verdict, and reasons for BROKEN."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from perfguard.model.errors import GuardFailure, PerfguardError, is_out_of_memory, next_step
from perfguard.model.units import format_bytes

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device

PHASES = ("setup", "call", "teardown")  # The phases of a test, as pytest's reports name them.
OTHERWISE = "perfguard_otherwise"  # Attribute of a report: its test failed other than by a verdict.

_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep
_NOTE = "perfguard: "  # How notes on exceptions begin.
_NO_FAILURE = (pytest.skip.Exception, pytest.exit.Exception)
_ASKED = re.compile(r"[Tt]ried to allocate ([\d.]+) ?([KMGT]?i?B|bytes)")
_FREE = re.compile(r"of which ([\d.]+ [KMGT]?i?B) is free")


@contextmanager
def usage_errors() -> Iterator[None]:
    """Let an error of perfguard end the run with its message alone, as one of pytest's own."""
    try:
        yield
    except PerfguardError as error:
        raise pytest.UsageError(str(error)) from error


def raised_otherwise(
    report: pytest.TestReport, call: pytest.CallInfo[None]
) -> pytest.ExceptionInfo[BaseException] | None:
    """The exception of a test that failed other than by a verdict; its report is marked. None if the test passed, was
    skipped, was expected to fail, or asked pytest to end."""
    error = call.excinfo
    if error is None or report.skipped or error.errisinstance((GuardFailure, *_NO_FAILURE)):
        return None
    setattr(report, OTHERWISE, True)
    return error


def describe_error(when: str, excinfo: pytest.ExceptionInfo[BaseException]) -> str:
    """`call raised ValueError: …`, or the requested size if memory ran out. One line.

    Args:
        when: pytest's phase that raised: setup, call or teardown.
    """
    error = excinfo.value
    if not is_out_of_memory(error):
        message = f"{when} raised {excinfo.exconly(tryshort=True)}".splitlines()[0]
        message += "" if str(error) else _where(excinfo)
        return "; ".join(filter(None, (message, next_step(error))))
    requested, free = _ASKED.search(str(error)), _FREE.search(str(error))
    message = f"{when} ran out of memory"
    if requested:
        number, unit = requested.groups()
        message += f": asked for {format_bytes(float(number)) if unit == 'bytes' else f'{number} {unit}'}"
        message += f", {free[1]} free" if free else ""
    return f"{message}; make the case smaller, or free the device's memory"


def hide_own_frames(error: BaseException) -> None:
    """Leave only frames of the user, and of libraries, on the traceback of an error that perfguard did not raise."""
    kept, trace = [], error.__traceback__
    while trace is not None:
        last, trace = trace, trace.tb_next
        kept += [] if last.tb_frame.f_code.co_filename.startswith(_OURS) else [last]
    if kept and kept[-1] is last:
        for each, later in zip(kept, [*kept[1:], None], strict=True):
            each.tb_next = later
        error.__traceback__ = kept[0]


def _where(excinfo: pytest.ExceptionInfo[BaseException]) -> str:
    """The line and the call with its inputs, of an error without words: ` at kernel.py:9 in double: assert n > 0`."""
    last = excinfo.traceback[-1]
    statement = next(iter(str(last.statement).strip().splitlines()), "")
    notes = (note for note in getattr(excinfo.value, "__notes__", ()) if note.startswith(_NOTE))
    call = next((f"; {note.removeprefix(_NOTE)}" for note in notes), "")
    return f" at {os.path.basename(str(last.path))}:{last.lineno + 1} in {last.name}: {statement}{call}"


def is_lost(device: Device) -> bool:
    """Whether the device no longer answers this process: after an illegal access, every use of it raises."""
    if not device.asynchronous:
        return False
    try:
        device.synchronize()
    except Exception:
        return True
    return False
