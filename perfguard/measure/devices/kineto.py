"""Reports of torch.profiler (Kineto): device work in order, with details; intervals of calls; allocations of the CPU;
readable names of kernels. The `kind` of a device is 'cuda' or 'xpu', as torch names it."""

from __future__ import annotations

import bisect
import json
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The class of torch.profiler imports torch's whole compiler to look at one setting: 1.5 s in every process.
from torch.autograd.profiler import profile, record_function

from perfguard._compat.torch_internals import DEVICE_TYPE, EVENT
from perfguard.measure.devices.device import Interval

_LOG_LEVEL = "KINETO_LOG_LEVEL"
_QUIET = "99"

# ATen's generic kernels have the operation among their template arguments.
_GENERIC = re.compile(r"(elementwise_kernel\w*|reduce_kernel)$")
# These template arguments are only wrappers around the operation.
_WRAPPERS = re.compile(r"gpu_kernel|[AB]UnaryFunctor$|BinaryFunctor$|ReduceOp$|func_wrapper|Load|Store|memory$")

_DEVICES = {"cuda": DEVICE_TYPE.get().CUDA, "xpu": DEVICE_TYPE.get().XPU}

_ALLOCATION = EVENT.get().Allocation
_CALL = "perfguard call"

# Launching functions of CUDA's, ROCm's and oneAPI's runtimes and drivers. Other host events have separate correlation
# numbers, so the same number may have two meanings.
_RUNTIME = re.compile(r"(cuda|cu|hip|hsa|ur|ze|sycl)_?[A-Z]")

# Categories of device work in a trace, and the stored arguments. Other arguments (bandwidth, occupancy, ids) vary
# between runs, or follow from these.
_WORK = {"kernel": "kernel", "gpu_memcpy": "copy", "gpu_memset": "fill"}
_FACTS = ("grid", "block", "shared memory", "registers per thread", "bytes")


@dataclass(frozen=True)
class Work:
    """One kernel, copy or fill that ran on the device.

    Attributes:
        kind: "kernel", "copy" or "fill".
        name: the profiler's name, with all template arguments.
        stream: number of its stream, in order of first use.
        facts: grid and block (three numbers each), shared memory and copied bytes, registers, if this vendor's profiler
            reports them.
    """

    kind: str
    name: str
    stream: int
    facts: Mapping[str, Any]


def trace_events(call: Callable[[], object], kind: str) -> list[dict[str, Any]]:
    """The events of a Chrome trace of `call` on 'cuda' or 'xpu'; empty if nothing was recorded.

    The call must have finished on the device when it returns.
    """
    with tempfile.TemporaryDirectory(prefix="perfguard-") as folder:
        path = Path(folder) / "trace.json"
        results = _results(call, kind)
        if results is None:
            return []
        results.save(str(path))
        trace = json.loads(path.read_text(encoding="utf-8", errors="replace"), strict=False)
    events: list[dict[str, Any]] = trace["traceEvents"]
    return events


def work_of(events: Sequence[Mapping[str, Any]], region: str = "") -> list[Work]:
    """The device's work in the events of a Chrome trace, in launch order. With a `region`, only work that the host
    launched inside that annotation.

    Launches are numbered (`correlation`). All work of one graph launch shares its number, and is sorted by start.
    Facts that the device's event lacks (AMD: grid, block, bytes) are taken from the launch's event.
    """
    launches: dict[object, Mapping[str, Any]] = {}
    ran = []
    start, end = _marked(events, region) or (-math.inf, math.inf)
    for event in events:
        arguments = event.get("args", {})
        if event.get("cat") in _WORK:
            ran.append(event)
        elif "correlation" in arguments and start <= event.get("ts", start) <= end:
            launches[arguments["correlation"]] = arguments
    if region:
        ran = [event for event in ran if event.get("args", {}).get("correlation") in launches]
    ran.sort(key=lambda event: (event.get("args", {}).get("correlation", 0), event["ts"]))
    streams: dict[object, int] = {}
    work = []
    for event in ran:
        arguments = event.get("args", {})
        known = {**launches.get(arguments.get("correlation"), {}), **arguments}
        stream = streams.setdefault(arguments.get("stream"), len(streams))
        facts = {name: known[name] for name in _FACTS if name in known}
        work.append(Work(_WORK[event["cat"]], event["name"], stream, facts))
    return work


