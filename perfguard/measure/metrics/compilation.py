"""The results of torch.compile for a call and its walk: graphs, their operators, breaks, recompilations, leaks.

One training step (forward, and backward if there are gradients) is compiled as a whole, so its readings belong to the
forward case. Two walks over the call's inputs, from empty compiler caches, find first compilations and recompilations.
docs/compilation.md explains each reading.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from perfguard._compat.torch_compiler import (
    COMPILE_FX,
    COUNTERS,
    FUNCTORCH,
    METRICS,
    PATCH_INDUCTOR,
    forget_compiled,
    has_compiled,
    is_compiler_loaded,
)
from perfguard.measure.compiled import Frame, Trace, left_changed, settings, traced
from perfguard.measure.metrics.subject import Subject, listed
from perfguard.measure.replay import buffers_kept
from perfguard.model.limits import EITHER, Limits
from perfguard.model.records import Better, Reading, Value
from perfguard.model.units import Unit

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device

TIMED = False
TESTS = True
LAST = True  # Reading it leaves nothing compiled.

_RANK = 25  # Launches follow from compilation, and come later in an explanation.

_LAST = 60  # The number of operators explains least.

_MOST_NAMED = 3  # A note names so many items. The lists that explain the counts are complete.

_COUNT = Limits(Better.LOWER, portable=True)
_NAMES = Limits(Better.SAME, gated=False, portable=True)

LIMITS = {
    "compiler_leaks": _COUNT,
    "eager_frames": _COUNT,
    "generated_kernels": Limits(Better.LOWER, portable=EITHER),
    "graph_break_reasons": _NAMES,
    "graph_breaks": _COUNT,
    "graph_functions": _NAMES,
    "graph_operators": _COUNT,
    "graphs": _COUNT,
    "guards": Limits(Better.LOWER, gated=False, portable=True),
    "library_calls": Limits(Better.LOWER, gated=False, portable=EITHER),
    "recompile_guards": _NAMES,
    "recompiles": _COUNT,
}


def read(subject: Subject, device: Device) -> list[Reading]:
    """`graphs`, `graph_operators`, `graph_breaks`, `eager_frames`, `recompiles`, `compiler_leaks`, the lists that
    explain them, and with inductor `generated_kernels` and `library_calls`.

    Empty for a call that compiles nothing, or without steps.
    """
    if subject.test is not None:
        readings = _readings(Walked(subject.test.compiled, Trace(), dict(subject.test.generated)), [])
        return [msgspec.structs.replace(each, portable=not device.asynchronous) for each in readings]
    # If a warm call has compiled nothing, its walk compiles nothing either.
    if not subject.steps or not is_compiler_loaded() or (subject.warm and not has_compiled()):
        return []
    leaks = left_changed(subject.settings, settings()) if subject.settings is not None else []
    with buffers_kept(subject.call):
        walked = walk(subject.steps, go_on=subject.timed)
    device.synchronize()
    return [] if walked is None else _readings(walked, leaks)


def _readings(walked: Walked, leaks: Sequence[str]) -> list[Reading]:
    """The readings of a walk. `leaks` are compiler settings that have changed since the test began."""

    def reading(metric: str, value: Value, note: str = "", rank: int = _RANK, **others: Any) -> Reading:
        unit = Unit.TEXT if isinstance(value, list) else Unit.COUNT
        return LIMITS[metric].reading(metric, unit, value, drifts=True, rank=rank, note=note, **others)

    first = walked.first
    breaks = [f"{each.reason} in {each.function}" for each in first.breaks]
    places = [f"{each.place} in {each.function}: {each.reason}" for each in first.breaks]
    guards = [f"{frame.function}: {frame.problem or frame.recompiled}" for frame in walked.recompiled]
    again = [f"{frame.place}: {frame.problem or frame.recompiled}" for frame in walked.recompiled]
    eager = [f"{frame.function}: {frame.problem or 'no operator in its graph'}" for frame in first.eager]
    functions = [f"{frame.function} ({frame.operators})" for frame in first.compiled]
    return [
        reading("graphs", len(first.compiled)),
        reading("graph_functions", functions, details="graphs"),
        reading("graph_operators", sum(frame.operators for frame in first.compiled), rank=_LAST),
        reading("graph_breaks", len(breaks), _note("graph break at", places), rank=_RANK - 1),
        reading(
            "graph_break_reasons",
            breaks,
            rank=_RANK - 1,
            details="graph_breaks",
            lines=dict(zip(breaks, places, strict=True)),
        ),
        reading("eager_frames", len(eager), _note("left to Python:", eager)),
        reading("recompiles", len(guards), _note("recompiled for", guards)),
        reading("recompile_guards", guards, details="recompiles", lines=dict(zip(guards, again, strict=True))),
        reading("compiler_leaks", len(leaks), _note("compiler setting left changed:", leaks)),
        reading("guards", sum(frame.guards for frame in first.compiled)),
        *(reading(metric, count) for metric, count in walked.generated.items()),
    ]


def _note(intro: str, items: Sequence[str]) -> str:
    return f"{intro} {listed(items, _MOST_NAMED)}" if items else ""


@dataclass(frozen=True)
class Walked:
    """The compiler's work on a walk.

    Attributes:
        first: the first lap, on which everything is compiled.
        second: the second lap, on which nothing should be compiled.
        generated: on the first lap, the number of kernels that inductor generated, and the calls of other kernels
            (matmuls, custom operators). Empty if inductor was not the backend.
    """

    first: Trace
    second: Trace
    generated: dict[str, int]

    @property
    def recompiled(self) -> list[Frame]:
        """Recompilations on both laps. On the second lap, every compilation is a recompilation."""
        return self.first.recompiled + self.second.frames


def walk(steps: Sequence[Callable[[], object]], *, go_on: bool = True) -> Walked | None:
    """Run the steps twice; None if the first step compiles nothing.

    torch's compiler is reset before and after. The first lap bypasses disk caches of graphs, since cached graphs are
    not counted. Compiled C++ and Triton kernels are taken from their caches.

    Args:
        go_on: repeat the first step at the end, so that the process continues as if it had run only that step.

    Raises:
        Exception: raised by a step, with a note that names the step.
    """
    forget_compiled()
    with traced() as first, _inductor_counted() as generated:
        _take(steps[:1], 0)
        if not first.frames:
            return None
        _take(steps[1:], 1)
    with traced() as second:
        _take(steps, 0, " again")
    forget_compiled()
    if go_on:
        _take(steps[:1], 0, " after a reset")
    return Walked(first, second, generated if any(generated.values()) else {})


def _take(steps: Sequence[Callable[[], object]], first: int, how: str = "") -> None:
    for number, step in enumerate(steps, first):
        try:
            step()
        except Exception as error:
            what = f"step {number} of the walk" if number else "the case's own inputs"
            error.add_note(f"perfguard: raised while {what} ran{how} under the compiler")
            raise


@contextlib.contextmanager
def observed_compilations() -> Iterator[tuple[Trace, dict[str, int]]]:
    """Observe a test's compilations while inside: nothing is reset before, and caches stay in use."""
    with traced() as trace, _counted() as generated:
        yield trace, generated


@contextlib.contextmanager
def _inductor_counted() -> Iterator[dict[str, int]]:
    """Make inductor generate code for every graph while inside, and count its kernels and library calls."""
    if COMPILE_FX.loaded() is None:
        yield {}
        return
    with (
        PATCH_INDUCTOR.get()(fx_graph_cache=False, fx_graph_remote_cache=False),
        FUNCTORCH.get().patch(enable_autograd_cache=False, enable_remote_autograd_cache=False),
        _counted() as counts,
    ):
        yield counts


@contextlib.contextmanager
def _counted() -> Iterator[dict[str, int]]:
    """Yield counts, which are filled in at the end. They stay empty if inductor is not loaded at that time."""
    counts: dict[str, int] = {}
    before = _counters()
    yield counts
    after = _counters()
    counts |= {name: count - before.get(name, 0) for name, count in after.items()}


def _counters() -> dict[str, int]:
    if COMPILE_FX.loaded() is None:
        return {}
    return {
        "generated_kernels": METRICS.get().generated_kernel_count,
        "library_calls": COUNTERS.get()["inductor"]["extern_calls"],
    }
