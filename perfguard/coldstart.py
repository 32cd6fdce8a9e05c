"""How long a case's first result takes in a process that has nothing compiled, tuned or cached.

The measuring process starts pytest for the one test with empty caches of Triton and torch.compile. That process makes
the guarded call once, forward and backward, and answers with the seconds since it was started: Python, imports,
collection, inputs, compiling and tuning are in them, as they are for whoever starts a training run.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from perfguard.call import Call
from perfguard.errors import MeasurementError, UsageError
from perfguard.passes import backward, differentiable_outputs
from perfguard.records import Case, CaseResult, Reading, Report
from perfguard.reports import read_report, save_report
from perfguard.sessions import ANSWER, REQUEST, Command, run_fresh
from perfguard.units import Unit

if TYPE_CHECKING:
    from perfguard.hardware.device import Device

ASKED = "cold.json"  # lies in the session folder of a process that is to start cold
TIMER = "process"
_CACHES = {"TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor"}
_BINARIES = ("*.cubin", "*.hsaco", "*.spv")  # one of them for each kernel that Triton compiled

# Disks, other processes and the linker's mood move seconds: slower by less than half, or by less than 2 s, is no
# finding (the judge fails above a third of what is promised).
_PROMISE = 3 * 0.405  # ln 1.5
_FLOOR_US = 2e6


class Asked(Struct, frozen=True):
    """Which case to start cold, and when its process was started, s on the machine's monotonic clock."""

    suite: str
    name: str
    started: float

    def wants(self, case: Case) -> bool:
        """Whether it is this case's first result that counts."""
        return (case.suite, case.name) == (self.suite, self.name)


def asked(folder: Path) -> Asked | None:
    """What lies in a session folder; None for a session that measures as usual."""
    path = folder / ASKED
    return msgspec.json.decode(path.read_bytes(), type=Asked) if path.is_file() else None


def first_results(call: Call, case: Case, request: Asked, device: Device) -> list[CaseResult]:
    """In the cold process: make the call, and its backward pass where it has one, and say how long all took.

    Nothing for a call of the same test that was not asked for.
    """
    if not request.wants(case):
        return []
    if differentiable_outputs(call):
        backward(call)()
    device.synchronize()
    elapsed_us = 1e6 * (time.monotonic() - request.started)
    reading = Reading(
        "cold_start_us",
        Unit.MICROSECONDS,
        elapsed_us,
        timer=TIMER,
        blocks=[elapsed_us],
        promise=_PROMISE,
        floor=_FLOOR_US,
        drifts=True,
    )
    return [CaseResult(case=case, readings=[reading])]


def starter(command: Command, report: Callable[[], Report], minutes: float) -> Callable[[Case], list[Reading]]:
    """What starts a cold process for a case and returns its readings: `cold_start_us`, and on a GPU
    `compiled_kernels`, how many of Triton's it compiled.

    Args:
        report: the run's, as it stands: the session's request.
        minutes: most time for the process.
    """

    def start(case: Case) -> list[Reading]:
        with tempfile.TemporaryDirectory(prefix="perfguard-") as name:
            folder = Path(name)
            tests = folder / "tests.txt"
            tests.write_text(command.selection([case.nodeid]), encoding="utf-8")
            save_report(folder / REQUEST, report())
            environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST_")}
            environment |= {variable: str(folder / subfolder) for variable, subfolder in _CACHES.items()}
            (folder / ASKED).write_bytes(msgspec.json.encode(Asked(case.suite, case.name, time.monotonic())))
            problem = run_fresh(command.line(tests, folder), command.folder, minutes, environment)
            try:
                results = read_report(folder / ANSWER).results
            except UsageError:
                results = []
            found = next((result for result in results if result.case.name == case.name and result.readings), None)
            if found is None:
                raise MeasurementError(
                    f"cold_start_us: the process that started cold gave no result ({problem or 'it ended well'}); "
                    "run the test alone, or leave out cold_start=True"
                )
            compiled = sum(1 for pattern in _BINARIES for _ in (folder / "triton").rglob(pattern))
        count = Reading("compiled_kernels", Unit.COUNT, compiled, drifts=True, rank=20, details="cold_start_us")
        return [*found.readings, count]

    return start
