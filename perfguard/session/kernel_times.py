"""Device time of kernels in observed tests, read in processes that measure for a run.

A test's body cannot be repeated as a call can, but the whole test can: setup, call and teardown, as reruns do. These
processes repeat it under the profiler. The user's own run is never profiled, since a test may profile itself and a
device has one profiler. No test runs twice there, and a test that cannot run twice has no times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from perfguard.measure.timers.timing import Meter
from perfguard.model.errors import MeasurementError
from perfguard.model.limits import KERNEL_TIME, KERNEL_TIME_LIMITS, kernel_time
from perfguard.model.records import Case, CaseResult, Reading
from perfguard.model.units import Unit

if TYPE_CHECKING:
    from perfguard.session.run import Run

_TIMER = "profile-test"

#: Runs a test once more; returns device µs by kernel, empty if the test failed or nothing was seen.
Again = Callable[[], Mapping[str, float]]


def read_kernel_times(run: Run, case: Case, again: Again) -> None:
    """In a process of a recording: add the times of one further run of the test to its readings."""
    result = run.results.get(case.id)
    times = again() if result is not None else {}
    if result is not None and times:
        readings = [*result.readings, _reading(times)]
        run.results[case.id] = replace(result, readings=readings)


def pair_kernel_times(run: Run, case: Case, kernels: Sequence[str], again: Again) -> None:
    """In a process of a pair: let the parent order blocks of `kernels`, each a run of the test. A kernel that the test
    does not launch here is not announced, so the pair leaves it out."""
    times = again()
    for kernel in (each for each in kernels if times.get(each)):

        def block(kernel: str = kernel) -> float | None:
            return again().get(kernel)

        meter = Meter(_TIMER, block, KERNEL_TIME_LIMITS.floor)
        try:
            run.runner.services.collect(case)(kernel_time(kernel), meter, run.device, run.config.settings.case_seconds)
        except MeasurementError:  # The test no longer passes, which the parent knows.
            return


def with_kernel_times(result: CaseResult, fresh: Sequence[CaseResult]) -> CaseResult:
    """The result of a test with the times that the recording's process read; unchanged if it read none."""
    read = [each for other in fresh if (each := other.reading(KERNEL_TIME)) is not None]
    return replace(result, readings=[*result.readings, *read])


def _reading(times: Mapping[str, float]) -> Reading:
    return KERNEL_TIME_LIMITS.reading(KERNEL_TIME, Unit.MICROSECONDS, dict(sorted(times.items())), drifts=True)
