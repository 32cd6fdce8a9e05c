"""torch.profiler's raw events: device work in order, allocations in order, and readable kernel names."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.autograd import DeviceType  # type: ignore[attr-defined]  # re-exported without saying so
from torch.profiler import ProfilerActivity, profile

_LOG_LEVEL = "KINETO_LOG_LEVEL"
_QUIET = "99"

# ATen's kernels that compute whatever their template arguments say …
_GENERIC = re.compile(r"(elementwise_kernel\w*|reduce_kernel)$")
# … and the words there that only pass it on.
_WRAPPERS = re.compile(r"gpu_kernel|[AB]UnaryFunctor$|BinaryFunctor$|ReduceOp$|func_wrapper|Load|Store|memory$")


_ON = {
    "cuda": (ProfilerActivity.CUDA, DeviceType.CUDA),
    "xpu": (ProfilerActivity.XPU, DeviceType.XPU),
}


def device_work(call: Callable[[], object], kind: str) -> list[str]:
    """Names of the kernels, copies and fills that `call` ran on 'cuda' or 'xpu', normalised, by start time.

    The call must have finished on the device when it returns.
    """
    activity, device = _ON[kind]
    events = [
        event
        for event in _events(call, [ProfilerActivity.CPU, activity])
        if event.device_type() == device and not event.is_user_annotation()
    ]
    return [normalized(event.name()) for event in sorted(events, key=lambda event: event.start_ns())]


def peak_allocated(call: Callable[[], object]) -> int:
    """Largest sum of bytes that `call` held of torch's CPU allocator at once, its result included.

    Memory from before the call counts neither way, also where the call gives it back.
    """
    held = peak = 0
    # sorted() is stable: events of one instant stay in the order in which they were recorded
    for event in sorted(_events(call, [ProfilerActivity.CPU], memory=True), key=lambda event: event.start_ns()):
        if event.name() == "[memory]" and event.device_type() == DeviceType.CPU:
            held += event.nbytes()
            peak = max(peak, held)
    return peak


def normalized(name: str) -> str:
    """A kernel's name without what changes from build to build and from call to call.

    Return types, arguments and template arguments go, except for the operation in ATen's generic kernels:
    `void at::native::elementwise_kernel<128, 4, at::native::…direct_copy_kernel_cuda(…)…>(int, …)` becomes
    `at::native::elementwise_kernel[direct_copy_kernel_cuda]`. Inductor's counters go as well
    (`triton_poi_fused_add_0`), and the places in `Memcpy DtoH (Device -> Pageable)`. Triton's own names stay.
    """
    if name.startswith(("Memcpy", "Memset")):
        return name.split(" (", maxsplit=1)[0]
    name = name.replace("(anonymous namespace)::", "").removeprefix("void ")
    plain = _outside_brackets(name)
    if plain.startswith("triton_"):
        return re.sub(r"_\d+$", "", plain)
    if _GENERIC.search(plain):
        words = re.findall(r"at::native::(?:\w+::)*(\w+)", name.partition("<")[2])
        operation = next((word for word in words if not _WRAPPERS.match(word)), None)
        return plain if operation is None else f"{plain}[{operation}]"
    return plain


def _outside_brackets(name: str) -> str:
    """`a::b<c<d>, e>::f(g)` -> `a::b::f`: template arguments dropped, cut at the argument list."""
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


def _events(call: Callable[[], object], activities: list[ProfilerActivity], *, memory: bool = False) -> list[Any]:
    with _quiet(), profile(activities=activities, profile_memory=memory, acc_events=True) as profiler:
        result = call()  # kept: what a caller holds is not freed before the profile ends
    del result
    results = profiler.profiler.kineto_results if profiler.profiler is not None else None
    return list(results.events()) if results is not None else []


@contextmanager
def _quiet() -> Iterator[None]:
    """Kineto writes a line to stderr at every start and stop; it reads this variable when it first starts."""
    before = os.environ.get(_LOG_LEVEL)
    os.environ.setdefault(_LOG_LEVEL, _QUIET)
    try:
        yield
    finally:
        if before is None:
            del os.environ[_LOG_LEVEL]
