"""Fresh processes: each measures the requested tests once more, one after another; the parent judges.

A session is the unit of inference: a second measurement in the same process would repeat its error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Protocol

from msgspec.structs import replace

from perfguard.model.records import CaseResult, Report, Session
from perfguard.model.units import counted, format_minutes
from perfguard.session.child import ChildCommand, Request
from perfguard.session.child_process import ask_child


class Tell(Protocol):
    """Reports the step that begins. `passing`: the step matters only while it lasts. `detail`: it is shown only under
    -v."""

    def __call__(self, text: str, *, passing: bool = False, detail: bool = False) -> None: ...


def session_of(results: Iterable[CaseResult], device: int) -> Session:
    """The readings of a process or launch of ranks, reduced to those that judging and recording need."""
    return Session([_slim(result) for result in results if result.readings], device)


def _slim(result: CaseResult) -> CaseResult:
    readings = [replace(reading, blocks=[], note="") for reading in result.readings]
    return CaseResult(result.case, result.inputs, readings=readings, verdicts=result.verdicts, ranks=result.ranks)


def measure_fresh(
    command: ChildCommand, request: Request, count: int, *, minutes: float, progress: Callable[[str], None]
) -> tuple[list[Report], str]:
    """Let `count` children answer `request`, one after another, each at most `minutes` long.

    Returns:
        Their reports, in order, and the reason if there are fewer than requested.

    A child that crashes, hangs or measures nothing ends the series; earlier reports are kept. On interrupt the child is
    stopped before the interrupt is raised again.
    """
    reports: list[Report] = []
    started, tests = time.monotonic(), counted(len(request.tests or ()), "test")
    for number in range(1, count + 1):
        step = f"fresh process {number} of {count}: {tests}" if count > 1 else f"fresh process: {tests}"
        if number > 1:
            seconds = time.monotonic() - started
            left = seconds / (number - 1) * (count - number + 1)
            step += f", {format_minutes(seconds)} elapsed, about {format_minutes(left)} to go"
        progress(step)
        reply = ask_child(command, request, minutes)
        reports += [] if reply.report is None else [reply.report]
        if reply.problem or reply.report is None:
            return reports, reply.problem or "the fresh process measured nothing"
    return reports, ""
