"""Intervals of each call's work on a GPU, from torch.profiler's raw events."""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Sequence
from typing import Any

from torch.profiler import ProfilerActivity, record_function

from perfguard.measure.devices import kineto
from perfguard.measure.devices.device import Interval

_MARK = "perfguard call"

# Names of launching functions in CUDA's, ROCm's and oneAPI's runtimes and drivers. Other events of the host number
# their correlations separately, so the same number may mean two things.
_RUNTIME = re.compile(r"(cuda|cu|hip|hsa|ur|ze|sycl)_?[A-Z]")


def of_calls(
    calls: Sequence[Callable[[], object]],
    before: Callable[[], object] | None,
    synchronize: Callable[[], None],
    kind: str,
) -> list[list[Interval]]:
    """(start, end) of every kernel and copy of each call, by start, µs since the first call on the profiler's clock.

    Each call and the `before` ahead of it are waited for, so the work of two calls never overlaps.

    Args:
        kind: 'cuda' or 'xpu', as in `kineto`.
    """

    def conducted() -> None:
        for call in calls:
            if before is not None:
                before()
            synchronize()
            with record_function(_MARK):
                call()
                synchronize()

    activity, device = kineto.ACTIVITIES[kind]
    return joined(kineto.raw_events(conducted, [ProfilerActivity.CPU, activity]), device)


def joined(events: Sequence[Any], device: Any) -> list[list[Interval]]:
    """The device's events, each joined to the call during which the host launched it.

    Launch and work share a correlation number. Work without a known launch (a runtime with other function names) is
    joined by its own time, which is as good as long as calls are waited for and the clocks agree. Times count from the
    first call: as µs since 1970, a float would resolve only a quarter of a microsecond.

    Args:
        events: raw events of a profile; an annotation named `perfguard call` marks each call.
        device: device type of the work events.
    """
    host = [event for event in events if event.device_type() != device]
    windows = sorted((event.start_ns(), event.end_ns()) for event in host if event.name() == _MARK)
    starts = [start for start, _ in windows]

    def call_at(moment_ns: int) -> int | None:
        index = bisect.bisect_right(starts, moment_ns) - 1
        return index if index >= 0 and moment_ns <= windows[index][1] else None

    launched = {event.correlation_id(): call_at(event.start_ns()) for event in host if _RUNTIME.match(event.name())}
    found: list[list[Interval]] = [[] for _ in windows]
    for event in events:
        if event.device_type() == device and not event.is_user_annotation():
            known = event.correlation_id() in launched
            call = launched[event.correlation_id()] if known else call_at(event.start_ns())
            if call is not None:
                found[call].append(((event.start_ns() - starts[0]) / 1e3, (event.end_ns() - starts[0]) / 1e3))
    return [sorted(intervals) for intervals in found]