def _marked(events: Sequence[Mapping[str, Any]], region: str) -> Interval | None:
    """Start and end of the first annotation with this name; None without one."""
    marks = [event for event in events if event.get("cat") == "user_annotation" and event.get("name") == region]
    return (marks[0]["ts"], marks[0]["ts"] + marks[0]["dur"]) if marks else None


def runtime_calls(events: Sequence[Mapping[str, Any]], region: str) -> list[str]:
    """Names of the runtime functions called by the host inside the annotation `region`, in order."""
    window = _marked(events, region)
    if window is None:
        return []
    start, end = window
    called = [
        event for event in events
        if str(event.get("cat", "")).endswith(("_runtime", "_driver")) and start <= event["ts"] <= end
    ]  # fmt: skip
    return [event["name"] for event in sorted(called, key=lambda event: event["ts"])]


def intervals(
    calls: Sequence[Callable[[], object]],
    before: Callable[[], object] | None,
    synchronize: Callable[[], None],
    kind: str,
) -> list[list[Interval]]:
    """(start, end) of every kernel and copy of each call, by start, µs since the first call on the profiler's clock.

    The device finishes each `before` and each call before the next begins, so the work of two calls never overlaps.
    """

    def profiled() -> None:
        for call in calls:
            if before is not None:
                before()
            synchronize()
            with record_function(_CALL):
                call()
                synchronize()

    return joined(raw_events(profiled, kind), _DEVICES[kind])


def joined(events: Sequence[Any], device: Any) -> list[list[Interval]]:
    """The intervals of the device's events by start, each joined to the call during which the host launched it.

    Launch and work share a correlation number. Work without a known launch (a runtime with other function names) is
    joined by its own time, which is as good if calls do not overlap and the clocks agree. Times count from the first
    call, because floats of µs since 1970 would resolve only a quarter of a microsecond.

    Args:
        events: raw events of a profile; an annotation named `perfguard call` marks each call.
        device: the device type of the device's events.
    """
    host = [event for event in events if event.device_type() != device]
    windows = sorted((event.start_ns(), event.end_ns()) for event in host if event.name() == _CALL)
    starts = [start for start, _ in windows]

    def call_at(moment_ns: int) -> int | None:
        index = bisect.bisect_right(starts, moment_ns) - 1
        return index if index >= 0 and moment_ns <= windows[index][1] else None

    launched = {event.correlation_id(): call_at(event.start_ns()) for event in host if _RUNTIME.match(event.name())}
    by_call: list[list[Interval]] = [[] for _ in windows]
    for event in sorted(events, key=lambda event: event.start_ns()):
        if event.device_type() == device and not event.is_user_annotation():
            known = event.correlation_id() in launched
            call = launched[event.correlation_id()] if known else call_at(event.start_ns())
            if call is not None:
                by_call[call].append(((event.start_ns() - starts[0]) / 1e3, (event.end_ns() - starts[0]) / 1e3))
    return by_call


@contextmanager
def kernel_times(synchronize: Callable[[], None], kind: str) -> Iterator[dict[str, float]]:
    """Device time of the work inside, µs, by `normalized` name; filled in at the end. Host events are not recorded."""
    times_us: dict[str, float] = {}
    synchronize()
    with _quiet(), profile(use_cpu=False, use_device=kind, use_kineto=True, acc_events=True) as profiler:
        yield times_us
        synchronize()
    results = profiler.kineto_results
    times_us |= by_kernel([] if results is None else results.events(), _DEVICES[kind])


