"""The state of an NVIDIA GPU as reported by its driver, through pynvml."""

from __future__ import annotations

import importlib
import os
import re
from pathlib import Path
from typing import Any

from msgspec import Struct

from perfguard.model.records import Conditions

#: Bits of NVML's clock event reasons (nvml.h), without the bit for an idle GPU, which is no slowdown.
THROTTLE_REASONS: dict[int, str] = {
    0x002: "applications_clocks_setting",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}

_VERSION_FILE = Path("/proc/driver/nvidia/version")


class State(Struct, frozen=True):
    """One reading of the GPU's state. Unreadable fields are empty, and `warning` gives cause and remedy."""

    conditions: Conditions = Conditions()
    driver: str | None = None
    power_limit_watts: float | None = None
    warning: str = ""


def read(uuid: str | None, index: int = 0, *, pynvml: Any = None) -> State:
    """The state of the GPU with this UUID, or with number `index` if there is none. Never raises.

    Args:
        pynvml: the module, if not the installed one.
    """
    try:
        return _through_pynvml(pynvml or importlib.import_module("pynvml"), uuid, index)
    except ImportError:
        problem = "pynvml is not installed"
    except Exception as error:  # pynvml's errors have no common base class outside the module
        problem = f"pynvml: {error}"
    hint = "clocks and throttling are unknown: pip install nvidia-ml-py"
    return State(driver=_driver_from(_VERSION_FILE), warning=f"NVIDIA driver state: {problem}; {hint}")


def throttle_reasons(mask: int) -> list[str]:
    """Names of the bits set in `mask`."""
    return [name for bit, name in THROTTLE_REASONS.items() if mask & bit]


def others(pids: list[int]) -> int:
    """Number of processes other than this one.

    In a container the driver may report the host's process ids. One of them is then this process, because it
    holds a context itself.
    """
    if os.getpid() in pids:
        return len(pids) - 1
    foreign = any(not Path(f"/proc/{pid}").exists() for pid in pids)
    return len(pids) - 1 if foreign else len(pids)


def _through_pynvml(pynvml: Any, uuid: str | None, index: int) -> State:
    pynvml.nvmlInit()
    try:
        handle = _handle(pynvml, uuid, index)
        board = handle
        if uuid is not None and uuid.startswith("MIG-"):  # clocks and power belong to the whole board
            board = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)

        def asked(name: str, *args: object) -> Any:
            try:
                return getattr(pynvml, name)(*args)
            except (pynvml.NVMLError, AttributeError):  # not supported by this GPU or this driver
                return None

        power_mw, limit_mw = asked("nvmlDeviceGetPowerUsage", board), asked("nvmlDeviceGetEnforcedPowerLimit", board)
        mask = asked("nvmlDeviceGetCurrentClocksEventReasons", board)
        if mask is None:
            mask = asked("nvmlDeviceGetCurrentClocksThrottleReasons", board)
        processes = asked("nvmlDeviceGetComputeRunningProcesses", handle)
        driver = asked("nvmlSystemGetDriverVersion")
        return State(
            conditions=Conditions(
                clock_mhz=asked("nvmlDeviceGetClockInfo", board, pynvml.NVML_CLOCK_SM),
                memory_clock_mhz=asked("nvmlDeviceGetClockInfo", board, pynvml.NVML_CLOCK_MEM),
                temperature_celsius=asked("nvmlDeviceGetTemperature", board, pynvml.NVML_TEMPERATURE_GPU),
                power_watts=None if power_mw is None else power_mw / 1e3,
                throttle_reasons=throttle_reasons(mask or 0),
                other_processes=None if processes is None else others([process.pid for process in processes]),
            ),
            driver=driver.decode() if isinstance(driver, bytes) else driver,
            power_limit_watts=None if limit_mw is None else limit_mw / 1e3,
        )
    finally:
        pynvml.nvmlShutdown()


def _handle(pynvml: Any, uuid: str | None, index: int) -> Any:
    # with CUDA_VISIBLE_DEVICES set, torch's device numbers differ from the driver's; UUIDs are the same
    if uuid is None:
        return pynvml.nvmlDeviceGetHandleByIndex(index)
    return pynvml.nvmlDeviceGetHandleByUUID(uuid)


def _driver_from(version_file: Path) -> str | None:
    try:
        found = re.search(r"Kernel Module.*?\s(\d+\.\d[\d.]*)", version_file.read_text())
    except OSError:
        return None
    return found[1] if found else None
