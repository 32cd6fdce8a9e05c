"""Activity of one call on a GPU, from one profile: its kernels, copies and fills, the host's waits, and a hash of all.

The hash covers the code of every kernel, its launch parameters, and the order of launches. Triton's kernels are hashed
by their machine code, library kernels by their full name. The libraries themselves are hashed by version (torch's own)
or by content (other libraries with device code in this process). Without the origin of a kernel there is no hash.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import mmap
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.autograd.profiler import record_function

from perfguard._compat.torch_compiler import CACHE_FOLDER, CACHE_KEY, is_inductors
from perfguard._compat.triton_internals import is_compiled, launches_noted
from perfguard.measure.binaries.kernel_facts import machine_code, sections
from perfguard.measure.devices import kineto, operators
from perfguard.measure.devices.activity import Activity, Copied, Waited
from perfguard.measure.devices.kineto import Work, normalized
from perfguard.tensors.step import Step

_REGION = "perfguard: the call"

# ATen's layout and dtype copies, as `kineto.normalized` names them: `…elementwise_kernel[direct_copy_kernel_cuda]`.
_COPY_KERNEL = re.compile(r"\[\w*copy_kernel\w*\]$")

# Functions of CUDA's, ROCm's and oneAPI's runtimes and drivers that return when the device is done. Copies without
# Async in their name block. Copies with it block by synchronising a stream, which is a separate event.
_WAIT = re.compile(r"Synchronize|^(cuda|cu|hip)Memcpy(?!.*(Async|Peer))|^(ur|pi)(Queue|Event)(Finish|Wait)")

# The profiler's names of library kernels. C++ names are known by namespace or argument types, other names by prefixes
# that handwritten kernels do not use.
_LIBRARY = re.compile(
    r"(void )?(\(anonymous namespace\)::)?"
    r"(at|at_cuda_detail|c10|cub|thrust|rocprim|hipcub|cutlass|cudnn|cublas|cublasLt|pytorch_flash|ck|ck_tile|oneapi)::"
    r"|.*\(.*\bcublas\w+"
    r"|(nvjet_|sm\d+_xmma_|ampere_\w*gemm|volta_\w*gemm|turing_\w*gemm|cutlass_?\d+_|fmha_cutlass[FB]_|cudnn_)"
    r"|(ncclDevKernel_|Cijk_|__amd_rocclr_)"
)

_DEVICE_CODE = (b".nv_fatbin", b".hip_fatbin")
# Folders of libraries whose version is part of the toolchain.
_PACKAGES = ("torch/", "nvidia/", "triton/", "cusparselt/", "rocm", "_rocm")
_TOOLKITS = ("/usr/local/cuda", "/opt/rocm", "/opt/intel/oneapi")
_LEAST_ADDRESS = 2**40  # Larger integers are taken for addresses, which differ between processes.

_froze = False  # It is True if this module froze the collector's objects.


def of_call(call: Callable[[], object], synchronize: Callable[[], None], kind: str) -> Activity:
    """All work of a warm `call` on the device, in launch order.

    If the host waited, the call is repeated under a dispatch mode, which finds the lines of Python. A `Step` is always
    repeated, since all ranks must make equally many calls, and only its observed pass counts.
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

    with triton_launches() as launched:
        events = kineto.trace_events(finished, kind)
    if step is None:
        activity = replace(activity_of(events), code=fingerprint(kineto.work_of(events), launched))
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
    return Activity(launches, copies, waits)


def with_places(activity: Activity, located: Sequence[Waited]) -> Activity:
    """Add lines of Python to the runtime's waits, if known. Waits that C++ causes have no line."""
    lines = [f"{each.place} ({each.name})" for each in located if each.place]
    spare = len(activity.waits) - len(lines)
    lines += [""] * spare
    waits = [Waited(wait.name, line) for wait, line in zip(activity.waits, lines, strict=False)]
    return replace(activity, waits=waits)


@dataclass(frozen=True)
class Kernel:
    """A Triton kernel that this process has loaded. `handle` is the driver's, `code` is a hash of its machine code."""

    name: str
    handle: int
    threads: int | None
    registers: int | None
    code: str | None


class TritonLaunch(NamedTuple):
    """One launch by Triton's launcher. `scalars` are its arguments other than tensors, as text."""

    name: str
    handle: int
    scalars: str = ""


Launched = list[TritonLaunch]  # Launches are in order.


@contextmanager
def triton_launches() -> Iterator[Launched]:
    """List every launch by Triton's own launcher while inside, with its scalars, on which its time may depend."""
    launched: Launched = []

    def note(kernel: Any, grid: Any, args: Sequence[Any]) -> None:
        launched.append(TritonLaunch(kernel.name, kernel.function, repr([_scalar(each) for each in args])))

    with launches_noted(note):
        yield launched


def _scalar(argument: object) -> object:
    """The argument if it is a number or a string; each part of a tuple; None for anything else."""
    if isinstance(argument, tuple | list):
        return [_scalar(each) for each in argument]
    if isinstance(argument, int) and abs(argument) >= _LEAST_ADDRESS:
        return None
    return argument if isinstance(argument, bool | int | float | str) else None


def fingerprint(work: Sequence[Work], launched: Launched) -> str | None:
    """16 hex digits over a call's work on the device, in launch order; None if the code of a kernel is unknown."""
    kernels = [each for each in work if each.kind == "kernel"]
    if not work or any("grid" not in each.facts or "block" not in each.facts for each in kernels):
        return None
    codes = _codes([each for each in kernels if not _LIBRARY.match(each.name)], launched)
    if codes is None:
        return None
    described: list[object] = []
    for each in work:
        code = codes.get(id(each))
        names = [each.name] if code is None else [normalized(each.name), code]
        described.append((each.kind, each.stream, sorted(each.facts.items()), *names))
    described += [launch.scalars for launch in launched if launch.scalars]
    if any(_LIBRARY.match(each.name) for each in kernels):
        foreign = foreign_libraries(Path("/proc/self/maps"))
        if foreign is None:
            return None
        described += [str(torch.__version__), foreign]
    return hashlib.sha256(repr(described).encode()).hexdigest()[:16]