def by_kernel(events: Sequence[Any], device: Any) -> dict[str, float]:
    """Device time of a profile's raw events, µs, by `normalized` name, or by the full name for inductor's kernels."""
    times_us: dict[str, float] = {}
    for event in events:
        if event.device_type() == device and not event.is_user_annotation():
            name = event.name() if event.name().startswith("triton_") else normalized(event.name())
            times_us[name] = times_us.get(name, 0.0) + (event.end_ns() - event.start_ns()) / 1e3
    return times_us


def allocations(call: Callable[[], object]) -> list[tuple[int, int]]:
    """Actions of torch's CPU allocator during `call`, in order: an address, and a number of bytes that are allocated,
    or freed if it is negative. Memory allocated before the call may be freed without having been allocated here."""
    results = _results(call, memory=True)
    actions: list[tuple[int, int, int]] = []
    waiting = [] if results is None else list(results.experimental_event_tree())
    while waiting:
        event = waiting.pop()
        waiting += event.children
        if event.tag == _ALLOCATION and event.extra_fields.device.type == "cpu":
            fields = event.extra_fields
            actions.append((event.start_time_ns, fields.ptr, fields.alloc_size))
    return [(address, count) for _, address, count in sorted(actions, key=lambda action: action[0])]


def normalized(name: str) -> str:
    """A kernel's name without the parts that change between builds and calls.

    Return types, arguments and template arguments are removed, except for the operation in ATen's generic kernels:
    `void at::native::elementwise_kernel<128, 4, at::native::…direct_copy_kernel_cuda(…)…>(int, …)` becomes
    `at::native::elementwise_kernel[direct_copy_kernel_cuda]`. Inductor's counters (`triton_poi_fused_add_0`) and the
    kinds of memory in `Memcpy DtoH (Device -> Pageable)` are removed as well. Triton's own names are unchanged.
    """
    if name.startswith(("Memcpy", "Memset")):
        return name.split(" (", maxsplit=1)[0]
    name = name.replace("(anonymous namespace)::", "").removeprefix("void ")
    plain = _outside_brackets(name)
    if plain.startswith("triton_"):
        return re.sub(r"_\d+$", "", plain)
    if _GENERIC.search(plain):
        identifiers = re.findall(r"at::native::(?:\w+::)*(\w+)", name.partition("<")[2])
        operation = next((identifier for identifier in identifiers if not _WRAPPERS.match(identifier)), None)
        return plain if operation is None else f"{plain}[{operation}]"
    return plain


def _outside_brackets(name: str) -> str:
    """Drop template arguments and the argument list: `a::b<c<d>, e>::f(g)` -> `a::b::f`."""
    kept: list[str] = []
    depth = 0
    for letter in name:
        if letter == "<":
            depth += 1
        elif letter == ">":
            depth -= 1
        elif depth == 0:
            if letter == "(":
                break
            kept.append(letter)
    return "".join(kept).strip()


def raw_events(call: Callable[[], object], kind: str) -> list[Any]:
    """The events of the host and of the device of this kind during `call`."""
    results = _results(call, kind)
    return list(results.events()) if results is not None else []


def _results(call: Callable[[], object], kind: str | None = None, *, memory: bool = False) -> Any:
    """Kineto's recording of `call` on the host, and on the device of this kind if one is named; None if it recorded
    nothing."""
    with _quiet(), profile(use_device=kind, use_kineto=True, profile_memory=memory, acc_events=True) as profiler:
        result = call()  # The result is held until the profile ends, as a caller would hold it.
    del result
    return profiler.kineto_results


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence kineto, which writes to stderr at every start and stop. It reads the variable at its first start."""
    before = os.environ.get(_LOG_LEVEL)
    os.environ.setdefault(_LOG_LEVEL, _QUIET)
    try:
        yield
    finally:
        if before is None:
            del os.environ[_LOG_LEVEL]
