"""The results of torch.compile for a call and its walk: graphs, their operators, breaks, recompilations, leaks.

One training step (forward, and backward if there are gradients) is compiled as a whole, so its readings belong to the
forward case. docs/compilation.md explains each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from perfguard._compat.torch_compiler import is_compiler_loaded
from perfguard.measure.compiled.compiler_settings import left_changed, settings
from perfguard.measure.compiled.walk import Walked, walk
from perfguard.measure.metrics.subject import Subject
from perfguard.model.limits import Limits
from perfguard.model.records import Better, Reading
from perfguard.model.units import Unit

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device

TIMED = False
LAST = True  # it leaves nothing compiled

_RANK = 25  # in an explanation: behind the binary's metrics, before launches, which follow from compilation

_MOST_NAMED = 3  # in a note; the lists beside the counts are complete

LIMITS = {
    "compiler_leaks": Limits(Better.LOWER, portable=True),
    "eager_frames": Limits(Better.LOWER, portable=True),
    "generated_kernels": Limits(Better.LOWER),
    "graph_breaks": Limits(Better.LOWER, portable=True),
    "graph_operators": Limits(Better.LOWER, portable=True),
    "graphs": Limits(Better.LOWER, portable=True),
    "planned_bytes": Limits(Better.LOWER),
    "recompiles": Limits(Better.LOWER, portable=True),
}


def read(subject: Subject, device: Device) -> list[Reading]:
    """`graphs`, `graph_operators`, `graph_breaks`, `eager_frames`, `recompiles`, `compiler_leaks`, the lists that
    explain them, and with inductor `generated_kernels`, `library_calls` and `planned_bytes`.

    Empty for a call that compiles nothing, or without steps.
    """
    if not subject.steps or not is_compiler_loaded():
        return []
    leaks = left_changed(subject.settings, settings()) if subject.settings is not None else []
    walked = walk(subject.steps, go_on=subject.timed)
    device.synchronize()
    return [] if walked is None else readings(walked, leaks)


def readings(walked: Walked, leaks: Sequence[str]) -> list[Reading]:
    """The readings of a walk.

    Args:
        leaks: compiler settings that have changed since the test began.
    """
    first = walked.first
    breaks = [f"{each.reason} in {each.function}" for each in first.breaks]
    places = [f"{each.place} in {each.function}: {each.reason}" for each in first.breaks]
    guards = [f"{frame.function}: {frame.problem or frame.recompiled}" for frame in walked.recompiled]
    eager = [f"{frame.function}: {frame.problem or 'no operator in its graph'}" for frame in first.eager]
    read = [
        _count("graphs", len(first.compiled)),
        _names("graph_functions", "graphs", [f"{frame.function} ({frame.operators})" for frame in first.compiled]),
        _count("graph_operators", sum(frame.operators for frame in first.compiled)),
        _count("graph_breaks", len(breaks), _note("graph break at", places)),
        _names("graph_break_reasons", "graph_breaks", breaks),
        _count("eager_frames", len(eager), _note("left to Python:", eager)),
        _count("recompiles", len(guards), _note("recompiled for", guards)),
        _names("recompile_guards", "recompiles", guards),
        _count("compiler_leaks", len(leaks), _note("compiler setting left changed:", leaks)),
        _count("guards", sum(frame.guards for frame in first.compiled), gated=False),
    ]
    if walked.kernels is not None:
        read += [
            _count("generated_kernels", walked.kernels, portable=False),
            _count("library_calls", walked.library_calls or 0, portable=False, gated=False),
            Reading("planned_bytes", Unit.BYTES, walked.planned_bytes or 0, drifts=True, rank=_RANK),
        ]
    return read


def _count(name: str, value: int, note: str = "", *, gated: bool = True, portable: bool = True) -> Reading:
    return Reading(
        name, Unit.COUNT, value, gated=gated, portable=portable, drifts=True, rank=_RANK, note=note
    )  # fmt: skip


def _names(name: str, details: str, value: list[str]) -> Reading:
    return Reading(
        name, Unit.TEXT, value, better=Better.SAME, gated=False, portable=True, drifts=True, rank=_RANK, details=details
    )  # fmt: skip


def _note(words: str, items: Sequence[str]) -> str:
    """`recompiled for f: n == 2; f: n == 3; and 4 more`, or nothing."""
    if not items:
        return ""
    more = f"; and {len(items) - _MOST_NAMED} more" if len(items) > _MOST_NAMED else ""
    return f"{words} {'; '.join(items[:_MOST_NAMED])}{more}"