def _codes(work: Sequence[Work], launched: Launched) -> dict[int, str] | None:
    """id(work) -> hash of its machine code, for Triton kernels; None if a hash is unavailable."""
    if not work:
        return {}
    loaded: dict[str, list[Kernel]] = defaultdict(list)
    for kernel in loaded_kernels({item.name for item in work}):
        loaded[kernel.name].append(kernel)
    handles: dict[str, list[int]] = defaultdict(list)
    for launch in launched:
        handles[launch.name].append(launch.handle)
    counts = Counter(item.name for item in work)
    seen: Counter[str] = Counter()
    codes: dict[int, str] = {}
    for item in work:
        candidates = loaded[item.name]
        if len(handles[item.name]) == counts[item.name]:  # The handle of every launch is known.
            handle = handles[item.name][seen[item.name]]
            candidates = [kernel for kernel in candidates if kernel.handle == handle]
        else:
            candidates = [kernel for kernel in candidates if _fits(kernel, item)]
        seen[item.name] += 1
        hashes = {kernel.code for kernel in candidates}
        code = hashes.pop() if len(hashes) == 1 else None
        if code is None:
            return None
        codes[id(item)] = code
    return codes


def _fits(kernel: Kernel, work: Work) -> bool:
    """Whether the launch may be one of `kernel`: registers and threads agree, if both sides have them."""
    block, registers = work.facts.get("block"), work.facts.get("registers per thread")
    threads = block[0] * block[1] * block[2] if isinstance(block, list) and len(block) == 3 else None
    return all(
        ours is None or theirs is None or ours == theirs
        for ours, theirs in ((kernel.threads, threads), (kernel.registers, registers))
    )


def loaded_kernels(names: set[str]) -> list[Kernel]:
    """Triton's compiled kernels with these names that are alive and loaded, including inductor's.

    Neither Triton nor inductor lists its kernels, but both keep them as objects of types with known names, such as
    `CompiledKernel` and `StaticallyLaunchedCudaKernel`.
    """
    kernels = []
    for kernel in _compiled():
        if getattr(kernel, "name", None) in names and kernel.function is not None:
            triton = _launcher(type(kernel)) == "triton"
            binary = kernel.kernel if triton else _binary_of_static(kernel)
            code = machine_code(binary) if isinstance(binary, bytes) else None
            metadata = kernel.metadata if triton else kernel
            warp = getattr(getattr(metadata, "target", None), "warp_size", None)
            threads = metadata.num_warps * warp if warp else None
            registers = getattr(kernel, "n_regs", None)
            kernels.append(Kernel(kernel.name, kernel.function, threads, registers, code))
    return kernels


def forget_objects_without_kernels() -> None:
    """Hide all present objects from `loaded_kernels`, if no kernel is among them. Imports leave a million objects, and
    checking them took 50 ms per case."""
    global _froze
    if not _compiled():
        _froze = _froze or not gc.get_freeze_count()  # Objects that others froze stay frozen.
        gc.freeze()


def remember_objects() -> None:
    """Undo `forget_objects_without_kernels` in the garbage collector."""
    global _froze
    if _froze:
        gc.unfreeze()
        _froze = False


def _compiled() -> list[Any]:
    """Triton's and inductor's compiled kernels."""
    objects = gc.get_objects()
    kinds = {kind for kind in set(map(type, objects)) if _launcher(kind)}  # Few types match.
    return [each for each in objects if type(each) in kinds] if kinds else []


def _launcher(kind: type) -> str:
    """The owner of compiled kernels of this type: "triton", "inductor"; "" for any other type."""
    if is_compiled(kind):
        return "triton"
    if is_inductors(kind):
        return "inductor"
    return ""


def _binary_of_static(kernel: Any) -> bytes | None:
    """The binary that inductor's static launcher has loaded, found by its key in Triton's cache."""
    try:
        cache = Path(CACHE_FOLDER.get()(torch.accelerator.current_device_index()))
        folder = cache / CACHE_KEY.get()(kernel.hash)
        paths = [path for path in folder.glob("*") if path.suffix in (".cubin", ".hsaco") and path.stem == kernel.name]
        return paths[0].read_bytes() if len(paths) == 1 else None
    except (ImportError, AttributeError, TypeError, RuntimeError, OSError):  # All of these names are private.
        return None


def foreign_libraries(maps: Path) -> str | None:
    """Hash of this process's libraries with device code outside the toolchain; None if unknown.

    An extension may instantiate templates of ATen, CUB or CUTLASS with its own code, under any name.
    """
    try:
        paths = {line.split(maxsplit=5)[5] for line in maps.read_text().splitlines() if ".so" in line}
    except (OSError, IndexError):
        return None
    packages = Path(torch.__file__).parents[1]
    toolchain = (*(f"{packages}/{name}" for name in _PACKAGES), *_TOOLKITS)
    foreign = [path for path in paths if not path.startswith(toolchain)]
    contents = {_device_code(path) for path in foreign}
    return " ".join(sorted(filter(None, contents)))


@functools.cache
def _device_code(path: str) -> str:
    """Hash of a library's content if it holds device code, else "". A loaded library does not change."""
    try:
        with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if not any(section.name in _DEVICE_CODE for section in sections(content)):
                return ""
            return hashlib.sha256(content).hexdigest()[:16]
    except (OSError, ValueError):  # The file is deleted or empty.
        return ""
