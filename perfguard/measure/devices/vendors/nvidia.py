"""NVIDIA GPUs, through torch.cuda and, for their state, NVML (pynvml)."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from warnings import catch_warnings, simplefilter

from perfguard.measure.devices.device import ClockMark
from perfguard.measure.devices.torch_gpu import TorchGpu
from perfguard.measure.devices.vendors import Finding, Import, TorchVendor, is_rocm, read_text, slugify, tool
from perfguard.model.records import Conditions, Hardware

#: Bits of NVML's clock event reasons (nvml.h), without the bit of an idle GPU, which is no slowdown.
_THROTTLE_REASONS: dict[int, str] = {
    0x002: "applications_clocks_setting",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}


class NvidiaDevice(TorchGpu):
    """One NVIDIA GPU or one MIG partition of it.

    Args:
        index: torch's number of the device.
        backend: `torch.cuda`, or a stand-in for it.
        pynvml: the module, if not the installed one.
        root: the folder that holds `/proc`.
    """

    built_for = "cuda"
    captures = True

    def __init__(self, index: int = 0, *, backend: Any = None, pynvml: Any = None, root: Path = Path("/")) -> None:
        super().__init__(index, backend=backend)
        self._pynvml = pynvml
        self._version_file = root / "proc/driver/nvidia/version"

    @cached_property
    def identity(self) -> Hardware:
        properties = self.properties
        return Hardware(
            slug=slugify(properties.name, "nvidia"),
            vendor="nvidia",
            name=properties.name,
            architecture=f"sm_{properties.major}{properties.minor}",
            memory_bytes=properties.total_memory,
            cache_bytes=getattr(properties, "L2_cache_size", None) or None,
            units=properties.multi_processor_count,
            partition=self._partition,
            power_limit_watts=self._first_state.power_limit_watts,
            index=self._index,
            warnings=[self._first_state.warning] if self._first_state.warning else [],
        )

    @property
    def driver(self) -> str | None:
        return self._first_state.driver

    def conditions(self) -> Conditions:
        return self._state().conditions

    def clock_mark(self) -> ClockMark | None:
        return None if self._read_clock is None else self._read_clock()

    @cached_property
    def _read_clock(self) -> Callable[[], ClockMark] | None:
        """A function that enqueues a mark; None if Triton, which compiles it, is missing or does not work."""
        try:
            with catch_warnings():
                simplefilter("ignore")  # Triton's warnings about its defaults concern no kernel of the suite.
                from perfguard.measure.devices import sm_clock

                return sm_clock.proven(self.torch_device, self.properties.multi_processor_count)
        except Exception:  # Compilers fail in many ways, and times need no clock.
            return None

    @property
    def _partition(self) -> str | None:
        match = re.search(r"\bMIG (\S+)", self.properties.name)
        return match[1] if match else None

    @cached_property
    def _first_state(self) -> _State:
        return self._state()

    def _state(self) -> _State:
        """Read the present state. This never raises."""
        try:
            return _read_state(self._pynvml or importlib.import_module("pynvml"), self._uuid, self._index)
        except ImportError:
            problem = "pynvml is not installed"
        except Exception as error:  # The base class of pynvml's errors is in the module itself.
            problem = f"pynvml: {error}"
        hint = "clocks and throttling are unknown: pip install nvidia-ml-py"
        return _State(driver=self._kernel_driver, warning=f"NVIDIA driver state: {problem}; {hint}")

    @property
    def _kernel_driver(self) -> str | None:
        match = re.search(r"Kernel Module.*?\s(\d+\.\d[\d.]*)", read_text(self._version_file))
        return match[1] if match else None

    @property
    def _uuid(self) -> str | None:
        """The UUID in the driver's form: 'GPU-…', or 'MIG-…' for a partition."""
        uuid = getattr(self.properties, "uuid", None)
        if uuid is None:
            return None
        text = str(uuid)
        if text.startswith(("GPU-", "MIG-")):
            return text
        return f"{'GPU' if self._partition is None else 'MIG'}-{text}"


@dataclass(frozen=True)
class _State:
    """One reading of the GPU's state. Unreadable fields are empty, and `warning` gives cause and remedy."""

    conditions: Conditions = field(default_factory=Conditions)
    driver: str | None = None
    power_limit_watts: float | None = None
    warning: str = ""


def _read_state(pynvml: Any, uuid: str | None, index: int) -> _State:
    """The state of the GPU with this UUID, or with number `index` if there is no UUID."""
    pynvml.nvmlInit()
    try:
        # With CUDA_VISIBLE_DEVICES, torch's device numbers differ from the driver's. UUIDs are the same.
        by_index, by_uuid = pynvml.nvmlDeviceGetHandleByIndex, pynvml.nvmlDeviceGetHandleByUUID
        handle = board = by_index(index) if uuid is None else by_uuid(uuid)
        if uuid is not None and uuid.startswith("MIG-"):  # Clocks and power belong to the whole board.
            board = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)

        def asked(name: str, *args: object) -> Any:
            try:
                return getattr(pynvml, name)(*args)
            except (pynvml.NVMLError, AttributeError):  # This GPU or driver does not support it.
                return None

        mask = asked("nvmlDeviceGetCurrentClocksEventReasons", board)
        if mask is None:
            mask = asked("nvmlDeviceGetCurrentClocksThrottleReasons", board) or 0
        processes = asked("nvmlDeviceGetComputeRunningProcesses", handle)
        driver = asked("nvmlSystemGetDriverVersion")
        limit_mw = asked("nvmlDeviceGetEnforcedPowerLimit", board)
        return _State(
            conditions=Conditions(
                clock_mhz=asked("nvmlDeviceGetClockInfo", board, pynvml.NVML_CLOCK_SM),
                throttle_reasons=[name for bit, name in _THROTTLE_REASONS.items() if mask & bit],
                other_processes=None if processes is None else _others([process.pid for process in processes]),
            ),
            driver=driver.decode() if isinstance(driver, bytes) else driver,
            power_limit_watts=None if limit_mw is None else limit_mw / 1e3,
        )
    finally:
        pynvml.nvmlShutdown()


def _others(pids: list[int]) -> int:
    """Number of processes other than this one.

    In a container the driver may report the host's process ids. One of them is then this process, which has a context
    itself.
    """
    foreign = any(not Path(f"/proc/{pid}").exists() for pid in pids)
    return len(pids) - 1 if os.getpid() in pids or foreign else len(pids)


class Nvidia(TorchVendor):
    """NVIDIA's GPUs."""

    kind = "cuda"
    names = ("cuda", "cuda:<index>")
    auto = 10
    driver, build = "NVIDIA", "CUDA"
    opens = NvidiaDevice

    def is_built(self) -> bool:
        return not is_rocm()

    def has_driver(self, root: Path) -> bool:
        return (root / "proc/driver/nvidia/version").exists() or (root / "dev/nvidiactl").exists()

    def tools(self, root: Path, load: Import) -> Iterator[Finding]:
        yield tool(load, "pynvml", "pip install nvidia-ml-py")


VENDOR = Nvidia()
