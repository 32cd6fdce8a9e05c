"""Fingerprints of a call's kernels, which show whether a record has the same code, without compiling for any target."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from perfguard.measure.binaries.call_binaries import OnTarget, named
from perfguard.measure.binaries.compiler import Compiler, Job, first_irs
from perfguard.measure.binaries.launch_recorder import Launch, constants_of, options_of, specialised

_MOST_PLACES = 32  # Longer tuples are shown as a whole.


def code_of(
    on_targets: Sequence[OnTarget], compiler: Compiler, known: Mapping[str, str] | None = None, *, new: bool = True
) -> dict[str, str]:
    """Kernel function -> `<source>-<ir>`, 8 hex digits each, over all of its launches: those of the plain call, of its
    configurations and of its walk.

    `<source>` is a hash over the code that the kernel may depend on and its specialisations, `<ir>` over Triton's first
    IR in place of the code. Both include other properties that matter on a GPU: targets, tunings, memory operators, and
    arguments of kernels that cannot be interpreted. Neither depends on paths, ids or addresses. `<ir>` is empty if it
    was not requested, or if it could not be made.

    Args:
        on_targets: the launches of one pass (`of_pass`).
        compiler: makes the first IRs, in one pool.
        known: the record's fingerprints. If a kernel has the record's source, the record's own text is returned, and
            nothing is compiled.
        new: whether kernels that `known` lacks get an `<ir>`, which a record of them needs.
    """
    known = known or {}
    sources = {kernel: _half(on_targets, kernel, lambda _, launch: launch.source) for kernel in _kernels(on_targets)}
    code = {kernel: text for kernel, text in known.items() if text.partition("-")[0] == sources.get(kernel)}
    jobs = {
        (each.target, launch): Job(compiler, each.target, launch)
        for each in on_targets
        for launch in _launches(each)
        if launch.kernel not in code and (new or launch.kernel in known)
    }
    irs = first_irs(jobs.values())

    def ir_of(target: str, launch: Launch) -> str:
        if (target, launch) not in jobs:
            return ""
        ir = irs[jobs[target, launch]]
        return ir.digest or (ir.error if ir.kept else "")

    return {name: code.get(name) or f"{source}-{_half(on_targets, name, ir_of)}" for name, source in sources.items()}


def places_of(on_targets: Sequence[OnTarget]) -> dict[str, str]:
    """Kernel -> `kernels/rows.py:44 in rows`, the line of its definition, for files below the current folder."""
    launches = {launch.kernel: launch for each in on_targets for launch in _launches(each) if launch.line}
    try:
        here = Path.cwd()
    except FileNotFoundError:  # A test may remove the folder that it has changed to.
        return {}
    return {
        kernel: f"{Path(launch.file).relative_to(here).as_posix()}:{launch.line} in {kernel}"
        for kernel, launch in launches.items()
        if Path(launch.file).is_relative_to(here)
    }


def configuration_of(on_targets: Sequence[OnTarget], renamed: Mapping[str, str] | None = None) -> dict[str, str]:
    """Parts and their values, e.g. "`rows`: held" -> "9": the constants and options of the launches that the plain call
    chooses; `entry`, the entry of the table from which they come; `tuned`, if a tuner chooses. Values that differ
    between targets name the targets: "9 on sm_80 sm_90, 2 on gfx942". `renamed` holds other names for kernels.
    """
    values: dict[str, dict[str, list[str]]] = {}  # part -> value -> targets
    for on_target in on_targets:
        for part, value in _configuration(on_target, renamed or {}):
            values.setdefault(part, {}).setdefault(value, []).append(on_target.target)
    return {
        part: next(iter(by_value))
        if len(by_value) == 1
        else ", ".join(f"{value} on {' '.join(targets)}" for value, targets in by_value.items())
        for part, by_value in values.items()
    }


def _configuration(on_target: OnTarget, renamed: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    recording = on_target.recording
    for name, launch in named(recording.launches, renamed):
        if launch.configuration is not None:
            continue
        fields = dict(launch.fields)
        for constant, value in (constants_of(launch) | options_of(launch)).items():
            if isinstance(value, list) and len(value) <= _MOST_PLACES:  # A change names one element.
                names = fields.get(constant, [f"{constant}[{place}]" for place in range(len(value))])
                yield from ((f"`{name}`: {field}", _text(each)) for field, each in zip(names, value, strict=False))
            else:
                yield f"`{name}`: {constant}", _text(value)
        if launch.twin is not None:
            entry = next(iter(recording.entries[launch.twin : launch.twin + 1]), "")
            yield f"`{name}`: {'entry' if entry else 'configuration'}", entry or str(launch.twin)
    for tuning in recording.tunings:
        if tuning.configurations > 1:
            yield f"`{renamed.get(tuning.kernel, tuning.kernel)}`: tuned", f"one of {tuning.configurations}"


def _text(value: Any) -> str:
    """A constant as text: `1024`, a tuple as `1024,4`, a function as its name."""
    if isinstance(value, dict):
        value = value.get("constexpr", str(value.get("jit_function")).rpartition(":")[2])
    return ",".join(map(_text, value)) if isinstance(value, list) else str(value)


def _kernels(on_targets: Sequence[OnTarget]) -> list[str]:
    return list(dict.fromkeys(launch.kernel for each in on_targets for launch in _launches(each)))


def _launches(on_target: OnTarget) -> list[Launch]:
    return [*on_target.recording.launches, *on_target.recording.walked]


def _half(on_targets: Sequence[OnTarget], kernel: str, code: Callable[[str, Launch], str]) -> str:
    """Half of a kernel's fingerprint, from the `code` of each launch on a target; empty if a launch has no code."""
    described: list[object] = []
    for on_target in on_targets:
        recording = on_target.recording
        launches = [launch for launch in _launches(on_target) if launch.kernel == kernel]
        codes = [code(on_target.target, launch) for launch in launches]
        if not all(codes):
            return ""
        described.append(
            [
                on_target.target,
                [
                    (launch.direction, launch.configuration, launch.twin, specialised(launch), text)
                    for launch, text in zip(launches, codes, strict=True)
                ],
                [(tuning.key, tuning.configurations) for tuning in recording.tunings if tuning.kernel == kernel],
                recording.memory_operators,
                {direction: kernels.get(kernel) for direction, kernels in recording.arguments.items()},
            ]
        )
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()[:8]
