"""Activity of one call on a GPU, from one profile: its kernels, copies and fills, their code, and the host's waits."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch.autograd.profiler import record_function

from perfguard.measure.devices import fingerprints, kineto, operators
from perfguard.measure.devices.activity import Activity, Copied, Waited
from perfguard.tensors.step import Step

_REGION = "perfguard: the call"

# ATen's layout and dtype copies, as `kineto.normalized` names them: `…elementwise_kernel[direct_copy_kernel_cuda]`.
_COPY_KERNEL = re.compile(r"\[\w*copy_kernel\w*\]$")

# Functions of CUDA's, ROCm's and oneAPI's runtimes and drivers that return when the device is done. Copies without
# Async in their name block. Copies with it block by synchronising a stream, which is a separate event.
_WAIT = re.compile(r"Synchronize|^(cuda|cu|hip)Memcpy(?!.*(Async|Peer))|^(ur|pi)(Queue|Event)(Finish|Wait)")


def of_call(call: Callable[[], object], synchronize: Callable[[], None], kind: str) -> Activity:
    """All work of a warm `call` on the device, in launch order.

    If the host waited, the call is repeated under a dispatch mode, which finds the lines of Python. A `Step` is always
    repeated, since all ranks must make equally many calls, and only its observed pass counts.

    Args:
        synchronize: waits for the device.
        kind: 'cuda' or 'xpu', as in `kineto`.
    """

    step = call if isinstance(call, Step) else None

    def finished() -> object:
        if step is None:
            with record_function(_REGION):
                result = call()
        else:
            result = step.within(record_function(_REGION))
        synchronize()
        return result

    with fingerprints.triton_launches() as launched:
        events = kineto.trace_events(finished, kind)
    if step is None:
        activity = replace(activity_of(events), code=fingerprints.fingerprint(kineto.work_of(events), launched))
    else:  # The launches belong to both passes.
        activity = activity_of(events, part=True)
    if not activity.waits and step is None:
        return activity
    located = operators.of_call(call, kind, operators.device_waits(kind))
    synchronize()
    return with_places(activity, located.waits)


def activity_of(events: Sequence[Mapping[str, Any]], *, part: bool = False) -> Activity:
    """The activity in the events of a Chrome trace with an annotated call; with `part`, only that of the call."""
    work = kineto.work_of(events, _REGION if part else "")
    launches, copies = [], []
    for item in work:
        name = kineto.normalized(item.name)
        launches.append(name)
        if item.kind == "copy" or _COPY_KERNEL.search(name):
            copies.append(Copied(name, int(item.facts.get("bytes", 0)) if item.kind == "copy" else 0))
    waits = [Waited(name) for name in kineto.runtime_calls(events, _REGION) if _WAIT.search(name)]
    return Activity(launches, copies, sum(item.kind == "fill" for item in work), waits)


def with_places(activity: Activity, located: Sequence[Waited]) -> Activity:
    """Add lines of Python to the runtime's waits, if known. Waits that C++ causes have no line."""
    lines = [f"{each.place} ({each.name})" for each in located if each.place]
    spare = len(activity.waits) - len(lines)
    lines += [""] * spare
    waits = [Waited(wait.name, line) for wait, line in zip(activity.waits, lines, strict=False)]
    return replace(activity, waits=waits)
