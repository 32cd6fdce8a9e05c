"""NVIDIA GPUs, through torch.cuda and the driver."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any
from warnings import catch_warnings, simplefilter

from perfguard.measure.devices import architectures, nvml
from perfguard.measure.devices.device import ClockMark
from perfguard.measure.devices.finding import Finding, Import, tool
from perfguard.measure.devices.torch_gpu import TorchGpu
from perfguard.measure.devices.vendor import TorchVendor, is_rocm
from perfguard.model.records import Conditions, Hardware


class NvidiaDevice(TorchGpu):
    """One NVIDIA GPU or one MIG partition of it.

    Args:
        index: torch's number of the device.
        backend: `torch.cuda`, or a stand-in for it.
        pynvml: see `nvml.read`.
    """

    captures = True

    def __init__(self, index: int = 0, *, backend: Any = None, pynvml: Any = None) -> None:
        super().__init__(index, backend=backend)
        self._pynvml = pynvml

    @cached_property
    def identity(self) -> Hardware:
        properties = self.properties
        architecture = f"sm_{properties.major}{properties.minor}"
        dtypes, warnings = architectures.fp8_dtypes(architecture)
        state = self._first_state
        if state.warning:
            warnings.append(state.warning)
        return Hardware(
            slug=architectures.slugify(properties.name, "nvidia"),
            vendor="nvidia",
            name=properties.name,
            architecture=architecture,
            memory_bytes=properties.total_memory,
            cache_bytes=getattr(properties, "L2_cache_size", None) or None,
            units=properties.multi_processor_count,
            fp8_dtypes=dtypes,
            partition=self._partition,
            power_limit_watts=state.power_limit_watts,
            index=self._index,
            warnings=warnings,
        )

    @property
    def driver(self) -> str | None:
        return self._first_state.driver

    @property
    def toolkit(self) -> str | None:
        import torch

        return torch.version.cuda

    def conditions(self) -> Conditions:
        return self._state().conditions

    def clock_mark(self) -> ClockMark | None:
        return None if self._read_clock is None else self._read_clock()

    @cached_property
    def _read_clock(self) -> Callable[[], ClockMark] | None:
        """A function that enqueues a mark; None if triton, which compiles it, is missing or does not work here."""
        try:
            with catch_warnings():
                simplefilter("ignore")  # triton's warnings about its defaults concern no kernel of the suite
                from perfguard.measure.devices import sm_clock

                return sm_clock.proven(self.torch_device, self.properties.multi_processor_count)
        except Exception:  # compilers fail in many ways, and times need no clock
            return None

    @property
    def _partition(self) -> str | None:
        found = re.search(r"\bMIG (\S+)", self.properties.name)
        return found[1] if found else None

    @cached_property
    def _first_state(self) -> nvml.State:
        return self._state()

    def _state(self) -> nvml.State:
        return nvml.read(self._uuid, self._index, pynvml=self._pynvml)

    @property
    def _uuid(self) -> str | None:
        """UUID in the driver's form: 'GPU-…', or 'MIG-…' for a partition."""
        uuid = getattr(self.properties, "uuid", None)
        if uuid is None:
            return None
        text = str(uuid)
        if text.startswith(("GPU-", "MIG-")):
            return text
        return f"{'GPU' if self._partition is None else 'MIG'}-{text}"


class Nvidia(TorchVendor):
    """NVIDIA's GPUs."""

    kind = "cuda"
    names = ("cuda", "cuda:<index>")
    auto = 10
    driver, build = "NVIDIA", "CUDA"

    def is_built(self) -> bool:
        return not is_rocm()

    def device(self, index: int) -> NvidiaDevice:
        return NvidiaDevice(index)

    def built_for(self, torch: ModuleType) -> str | None:
        return getattr(torch.version, "cuda", None)

    def has_driver(self, root: Path) -> bool:
        return (root / "proc/driver/nvidia/version").exists() or (root / "dev/nvidiactl").exists()

    def tools(self, root: Path, load: Import) -> Iterator[Finding]:
        yield tool(load, "pynvml", "pip install nvidia-ml-py")

    def permissions(self, root: Path) -> Iterator[Finding]:
        parameters = root / "proc/driver/nvidia/params"
        if not parameters.exists():
            return
        if "RmProfilingAdminOnly: 1" in parameters.read_text() and os.geteuid() != 0:
            missing = "hardware counters are for administrators only (times and launches do not need them)"
            step = "load the nvidia module with NVreg_RestrictProfilingToAdminUsers=0"
            yield Finding("NVIDIA counters", "", missing, step)
        else:
            yield Finding("NVIDIA counters", "readable")


VENDOR = Nvidia()
