"""The CPU, which 'auto' takes if no GPU can be used. Calls return when their work is done, so there is no queue, and
dispatched operators replace launches. torch is not needed before one of its calls is measured."""

from __future__ import annotations

import ctypes
import math
import os
import platform
import re
import statistics
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from perfguard.measure.devices.activity import Activity, MemoryUse
from perfguard.measure.devices.device import Device
from perfguard.measure.devices.vendors import Vendor, read_text, slugify
from perfguard.model.records import Conditions, Hardware

if TYPE_CHECKING:
    import torch

_LEAST_COPY_BYTES = 256 * 2**20
_COPIES = 11
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # M_… of glibc's malloc.h
_LARGEST_THRESHOLD = 32 * 2**20  # glibc accepts no larger threshold (bytes).


class CpuDevice(Device):
    """This machine's processor, with the cores that this process may use.

    Args:
        root: the folder that holds `/proc` and `/sys`.
    """

    asynchronous = False

    def __init__(self, *, root: Path = Path("/")) -> None:
        self._root = root

    @cached_property
    def identity(self) -> Hardware:
        name = model_name(self._root)
        return Hardware(
            # 'Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz' -> 'cpu-xeon-platinum-8481c'
            slug=slugify(re.sub(r"\b(intel|amd)\b", "", name, flags=re.IGNORECASE), "cpu"),
            vendor="cpu",
            name=name,
            architecture=platform.machine(),
            target="cpu",
            memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
            cache_bytes=cache_bytes(self._root),
            units=cores_in_use(self._root),
        )

    @property
    def key(self) -> str:
        return "cpu"

    @property
    def holds_cpu_tensors(self) -> bool:
        return True

    def conditions(self) -> Conditions:
        kilohertz = _number(self._root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq")
        return Conditions(clock_mhz=None if kilohertz is None else kilohertz // 1000)

    def settle(self) -> None:
        """Make the C library keep freed memory. By default, the process's history decides whether it keeps large blocks
        or returns them to the kernel. A call that takes its memory anew each time is two or three times as slow, so two
        processes with the same code would differ."""
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # Other C libraries may lack it.
        for parameter, value in ((_MMAP_THRESHOLD, _LARGEST_THRESHOLD), (_TRIM_THRESHOLD, 2**31 - 1)):
            if mallopt is not None:
                mallopt(parameter, value)

    def take_memory(self, count: int) -> object:
        return bytearray(count)

    def memory(self, call: Callable[[], object]) -> MemoryUse:
        """Memory of torch's CPU allocator, also inside custom operators."""
        from perfguard.measure.devices import allocators

        return allocators.cpu_use(call)

    def activity(self, call: Callable[[], object]) -> Activity:
        from perfguard.measure.devices import operators

        return operators.of_call(call)

    def copy_bytes_per_second(self) -> float:
        """The ceilings are those of one thread, as the times beside them are."""
        import torch

        from perfguard.measure.timers.cpu import one_thread

        count = max(_LEAST_COPY_BYTES, 4 * (self.identity.cache_bytes or 0))
        source = torch.ones(count, dtype=torch.uint8)
        target = torch.ones_like(source)
        times_us = []
        for _ in range(_COPIES + 1):
            start = self.now_us()
            with one_thread():
                target.copy_(source)
            times_us.append(self.now_us() - start)
        return 2 * count / (statistics.median(times_us[1:]) * 1e-6)

    def matmul_flop_per_second(self, dtype: torch.dtype) -> float:
        from perfguard.measure.timers.cpu import one_thread

        with one_thread():
            return super().matmul_flop_per_second(dtype)


def model_name(root: Path) -> str:
    """The processor's name, or its implementer and part numbers if the kernel reports no name (Arm)."""
    cpuinfo = read_text(root / "proc/cpuinfo")
    fields = {
        key.strip(): value.strip()
        for key, _, value in (line.partition(":") for line in cpuinfo.split("\n\n")[0].splitlines())
    }
    name = fields.get("model name", "")
    if name and not re.search(r"\d{3}", name):  # Hypervisors shorten it: "AMD EPYC".
        name = f"{name.split('@')[0].strip()} family {fields.get('cpu family', '?')} model {fields.get('model', '?')}"
    if not name and "CPU part" in fields:
        name = f"{platform.machine()} implementer {fields.get('CPU implementer', '?')} part {fields['CPU part']}"
    return name or platform.processor() or platform.machine()


def cores_in_use(root: Path) -> int:
    """The minimum of torch's threads, the cores on which this process may run, and its control group's quota."""
    limits = [len(os.sched_getaffinity(0))]
    try:
        import torch
    except ImportError:
        pass
    else:
        limits.append(torch.get_num_threads())
    quota = read_text(root / "sys/fs/cgroup/cpu.max").split()
    if len(quota) == 2 and quota[0].isdigit():
        limits.append(math.ceil(int(quota[0]) / int(quota[1])))
    return max(1, min(limits))


def cache_bytes(root: Path) -> int | None:
    """Size of the last-level cache, bytes: the sum over all instances that this process's cores use."""
    instances: dict[tuple[int, str], int] = {}
    for core in os.sched_getaffinity(0):
        for folder in (root / f"sys/devices/system/cpu/cpu{core}/cache").glob("index*"):
            level, size = _number(folder / "level"), read_text(folder / "size")
            if level is not None and re.fullmatch(r"\d+[KM]", size):
                shared = read_text(folder / "shared_cpu_list")
                instances[level, shared] = int(size[:-1]) * {"K": 2**10, "M": 2**20}[size[-1]]
    last = max((level for level, _ in instances), default=0)
    return sum(size for (level, _), size in instances.items() if level == last) or None


def _number(path: Path) -> int | None:
    text = read_text(path)
    return int(text) if text.isdigit() else None


class Cpu(Vendor):
    """This machine's processor."""

    names = ("cpu",)
    auto = 1000

    def understands(self, name: str) -> bool:
        return name == "cpu"

    def is_here(self) -> bool:
        return True

    def open(self, name: str) -> CpuDevice:
        return CpuDevice()


VENDOR = Cpu()
