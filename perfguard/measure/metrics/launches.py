"""The work that a call starts: launches, copies, fills, waits of the host for the device, and a hash of it all.

On a GPU `launches` counts everything that the device ran (kernels, copies, fills), and `kernels` lists it in order. On
a CPU `operators` and `operator_names` replace them, and `host_reads` replaces `syncs`. All are equal on every CPU.

If `fingerprint` is unchanged, the device time cannot have changed. The device provides the code of every kernel, the
grids and the order (`Activity.code`). This module adds the conditions that change how this code runs: the inputs'
shapes, strides, alignment and contents, the state of the cache, the environment variables that libraries read, and the
kind of device.

Without a GPU `kernel_work`, the counted work of interpreted kernels, is the only sign of a kernel that does more than
before. It has the parts `loads`, `stores` and `atomics`, which count unmasked elements, and `products`, the
multiplications of dots, including padding. They are sums over all kernels, whose names may change. `programs` of each
kernel is shown beside it, but not gated, because other tiles have other numbers of programs.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from perfguard.measure.metrics.subject import Subject, by_place, listed
from perfguard.model.limits import EITHER, KERNEL_TIME, Limits
from perfguard.model.records import Better, Reading, Value
from perfguard.model.units import Unit

if TYPE_CHECKING:
    import torch

    from perfguard.measure.devices.activity import Activity, ObservedActivity
    from perfguard.measure.devices.device import Device

TIMED = False
TESTS = True

_READS = "the host reads a tensor's data"
_RANK = 30  # An explanation has the binary's metrics before these, and memory behind them.
_LAST = 60  # Any change alters the number of operators, which costs nothing by itself.
_MOST_PLACES = 5
_TOLERANCE = 0.005
_FLOOR_BYTES = 2**12  # A temporary of one page counts, as in the peak on a CPU.
# Other tiles read edges again and pad differently. If a kernel is bound by its accesses or its products, a twentieth is
# about the least change that a time on a GPU shows.
_WORK_TOLERANCE = 0.05
_WORK_RANK = 20  # Launches and memory come later in an explanation.
_MOST_NAMED = 2  # More kernels than this are not named before a part of their work.

LIMITS = {
    "copies": Limits(Better.LOWER, portable=EITHER),
    "copy_bytes": Limits(Better.LOWER, tolerance=_TOLERANCE, portable=EITHER),
    "copy_places": Limits(Better.SAME, gated=False, portable=EITHER),
    "fingerprint": Limits(Better.SAME, gated=False, covers=("device_time_us",)),
    "grids": Limits(Better.SAME, gated=False, portable=EITHER, covers=(KERNEL_TIME,)),
    "host_read_places": Limits(Better.SAME, gated=False, portable=EITHER),
    "host_reads": Limits(Better.LOWER, portable=EITHER),
    "kernel_launches": Limits(Better.SAME, gated=False, portable=EITHER, covers=(KERNEL_TIME,)),
    "kernel_work": Limits(Better.LOWER, tolerance=_WORK_TOLERANCE, portable=EITHER),
    "kernels": Limits(Better.SAME, gated=False),
    "launches": Limits(Better.LOWER, portable=EITHER),
    "operator_names": Limits(Better.SAME, gated=False, portable=EITHER),
    "operators": Limits(Better.LOWER, portable=EITHER),
    "peak_tensor_bytes": Limits(Better.LOWER, tolerance=_TOLERANCE, floor=_FLOOR_BYTES, portable=EITHER),
    "programs": Limits(Better.LOWER, gated=False, portable=EITHER),
    "syncs": Limits(Better.LOWER),
}

UNKNOWN = "unknown"


# Compilers specialise on pointers divisible by 16, and caches depend on more bits. Every allocator aligns to this.
_FULL_ALIGNMENT = 64

# Integers control kernels (offsets, indices, masks), so small tensors of integers are hashed exactly.
_FEW_BYTES = 2**20

# Variables that make the same kernels and calls run differently, or that choose between them at run time. Variables
# that only change the compiled code are not needed here, since the code is hashed.
_VARIABLES = (
    "CUBLASLT_WORKSPACE_SIZE", "CUBLAS_EMULATE_SINGLE_PRECISION", "CUBLAS_EMULATION_STRATEGY",
    "CUBLAS_WORKSPACE_CONFIG", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING",
    "GPU_MAX_HW_QUEUES", "HIP_LAUNCH_BLOCKING", "HIPBLASLT_TENSILE_LIBPATH", "HSA_CU_MASK", "HSA_ENABLE_SDMA",
    "NVIDIA_TF32_OVERRIDE", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF",
    "PYTORCH_TUNABLEOP_ENABLED", "ROCBLAS_TENSILE_LIBPATH", "ROC_GLOBAL_CU_MASK", "SYCL_CACHE_PERSISTENT",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "TORCH_BLAS_PREFER_CUBLASLT", "TORCH_BLAS_PREFER_HIPBLASLT",
)  # fmt: skip


def read(subject: Subject, device: Device) -> list[Reading]:
    """Counts, which fail on any rise, and names, which explain them, all from one warm call. With times on a device
    with a queue also `fingerprint`: 16 hex digits, which cover the device time, or `unknown`, which covers nothing, if
    the code of a kernel is unavailable. Without such a device also the work of interpreted kernels, if there are any.
    """
    activity = subject.activity(device)
    work = [] if device.asynchronous else kernel_work(activity.work)
    return [*_launched(activity, subject, device), *work]


def kernel_work(work: Mapping[tuple[str, str], int]) -> list[Reading]:
    """`kernel_work` and `programs`, from the work by kernel and kind (`Activity.work`); empty without work."""
    if not work:
        return []
    parts, programs, kernels = dict[str, int](), dict[str, int | float | str](), dict[str, list[str]]()
    for (kernel, what), number in sorted(work.items()):
        if what == "programs":
            programs[kernel] = number
        else:
            parts[what] = parts.get(what, 0) + number
            kernels.setdefault(what, []).append(kernel)
    named = {what: f"{', '.join(each)} {what}" for what, each in kernels.items() if len(each) <= _MOST_NAMED}
    others: dict[str, Any] = {"portable": True, "rank": _WORK_RANK}
    return [
        LIMITS["kernel_work"].reading("kernel_work", Unit.COUNT, {**parts}, lines=named, **others),
        LIMITS["programs"].reading("programs", Unit.COUNT, programs, details="kernel_work", **others),
    ]


def _launched(activity: Activity, subject: Subject, device: Device) -> list[Reading]:

    def reading(metric: str, value: Value, unit: Unit = Unit.COUNT, rank: int = _RANK, **others: Any) -> Reading:
        limits = LIMITS[metric]
        portable = not device.asynchronous if limits.portable is EITHER else limits.portable
        return limits.reading(metric, unit, value, drifts=True, rank=rank, **others, portable=portable)

    copies, waits = Counter[str](), Counter[str]()
    for copy in activity.copies:
        copies[f"{copy.name} at {copy.place}" if copy.place else copy.name] += copy.count
    for wait in activity.waits:
        waits[f"{wait.place} ({wait.name})" if wait.place else wait.name] += wait.count
    moved = sum(copy.bytes for copy in activity.copies)
    readings = [
        reading("copies", copies.total(), rank=_RANK - 2, note=_note("copies", copies)),
        reading("copy_bytes", moved, Unit.BYTES, rank=_RANK - 1),
    ]
    if subject.test is not None:
        timed = [KERNEL_TIME] if device.asynchronous else []
        return [*readings, *_of_test(subject.test.seen, copies, waits, reading, timed)]
    count, names = len(activity.launches), list(activity.launches)
    if not device.asynchronous:
        # Operators of ranks differ with the rows that are routed to them. Threads of a process group free sent tensors
        # a moment later, so the peak differs from run to run. A layout has no such threads.
        alone = subject.ranks.alone
        peak = activity.tensor_bytes if alone or not subject.ranks.has_data else None
        called = [
            reading("operators", count, rank=_LAST),
            reading("operator_names", names, Unit.TEXT, _LAST, details="operators"),
        ]
        return [
            *(called if alone else []),
            *readings,
            reading("host_reads", waits.total(), rank=_RANK - 3, note=_note(_READS, waits)),
            *([] if peak is None else [reading("peak_tensor_bytes", peak, Unit.BYTES, rank=50)]),
        ]
    readings = [
        reading("launches", count),
        reading("kernels", names, Unit.TEXT, details="launches"),
        *readings,
        reading("syncs", waits.total(), rank=_RANK - 3, note=_note("the host waits for the device", waits)),
    ]
    if subject.timed and not subject.ranks.in_step:  # Times of several ranks depend on more than this rank's code.
        value = UNKNOWN if activity.code is None else _fingerprint(activity.code, subject, device)
        covers = [] if activity.code is None else list(LIMITS["fingerprint"].covers)
        readings.append(reading("fingerprint", value, Unit.TEXT, rank=50, covers=covers))
    return readings


def _of_test(
    seen: ObservedActivity, copies: Counter[str], waits: Counter[str], reading: Callable[..., Reading], timed: list[str]
) -> list[Reading]:
    """The readings of a test: numbers of operators, on any device, and Triton's launches by kernel. The `timed` metrics
    cannot have changed if the launches did not."""
    operators = Counter(seen.activity.launches)
    launches, grids = Counter[str](), dict[str, str]()
    for (kernel, grid), count in sorted(seen.kernels.items()):
        launches[kernel] += count
        grids[kernel] = ", ".join(filter(None, (grids.get(kernel, ""), f"{count} x {grid}")))
    return [
        reading("operators", operators.total(), rank=_LAST),
        reading("operator_names", dict(sorted(operators.items())), rank=_LAST, details="operators"),
        by_place(copies, lambda **parts: reading("copy_places", rank=_RANK - 2, details="copies", **parts)),
        reading("host_reads", waits.total(), rank=_RANK - 3, note=_note(_READS, waits)),
        by_place(waits, lambda **parts: reading("host_read_places", rank=_RANK - 3, details="host_reads", **parts)),
        reading("peak_tensor_bytes", seen.activity.tensor_bytes or 0, Unit.BYTES, rank=50),
        reading("launches", launches.total()),
        reading("kernel_launches", dict(sorted(launches.items())), details="launches", covers=timed),
        reading("grids", grids, Unit.TEXT, details="launches", covers=timed),
    ]


def _note(what: str, places: Counter[str]) -> str:
    return f"{what}: {listed(places, _MOST_PLACES, 'more places')}" if places else ""


def _fingerprint(code: str, subject: Subject, device: Device) -> str:
    """16 hex digits over `code`, the hash of the device's work, and over all conditions that change how it runs."""
    facts = [
        device.identity.slug,
        subject.direction,
        subject.cache,
        code,
        [(name, os.environ[name]) for name in _VARIABLES if name in os.environ],
        _inputs(subject.args),
    ]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def _inputs(inputs: tuple[Any, ...]) -> list[object]:
    """The structure of the inputs, and one entry for each leaf."""
    import torch

    from perfguard._compat import torch_utils

    leaves, structure = torch_utils.tree_flatten(inputs)
    described: list[object] = [str(structure)]
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided:
            tensor = leaf.detach()
            address = tensor.data_ptr()
            alignment = min(_FULL_ALIGNMENT, address & -address) if address else _FULL_ALIGNMENT
            described.append((str(tensor.dtype), tuple(tensor.shape), tensor.stride(), alignment, _contents(tensor)))
        elif isinstance(leaf, bool | int | float | complex | str | bytes | type(None) | torch.dtype):
            described.append(repr(leaf))
        else:  # A repr may contain an address, which differs between processes.
            described.append(type(leaf).__qualname__)
    return described


def _contents(tensor: torch.Tensor) -> str:
    """A digest of the tensor's values: exact for few integers, else the sum of the 64-bit words of its memory.

    A sum of integers does not depend on their order, so the same values give the same sum in every run.
    """
    import torch

    integers = not tensor.dtype.is_floating_point and not tensor.dtype.is_complex
    if integers and tensor.numel() * tensor.element_size() <= _FEW_BYTES:
        return hashlib.sha256(repr(tensor.tolist()).encode()).hexdigest()
    storage = tensor.untyped_storage()
    flat = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage, 0, (storage.nbytes(),))  # type: ignore[call-overload]
    whole = flat.numel() // 8 * 8
    total = int(flat[:whole].view(torch.int64).sum())
    return f"{total} {flat[whole:].tolist()}"
