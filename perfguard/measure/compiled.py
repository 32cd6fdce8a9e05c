"""Observation of torch.compile: a trace of every frame, graph break and recompilation with its reason, and the
compiler's process-wide settings.

The source of the trace is torch's structured trace, which `TORCH_TRACE` writes for tlparse. Unlike counters, its
records hold the reason and place of a graph break, and the guard that failed. Torch is not patched.

A leaked setting changes every other compiled function of the process: `capture_scalar_outputs`, set for one layer,
broke a loss that was compiled separately (torchtitan #2741).
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, TypeVar

from perfguard._compat.torch_compiler import (
    COUNTERS,
    FUNCTORCH,
    SETTINGS,
    TRACE_LOGGER,
    is_compiler_loaded,
    settings_of,
)

T = TypeVar("T")

_MISSING = object()

# By default a compiled backward pass may overwrite tensors saved by the forward pass, and refuses to run with
# `retain_graph=True`. perfguard times a backward pass by repeating it.
_DONATED = "donated_buffer"


@dataclass(frozen=True)
class Frame:
    """One attempt to compile a function.

    Attributes:
        function: its file and name, e.g. `block.forward`; `block.forward, resumed` is the part behind a graph break.
        operators: number of operators in its graph; 0 if nothing was compiled and it runs eagerly.
        guards: number of guards that each call checks.
        recompiled: the guard by which an earlier compilation could not be reused; "" for the first compilation.
        problem: the reason why the compiler gave up, or "".
        place: the function's first line, `block.py:12 in forward`; the function alone if it is torch's own.
    """

    function: str
    operators: int
    guards: int
    recompiled: str
    problem: str
    place: str = ""


@dataclass(frozen=True)
class Break:
    """A graph break, at which compiled code returns to Python."""

    function: str  # the function that contains it
    reason: str  # one line of text
    place: str  # `file.py:12`


@dataclass
class Trace:
    """The compiled frames and the graph breaks of a traced period, in order."""

    frames: list[Frame] = field(default_factory=list)
    breaks: list[Break] = field(default_factory=list)

    @property
    def compiled(self) -> list[Frame]:
        """First compilations with a graph: one frame for each function and kind of call."""
        return [frame for frame in self.frames if frame.operators and not frame.recompiled]

    @property
    def recompiled(self) -> list[Frame]:
        """Frames that were compiled again, or that ran eagerly after too many recompilations."""
        return [frame for frame in self.frames if frame.recompiled]

    @property
    def eager(self) -> list[Frame]:
        """Frames that the compiler tried and then left to Python."""
        return [frame for frame in self.frames if not frame.operators and not frame.recompiled]


@contextlib.contextmanager
def traced() -> Iterator[Trace]:
    """Trace all compilations while inside."""
    trace = Trace()
    handler = _Handler(trace)
    logger = logging.getLogger(TRACE_LOGGER)
    propagate = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False  # torch's own log setup does the same, since records are large.
    try:
        yield trace
    finally:
        logger.propagate = propagate
        logger.removeHandler(handler)


class _Handler(logging.Handler):
    """Adds torch's records to a trace. Records without the expected fields are ignored."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._trace = trace
        self._guards: dict[tuple[Any, Any], str] = {}  # frame and compilation -> failed guard

    def emit(self, record: logging.LogRecord) -> None:
        metadata: Mapping[str, Any] = getattr(record, "metadata", {})
        payload = str(getattr(record, "payload", None) or "")
        name = (metadata.get("artifact") or {}).get("name")
        frame = metadata.get("frame_id"), metadata.get("frame_compile_id")
        if name == "recompile_reasons":
            self._guards[frame] = guard_of(payload)
        elif name == "dynamo_graph_break_reason":
            graph_break = break_of(payload)
            if graph_break not in self._trace.breaks:  # Tracing restarts after a break and reports it again.
                self._trace.breaks.append(graph_break)
        elif "compilation_metrics" in metadata:
            again = bool(metadata.get("frame_compile_id"))
            guard = self._guards.get(frame, "unknown guard") if again else ""
            self._trace.frames.append(_frame(metadata["compilation_metrics"], guard))


def _frame(metrics: Mapping[str, Any], recompiled: str) -> Frame:
    from perfguard.tensors.user_frames import is_the_users

    path, name = str(metrics.get("co_filename") or ""), str(metrics.get("co_name") or "unknown")
    return Frame(
        function=function_of(path, name),
        operators=int(metrics.get("graph_op_count") or 0) if metrics.get("has_guarded_code") else 0,
        guards=int(metrics.get("guard_count") or 0),
        recompiled=recompiled,
        problem=str(metrics.get("fail_reason") or "").strip().partition("\n")[0],
        place=f"{PurePath(path).name}:{metrics.get('co_firstlineno') or 0} in {name}"
        if is_the_users(path)
        else function_of(path, name),
    )


