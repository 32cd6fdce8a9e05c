"""Observes tests that do not use the `perfguard` fixture, in the middle of all hooks around the call of a test.

Fixtures and teardown are not observed. The test judges its own numbers, and fails as it always did. perfguard's
verdicts fail the run, not the test: one change of a kernel shows in many tests, and is reported once.

A test's body cannot be repeated as a call can, but the whole test can: setup, call and teardown, as reruns do.
Processes that measure for a run repeat it under the profiler, for the device times of its kernels. The user's own run
is never profiled, since a test may profile itself and a device has one profiler. A test that cannot run twice has no
times.
"""

from __future__ import annotations

import inspect
import itertools
import logging
import traceback
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from types import FrameType
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from perfguard._compat.pytest_internals import records_of_call, run_protocol
from perfguard._compat.torch_compiler import forget_compiled
from perfguard.measure import collect_young
from perfguard.model.errors import MeasurementError, PerfguardError
from perfguard.model.limits import KERNEL_TIME, KERNEL_TIME_LIMITS, kernel_time
from perfguard.model.modules import when_loaded
from perfguard.model.records import Verdict, Word
from perfguard.model.units import Unit, counted
from perfguard.pytest_plugin.items import body_of, case_of, is_observed

if TYPE_CHECKING:
    from perfguard._compat.pytest_internals import TerminalReporter
    from perfguard.pytest_plugin.measuring_run import Measuring
    from perfguard.session.run import Run

_TIMER = "profile-test"


class Observer:
    """Registered beside the hooks of a measuring run, to which it adds results."""

    def __init__(self, hooks: Measuring) -> None:
        self._hooks = hooks
        self._passed: list[pytest.Item] = []  # Observed tests that ran to their end.
        self._profiling: dict[str, float] | None = None  # Device time by kernel; None unless a test is run again.

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None):  # type: ignore[no-untyped-def]
        """In a process of a pair: repeat a test that passed, for the times of its kernels."""
        request, worker = self._hooks.request, self._hooks.worker
        if request is None or worker is None or not is_observed(item):
            return (yield)
        worker.enter(item.nodeid)
        answer = yield
        run, kernels = self._hooks.run, request.kernels.get(item.nodeid)
        if kernels and self._passed[-1:] == [item] and run is not None and run.device.asynchronous:
            self._pair_kernel_times(run, item, kernels, nextitem)
        return answer

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtestloop(self):  # type: ignore[no-untyped-def]
        """In a process of a recording: repeat the tests that passed, for their times, after all exact metrics."""
        answer = yield
        run = self._hooks.run
        if run is not None and run.is_session and self._hooks.worker is None and run.device.asynchronous:
            for item, nextitem in itertools.zip_longest(self._passed, self._passed[1:]):
                result = run.results.get(case_of(item).id)
                if result is not None and (times := self._run_again(item, nextitem)):
                    reading = KERNEL_TIME_LIMITS.reading(
                        KERNEL_TIME, Unit.MICROSECONDS, dict(sorted(times.items())), drifts=True
                    )
                    run.results[result.id] = replace(result, readings=[*result.readings, reading])
        return answer

    def _pair_kernel_times(
        self, run: Run, item: pytest.Item, kernels: Sequence[str], nextitem: pytest.Item | None
    ) -> None:
        """Let the parent order blocks of `kernels`, each a run of the test. A kernel that the test does not launch here
        is not announced, so the pair leaves it out."""
        from perfguard.measure.timers.timing import Meter

        times = self._run_again(item, nextitem)
        for kernel in (each for each in kernels if times.get(each)):

            def block(kernel: str = kernel) -> float | None:
                return self._run_again(item, nextitem).get(kernel)

            meter, seconds = Meter(_TIMER, block, KERNEL_TIME_LIMITS.floor), run.config.settings.case_seconds
            try:
                run.runner.plan.collect(case_of(item))(kernel_time(kernel), meter, run.device, seconds)
            except MeasurementError:  # The test no longer passes, which the parent knows.
                return

    def _run_again(self, item: pytest.Item, nextitem: pytest.Item | None) -> dict[str, float]:
        """Device time by kernel in the call phase of a further run, µs; empty if the test failed."""
        times: dict[str, float] = {}
        self._profiling = times
        try:
            reports = run_protocol(item, nextitem)
        finally:
            self._profiling = None
            collect_young()  # The collector is off between blocks, and a test may leave cycles of tensors.
        return times if all(report.passed for report in reports) else {}

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item):  # type: ignore[no-untyped-def]
        """Observe the test from the moment when torch is loaded."""
        if not is_observed(item):
            return (yield)
        if self._profiling is not None:
            with self._hooks.run_of(item.session).device.kernel_times() as times:
                answer = yield
            self._profiling |= times
            return answer
        with ExitStack() as observation:
            with when_loaded("torch", lambda: self._observe(item, observation)):
                answer = yield
            self._end(item, observation)
        self._passed.append(item)
        return answer

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        """Report that there was nothing to read, since a green run would suggest a guard."""
        run = self._hooks.run
        if self._passed and (run is None or not run.results):
            why = "none loaded torch" if run is None else "none called an operator of torch"
            tests = counted(len(self._passed), "test")
            terminalreporter.write_line(f"perfguard: observed {tests}; {why}, so there was nothing to read")

    def _observe(self, item: pytest.Item, observation: ExitStack) -> None:
        """Begin to observe the test; its end is the exit of `observation`. A test that raises is not read."""
        run, request = self._hooks.run_of(item.session), self._hooks.request
        if request is not None and request.alone:
            forget_compiled()
        if run.runner.plan.asked.exact:
            observation.enter_context(run.observe(case_of(item), body_of(item)))

    def _end(self, item: pytest.Item, observation: ExitStack) -> None:
        """Read the test, which has passed. If it cannot be read, its case is BROKEN; the test does not fail."""
        _clear_frames(records_of_call(item))
        try:
            observation.close()
        except Exception as error:
            why = str(error) if isinstance(error, PerfguardError) else f"{type(error).__name__}: {error}"
            verdict = Verdict(Word.BROKEN, reason=f"the test passed, but its readings failed: {why}")
            self._hooks.run_of(item.session).add_verdict(case_of(item), verdict)


_SUSPENDS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def _clear_frames(records: Iterable[logging.LogRecord]) -> None:
    """Clear the frames of logged exceptions, which pytest keeps until teardown and which hold all tensors of the test.
    Their memory depends on the order of tests: an optional import, for example, fails only in the first of them."""
    for record in records:
        args = record.args.values() if isinstance(record.args, Mapping) else record.args or ()
        error = record.exc_info[1] if record.exc_info else None
        waiting, known = [record.msg, *args, error], set[int]()
        while waiting:
            current = waiting.pop()
            if not isinstance(current, BaseException) or id(current) in known:
                continue
            known.add(id(current))
            waiting += [current.__cause__, current.__context__]
            for frame, _ in traceback.walk_tb(current.__traceback__):
                _clear_with_callers(frame)


def _clear_with_callers(frame: FrameType | None) -> None:
    while frame is not None:
        if not frame.f_code.co_flags & _SUSPENDS:  # Clearing a suspended frame would end it.
            try:
                frame.clear()
            except RuntimeError:  # The frame still runs, as all its callers do.
                return
        frame = frame.f_back