def function_of(path: str, name: str) -> str:
    """A function's name for reports, e.g. `block.forward`, without lines and folders, which change."""
    resumed = re.fullmatch(r"torch_dynamo_resume_in_(.+)_at_\d+", name)
    return f"{PurePath(path).stem}.{resumed[1]}, resumed" if resumed else f"{PurePath(path).stem}.{name}"


def guard_of(payload: str) -> str:
    """The failed guard of the newest compilation, e.g. `tensor 'x' size mismatch at index 0. expected 3, actual 4`.

    torch lists one guard per compilation, newest first. The source line in its comment is removed, since it may change.
    """
    with contextlib.suppress(ValueError):
        listed = json.loads(payload)
        payload = str(listed[0]) if isinstance(listed, list) and listed else str(listed)
    first = payload.strip().partition("\n")[0]
    return re.sub(r"^\d+/\d+: ", "", first).partition("  #")[0].strip() or "unknown guard"


def break_of(payload: str) -> Break:
    """The graph break that torch's text describes."""
    where = re.search(r"^Graph break in user code at (.+):(\d+)$", payload, re.MULTILINE)
    traceback = payload.partition("User code traceback:")[2] or payload
    frames = re.findall(r'^ *File "(.+)", line (\d+), in (.+)\n(?! *File )(.*)$', traceback, re.MULTILINE)
    file, line = where.groups() if where else frames[-1][:2] if frames else ("unknown", "0")
    matching = [frame[2:] for frame in frames if frame[:2] == (file, line)]
    function, source = matching[-1] if matching else ("unknown", "")
    return Break(function, _reason(payload, source.partition("  #")[0].strip()), f"{PurePath(file).name}:{line}")


def _reason(payload: str, source: str) -> str:
    """The first informative line, and the source line of the break if known."""
    _, marker, text = payload.partition("Graph Break Reason: ")
    lines = [line.strip() for line in (text if marker else payload).splitlines()]
    lines = [line for line in lines if line and not line.startswith("Encountered graph break when")]
    return lines[0] + (f" (`{source}`)" if source else "") if lines else "unknown"


def cached_graphs() -> tuple[int, int]:
    """The numbers of this process's graphs that inductor took from its cache, and that it compiled."""
    counters = COUNTERS.get()["inductor"]
    return counters["fxgraph_cache_hit"], counters["fxgraph_cache_miss"] + counters["fxgraph_cache_bypass"]


def settings() -> dict[str, str]:
    """Every setting that differs from torch's default, e.g. {"dynamo.capture_scalar_outputs": "False -> True"}.

    Besides the compiler's own these are deterministic algorithms, float32 matmul precision and default dtype, which
    also affect compilation. Imports no module of the compiler.
    """
    changed: dict[str, str] = {}
    for name, module in SETTINGS.items():
        for key, entry in settings_of(module.loaded()).items():  # A module that is not imported is unchanged.
            default, value = getattr(entry, "default", None), _value(entry)
            if value is not _MISSING and value != default:
                changed[f"{name}.{key}"] = f"{default!r} -> {value!r}"
    return {**changed, **_switches()}


def _value(entry: Any) -> Any:
    """The user's value; `_MISSING` if there is none. Values set by the environment or by torch are ignored, since they
    are the same for every test of a process."""
    value = getattr(entry, "user_override", _MISSING)
    value = value.get() if hasattr(value, "get") and hasattr(value, "reset") else value  # in a ContextVar
    # torch marks an unset value by an object, so a value of any other type counts as unset.
    return value if isinstance(value, bool | int | float | str | list | tuple | dict | set | type(None)) else _MISSING


def _switches() -> dict[str, str]:
    import torch

    usual = {
        "torch.deterministic_algorithms": (False, torch.are_deterministic_algorithms_enabled()),
        "torch.float32_matmul_precision": ("highest", torch.get_float32_matmul_precision()),
        "torch.default_dtype": (torch.float32, torch.get_default_dtype()),
    }
    return {name: f"{default} -> {value}" for name, (default, value) in usual.items() if default != value}


def left_changed(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """The differences, sorted, e.g. `dynamo.capture_scalar_outputs: False -> True`."""
    names = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    return [f"{name}: {after[name] if name in after else f'{before[name]}, now the default'}" for name in names]


@contextlib.contextmanager
def replayable() -> Iterator[None]:
    """Make backward passes that are compiled inside repeatable, if the compiler is loaded."""
    if not is_compiler_loaded():
        yield
        return
    with FUNCTORCH.get().patch({_DONATED: False}):  # The patch is part of the caches' key.
        yield


def replayed(run: Callable[[], T]) -> Callable[[], T]:
    """Make `run`, a backward pass through compiled graphs, work with `retain_graph=True`.

    A compiled pass reads the setting whenever it runs, possibly in a thread of autograd. A value is visible only in the
    thread that set it, but a default is visible in all threads.
    """
    config = FUNCTORCH.get()
    entry = settings_of(config)[_DONATED]

    def again() -> T:
        default, value = entry.default, getattr(config, _DONATED)
        entry.default = False
        setattr(config, _DONATED, False)
        try:
            return run()
        finally:
            setattr(config, _DONATED, value)
            entry.default = default

    return again
